"""Slices of waiting jobs that stay encoded from one list to the next.

Of a job that waits, id, name, owner, submission, priority and labels are the same until it leaves
its place. A place is a tuple that is made when a job comes there, so a slice is still right if its
places are the same objects: a job that was altered, or ran and came back, has another one.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Final

from msgspec import Struct

from gschedd.core.state.transient import Lane
from gschedd.plan.snapshot import JobClass, OrderKey

JOBS_PER_SLICE: Final = 500
#: Smaller slices are made anew together with the jobs that follow.
LARGE: Final = JOBS_PER_SLICE // 2
#: Of all slices, encoded; with more of them nothing is kept: 32 MiB are 500,000 jobs.
MAX_KEPT_BYTES: Final = 32 * 1024 * 1024

#: Jobs of a class and lane, and whether with all that rows have.
Where = tuple[JobClass, Lane, bool]


class Slice(Struct, frozen=True, eq=False):
    """Some jobs that follow each other.

    Attributes:
        places: of the jobs.
        numbers: their ids.
        data: what does not change of them, encoded.
    """

    places: list[OrderKey]
    numbers: list[int]
    data: bytes

    def is_at(self, order: Sequence[OrderKey], begin: int) -> bool:
        """Return whether the jobs still have their places, one after the other."""
        there = order[begin : begin + len(self.places)]
        return len(there) == len(self.places) and all(map(is_, there, self.places))


class KeptSlices:
    """The slices of all classes."""

    def __init__(self) -> None:
        self._of: dict[Where, dict[OrderKey, Slice]] = {}
        self._bytes = 0

    def parts(
        self, where: Where, order: Sequence[OrderKey]
    ) -> Iterator[tuple[Sequence[OrderKey], Slice | None]]:
        """Yield an order in parts; with each the slice that is kept of it, if there is one."""
        known = self._of.get(where, {})
        begin = 0
        while begin < len(order):
            kept = known.get(order[begin])
            if kept is not None:
                end = begin + len(kept.places)
                goes_on = end >= len(order) or _is_large(known, order[end])
                if (len(kept.places) >= LARGE or goes_on) and kept.is_at(order, begin):
                    yield order[begin:end], kept
                    begin = end
                    continue
            last = min(begin + JOBS_PER_SLICE, len(order))
            following = (at for at in range(begin + 1, last) if _is_large(known, order[at]))
            end = next(following, last)
            yield order[begin:end], None
            begin = end

    def keep(self, where: Where, slices: Sequence[Slice]) -> None:
        """Keep the slices of a class and lane from now on, in place of those before."""
        self._forget(where)
        size = sum(len(each.data) for each in slices)
        if slices and self._bytes + size <= MAX_KEPT_BYTES:
            self._of[where] = {each.places[0]: each for each in slices}
            self._bytes += size

    def forget_others(self, waiting: Mapping[JobClass, object]) -> None:
        """Forget the slices of classes of which no job waits."""
        for where in [where for where in self._of if where[0] not in waiting]:
            self._forget(where)

    def _forget(self, where: Where) -> None:
        before = self._of.pop(where, {})
        self._bytes -= sum(len(each.data) for each in before.values())


def _is_large(known: Mapping[OrderKey, Slice], place: OrderKey) -> bool:
    return place in known and len(known[place].places) >= LARGE
