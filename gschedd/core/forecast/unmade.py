"""Elements of arrays that are no jobs yet, while the queue is played forward.

A hundred thousand of them take as much as ten: they are kept as ranges, and are taken one by one
or in blocks.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct

from gsched.model.arrays import Spans, count, take
from gsched.model.ids import array_of, element_number, index_of
from gschedd.plan.load import Kind
from gschedd.plan.snapshot import JobClass, OrderKey

#: So many elements of an array are in the queue at once, as the head has it.
SHOWN: Final = 256


class UnmadeElements(Struct, frozen=True, kw_only=True):
    """The elements of one array that are no jobs yet.

    Attributes:
        array: its number.
        place: what comes first in the order of the queue, priority and submission.
        left: the indices, in the order in which they become jobs.
        at_s: they come no earlier, seconds since the epoch.
        ends, starts: jobs that must have ended, or started, before.
        slots: how many elements may be unfinished jobs at once; 0: any number.
        made: how many are now.
    """

    array: int
    job_class: JobClass
    place: int
    left: Spans = ()
    at_s: float = 0.0
    ends: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    slots: int = 0
    made: int = 0


class Unmade:
    """The same of one array while it is played.

    Args:
        elements: as they are at first.
        named: jobs that somebody asks about: an element among them begins no block's middle.
    """

    def __init__(self, elements: UnmadeElements, named: Collection[int]) -> None:
        self.elements = elements
        self.array = elements.array
        self.job_class = elements.job_class
        self.made = elements.made
        self._left = elements.left
        self.count = count(elements.left)
        self._named = {index_of(job) for job in named if array_of(job) == elements.array}

    @property
    def has_slot(self) -> bool:
        """Return whether one more element may be an unfinished job."""
        return not self.elements.slots or self.made < self.elements.slots

    @property
    def next_key(self) -> OrderKey:
        """Return the place of the next element in the queue."""
        return (self.elements.place, element_number(self.array, self._left[0].first))

    def take(self, most: int) -> list[OrderKey]:
        """Return the places of the next elements, at most so many, which are jobs from now on."""
        if self.elements.slots:
            most = min(most, self.elements.slots - self.made)
        taken, self._left = take(self._left, most)
        numbers = [index for span in taken for index in span.indices()]
        self.count -= len(numbers)
        self.made += len(numbers)
        place, array = self.elements.place, self.array
        return [(place, element_number(array, index)) for index in numbers]

    def take_block(self, most: int) -> tuple[int, int]:
        """Return the next element and how many run one after the other from it on."""
        first = self._left[0].first
        block, self._left = take(self._left, max(self._unnamed(most), 1))
        size = count(block)
        self.count -= size
        self.made += 1
        return element_number(self.array, first), size

    def _unnamed(self, most: int) -> int:
        """Return how many of the next elements nobody has named: the first one does not matter."""
        if not self._named:
            return most
        block, _ = take(self._left, most)
        place = 0
        for span in block:
            inside = sorted(index for index in self._named if index in span)
            for index in inside:
                at = place + (index - span.first) // span.step
                if at:
                    return at
            place += len(span)
        return most


class ElementKinds(Mapping[int, Kind]):
    """Kinds of jobs; an element that is no job yet is of the kind of its array."""

    def __init__(self, kinds: Mapping[int, Kind]) -> None:
        self._kinds = kinds

    def __getitem__(self, job: int) -> Kind:
        kind = self._kinds.get(job)
        return self._kinds[array_of(job)] if kind is None else kind

    def __iter__(self) -> Iterator[int]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)
