"""When a job that waits fits, by the planned ends of what runs and of windows.

What ends gives back what it has, one end after the other, until the request fits. Whether it may
fit is counted, node by node, for those nodes alone of which something has changed: a search among
all nodes after each end would take as long as there are nodes times running jobs. The search
follows where the counts allow it, so the result is that of a search after each end.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from gsched.model.resources import Allocation, Chunk, Request
from gsched.model.states import Placement
from gschedd.plan.fit import NoFit, may_help, place, sum_of
from gschedd.plan.rests import with_rests
from gschedd.plan.room import Rank, least_left, room, shortage
from gschedd.plan.snapshot import RunningJob
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.windows import Closed, Windows, narrowed

#: More than rounding changes a time since the epoch, seconds.
ROUNDING_S: Final = 1e-3


class EarliestFit(Struct, frozen=True):
    """Where a request fits at the earliest.

    Attributes:
        end_s: the planned end of what has to end for it, seconds since the epoch; None: it has
            none.
        allocation: what the job gets.
        later: what is free then, of the nodes that could take a part of the job.
    """

    end_s: float | None
    allocation: Allocation
    later: Spaces


class WaitingRequest(Struct, frozen=True, kw_only=True):
    """A request that waits.

    Attributes:
        walltime_s: of the job; None: it has none.
        rank: which nodes to prefer.
    """

    request: Request
    walltime_s: float | None
    rank: Rank


def earliest(
    waiting: WaitingRequest,
    free: Spaces,
    running: Iterable[RunningJob],
    windows: Windows,
    times: tuple[float, float],
) -> EarliestFit | None:
    """Return where a request that does not fit now fits at the earliest; None: nowhere.

    Args:
        waiting: the request.
        free: what is free now.
        running: in the order of their planned ends.
        windows: that keep jobs from nodes.
        times: now, and when jobs without a planned end are taken to end; seconds since the epoch.
    """
    request, (now_s, never_s) = waiting.request, times
    helps = _Helpful(request, free)
    if not any(helps[space.name] for space in free):  # no node has come back after a start, say
        return None
    later = free.copy()
    on_one_node = _is_on_one_node(request)
    counts = [] if on_one_node else [_PlaceCount(request, chunk, free) for chunk in request.chunks]
    view = _View(later, windows, waiting.walltime_s, counts)
    for end_s, allocation, nodes in with_rests(_events(running, windows, free)):
        names = [name for name in nodes if helps[name]]
        if not names:
            continue
        later.give(allocation)
        if on_one_node and not any(may_help(request, later[name]) for name in names):
            continue
        at_s = never_s if end_s is None else max(end_s, now_s)
        if on_one_node:  # it did not fit anywhere before, so it can only where something has ended
            where = Spaces({name: view.at(name, at_s) for name in names})
        else:
            view.follow(names, at_s)
            if not view.may_fit or not any(may_help(request, later[name]) for name in names):
                continue
            where = view.spaces
        found = place(request, where, waiting.rank)
        if not isinstance(found, NoFit):
            return EarliestFit(end_s, found, later)
    return None


def _is_on_one_node(request: Request) -> bool:
    return request.placement is Placement.PACK or (
        len(request.chunks) == 1 and request.chunks[0].count == 1
    )


class _Helpful(dict[str, bool]):
    """Nodes, and whether they take work and could, as they are made, hold a part of a request.

    Each is looked at when it is first asked for: mostly few are.
    """

    def __init__(self, request: Request, free: Spaces) -> None:
        super().__init__()
        is_packed = request.placement is Placement.PACK
        self._chunks = (sum_of(request),) if is_packed else request.chunks
        self._free = free

    def __missing__(self, node: str) -> bool:
        helps = self[node] = node in self._free and self._could_hold(self._free[node])
        return helps

    def _could_hold(self, space: FreeNode) -> bool:
        if not space.open:
            return False
        for chunk in self._chunks:  # a plain loop, as it runs for each node of each reservation
            if (
                chunk.cpus <= space.total_cpus
                and chunk.memory_bytes <= space.total_memory_bytes
                and chunk.gpus <= space.total_gpus
                and space.features.issuperset(chunk.features)
            ):
                return True
        return False


def _events(
    running: Iterable[RunningJob], windows: Windows, free: Spaces
) -> Iterable[tuple[float | None, Allocation, Sequence[str]]]:
    """Yield when something becomes free, what of it is given back, and on which nodes."""
    ends = (
        (each.end_s, each.allocation, [share.node for share in each.allocation]) for each in running
    )
    if not windows:
        return ends
    over = sorted(
        (window.to_s, node)
        for node, of_node in windows.items()
        for window in of_node
        if node in free
    )
    opened = ((to_s, (), (node,)) for to_s, node in over)
    return heapq.merge(ends, opened, key=lambda each: (each[0] is None, each[0] or 0.0))


class _View:
    """What is free at a time, without what windows keep from the job then.

    Args:
        later: what is free then; whoever changes it says so.
        counts: of the places on all nodes, as if there were no windows.

    Attributes:
        spaces: that; of the nodes that were followed.
    """

    def __init__(
        self,
        later: Spaces,
        windows: Windows,
        walltime_s: float | None,
        counts: Sequence["_PlaceCount"],
    ) -> None:
        self.spaces = later.copy() if windows else later
        self._later = later
        self._windows = windows
        self._walltime_s = walltime_s
        self._counts = counts
        self._unseen = [node for node in windows if node in later]
        #: When windows begin or cease to keep the job from which node.
        self._turns = [
            (at_s, node)
            for node, of_node in with_rests(windows.items())
            if node in later
            for window in of_node
            for at_s in self._turns_of(window.from_s, window.to_s)
        ]
        heapq.heapify(self._turns)

    def _turns_of(self, from_s: float, to_s: float) -> Iterator[float]:
        yield to_s
        if self._walltime_s is not None:
            yield from_s - self._walltime_s - ROUNDING_S

    @property
    def may_fit(self) -> bool:
        """Return whether there is as much room as is requested, of each chunk by itself."""
        return all(each.is_enough for each in self._counts)

    def at(self, node: str, at_s: float) -> FreeNode:
        """Return what is free of a node at a time."""
        space = self._later[node]
        for closed in self._closed(node, at_s):
            space = narrowed(space, closed)
        return space

    def _closed(self, node: str, at_s: float) -> frozenset[Closed]:
        return frozenset(
            node if window.share is None else window.share
            for window in self._windows.get(node, ())
            if window.bars(at_s, self._walltime_s)
        )

    def follow(self, names: Iterable[str], at_s: float) -> None:
        """Take in what has changed on some nodes, and which windows keep the job away at a time."""
        changed = [*names, *self._unseen]
        self._unseen = []
        again: list[tuple[float, str]] = []
        while self._turns and self._turns[0][0] <= at_s:
            turn_s, node = heapq.heappop(self._turns)
            changed.append(node)
            if at_s <= turn_s + 2 * ROUNDING_S:  # it may be the other side of it
                again.append((turn_s, node))
        for turn in again:
            heapq.heappush(self._turns, turn)
        for node in with_rests(changed):
            if self._windows:
                self.spaces.put(self.at(node, at_s))
            space = self.spaces[node]
            for count in self._counts:
                count.note(space)


class _PlaceCount:
    """For how many places of one chunk there is room on all nodes."""

    def __init__(self, request: Request, chunk: Chunk, free: Spaces) -> None:
        self._chunk = chunk
        self._exclusive = request.exclusive
        self._one_each = request.placement is Placement.SCATTER
        self._on = {
            space.name: self._places(space)
            for space in with_rests(least_left(chunk, free, exclusive=request.exclusive))
        }
        self._total = sum(self._on.values())

    @property
    def is_enough(self) -> bool:
        """Return whether there is room for all of them, if nothing else has to go there."""
        return self._total >= self._chunk.count

    def note(self, space: FreeNode) -> None:
        """Take in that a node is another."""
        self._total -= self._on.pop(space.name, 0)
        if not shortage(self._chunk, space, exclusive=self._exclusive):
            places = self._on[space.name] = self._places(space)
            self._total += places

    def _places(self, space: FreeNode) -> int:
        return 1 if self._one_each else room(self._chunk, space)
