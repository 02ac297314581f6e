"""The order of a class's jobs where users, projects and QOS order them: lanes, merged.

Jobs of one user, project and QOS are a *lane*. The order in a lane is fixed; which lane has the
next job follows from the keys of their first jobs. So a lane's jobs but the first cost nothing.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, overload

#: See `gschedd.plan.snapshot.OrderKey`.
Key = tuple[int, int]
#: The key of a lane's first job, its index there, and the lane; keys differ.
Front = tuple[Key, int, Sequence[Key]]

#: So many lanes are passed over at most for one with a shorter run time.
MAX_PASSED: Final = 64


class Walk:
    """A way through a class's jobs, in order.

    Args:
        fronts: of each lane; a heap, which the walk changes.
        key_of: gives the order key of an entry of a lane.
    """

    __slots__ = ("_fronts", "_key_of")

    def __init__(self, fronts: list[Front], key_of: Callable[[Key], Key] | None = None) -> None:
        self._fronts = fronts
        self._key_of = key_of

    def __bool__(self) -> bool:
        """Return whether any job is left."""
        return bool(self._fronts)

    @property
    def first(self) -> Key:
        """Return the key of the next job."""
        return self._fronts[0][0]

    def advance(self) -> None:
        """Go on to the next job."""
        _, at, lane = self._fronts[0]
        if at + 1 == len(lane):
            heapq.heappop(self._fronts)
            return
        entry = lane[at + 1]
        key = entry if self._key_of is None else self._key_of(entry)
        heapq.heapreplace(self._fronts, (key, at + 1, lane))

    def pass_lane(self) -> None:
        """Leave the lane of the next job."""
        heapq.heappop(self._fronts)


class LaneOrder(Sequence[Key]):
    """The keys of a class's jobs, merged of its lanes for whoever looks at them.

    Args:
        fronts: of each lane; a heap, which is not changed.
        count: of all jobs.
    """

    __slots__ = ("_count", "_fronts", "_key_of", "_merged", "_walk")

    def __init__(self, fronts: list[Front], key_of: Callable[[Key], Key], count: int) -> None:
        self._fronts = fronts
        self._key_of = key_of
        self._count = count
        self._merged: list[Key] = []
        self._walk: Walk | None = None

    def walk(self) -> Walk:
        """Return a way through all jobs."""
        return Walk(list(self._fronts), self._key_of)

    @overload
    def __getitem__(self, at: int) -> Key: ...
    @overload
    def __getitem__(self, at: slice) -> list[Key]: ...  # type: ignore[explicit-any]  # of slice
    def __getitem__(self, at: int | slice) -> Key | list[Key]:  # type: ignore[explicit-any]  # of slice
        """Return the key at a place, or those of some."""
        if at == 0 and self._fronts:
            return self._fronts[0][0]
        if isinstance(at, slice):
            indices = range(*at.indices(self._count))
            self._merge(max(indices, default=-1) + 1)
            return [self._merged[each] for each in indices]
        self._merge(at + 1 if at >= 0 else self._count)
        return self._merged[at]

    def __iter__(self) -> Iterator[Key]:
        """Yield all keys."""
        self._merge(self._count)
        return iter(self._merged)

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return self._count

    def _merge(self, count: int) -> None:
        """Merge the lanes until so many jobs are known."""
        walk = self._walk = self._walk or self.walk()
        while walk and len(self._merged) < count:
            self._merged.append(walk.first)
            walk.advance()

    def before(self, key: Key) -> int:
        """Return how many jobs are before a key."""
        return sum(bisect_left(lane, key, key=self._key_of) for _, _, lane in self._fronts)


def jobs_before(order: Sequence[Key], key: Key) -> int:
    """Return how many jobs of an order are before a key."""
    return order.before(key) if isinstance(order, LaneOrder) else bisect_left(order, key)


def walk_of(order: Sequence[Key]) -> Walk:
    """Return a way through an order, which has a job at least."""
    return order.walk() if isinstance(order, LaneOrder) else Walk([(order[0], 0, order)])
