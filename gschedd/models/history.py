"""Past runs in memory: bounded, by kind and the latest of all; adding one costs the same always."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Final, Generic, TypeVar

from gschedd.models.records import Record

Value = TypeVar("Value")

#: Kinds remembered; the one that was longest without a run is forgotten first.
MAX_KINDS: Final = 10_000
#: Runs of one kind remembered: what came before has been outweighed by then.
MAX_PER_KIND: Final = 32
#: Runs of all kinds together remembered.
MAX_LATEST: Final = 200


class Recent(Generic[Value]):
    """Values by key, of which those longest untouched are forgotten: a bounded mapping."""

    def __init__(self, make: Callable[[], Value], most: int) -> None:
        self._make = make
        self._most = most
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str) -> Value | None:
        """Return the value of a key, or None; that does not count as touching it."""
        return self._values.get(key)

    def touch(self, key: str) -> Value:
        """Return the value of a key, made if it is new, as the latest of all."""
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = self._make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        else:
            self._values.move_to_end(key)
        return value

    def only(self, keys: Iterable[str]) -> "Recent[Value]":
        """Return a copy of what is known of some keys."""
        other = Recent(self._make, self._most)
        for key in keys:
            value = self._values.get(key)
            if value is not None:
                other._values[key] = deepcopy(value)
        return other

    def values(self) -> Iterable[Value]:
        """Return all values, the longest untouched first."""
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)


class Runs:
    """The runs of one kind: the latest of them, and sums over all that there ever were.

    Attributes:
        count: runs there ever were.
        cpu_work, gpu_work: sums of busy cores and GPUs times their node's rate of one.
        memory_bytes, gpu_memory_bytes, wall_s: sums.
    """

    __slots__ = (
        *("count", "cpu_work", "gpu_work", "gpu_memory_bytes", "latest", "memory_bytes"),
        "wall_s",
    )

    def __init__(self, most: int) -> None:
        self.latest: deque[Record] = deque(maxlen=most)
        self.count = 0
        self.cpu_work = 0.0
        self.memory_bytes = 0.0
        self.gpu_work = 0.0
        self.gpu_memory_bytes = 0.0
        self.wall_s = 0.0

    def add(self, record: Record) -> None:
        """Add the next run."""
        self.latest.append(record)
        self.count += 1
        self.cpu_work += record.used.cpu_cores * record.rates.core_rate
        self.memory_bytes += record.used.memory_bytes
        self.gpu_work += record.used.gpus * record.rates.gpu_rate
        self.gpu_memory_bytes += record.used.gpu_memory_bytes
        self.wall_s += record.wall_s


class History:
    """All that is remembered, in the order in which the runs ended."""

    def __init__(
        self,
        *,
        max_kinds: int = MAX_KINDS,
        max_per_kind: int = MAX_PER_KIND,
        max_latest: int = MAX_LATEST,
    ) -> None:
        self._kinds: Recent[Runs] = Recent(partial(Runs, max_per_kind), max_kinds)
        self._latest: deque[Record] = deque(maxlen=max_latest)

    def add(self, record: Record) -> None:
        """Remember a run."""
        self._kinds.touch(record.kind.key).add(record)
        self._latest.append(record)

    def only(self, keys: Iterable[str]) -> "History":
        """Return a copy that knows some kinds, and the latest runs of all."""
        other = History()
        other._kinds = self._kinds.only(keys)
        other._latest = self._latest.copy()
        return other

    def runs(self, key: str) -> Runs | None:
        """Return the runs of a kind, or None if it was never seen."""
        return self._kinds.get(key)

    @property
    def latest(self) -> Sequence[Record]:
        """Return the latest runs of all kinds, oldest first."""
        return self._latest

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._kinds)
