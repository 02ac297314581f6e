"""Configurations turned into allocations: nothing is split, and what need not move stays.

Jobs whose configuration does not change stay. The others are placed in order of size, the largest
first: several nodes are taken whole, and a part of a node where it leaves least. If there is no
room in one piece, the jobs that stay and are in the way are evicted, the fewest, and of those the
smallest, and are placed again. As configurations are powers of two, smaller ones can always make
room, unless CPUs, memory or features of nodes are lacking.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Request
from gschedd.plan.elastic import allocate_on
from gschedd.plan.room import room, shortage
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import gpus_by_node


class Placing(Struct, frozen=True, kw_only=True):
    """A configuration that a job is to have.

    Attributes:
        gpus: all of it.
        granule: GPUs on each node; on the last one fewer if they are no multiple.
        stays: it has it already.
        allocation: what it has; empty where it waits.
    """

    job: int
    request: Request
    gpu_type: str
    gpus: int
    granule: int
    stays: bool = False
    allocation: Allocation = ()

    @property
    def counts(self) -> list[int]:
        """Return its GPUs on each node, the most first."""
        whole, rest = divmod(self.gpus, self.granule)
        return [self.granule] * whole + ([rest] if rest else [])


def placed(
    spaces: Spaces, placings: Collection[Placing], leaving: Collection[Allocation] = ()
) -> dict[int, Allocation]:
    """Return the allocation of each job for which there is room.

    Args:
        spaces: what is free now, beside what the jobs have; not changed.
        placings: of all jobs that get a configuration. Their order makes no difference.
        leaving: allocations of jobs that have one and get none.
    """
    return _Placer(spaces, placings, leaving).run()


class _Placer:
    """Lives only inside `placed`.

    Attributes:
        found: allocations by job.
    """

    def __init__(
        self, spaces: Spaces, placings: Collection[Placing], leaving: Collection[Allocation]
    ) -> None:
        self.now = spaces
        self.spaces = spaces.copy()
        self.found: dict[int, Allocation] = {}
        for allocation in leaving:
            self.spaces.give(allocation)
        #: Jobs that stay, with the size that the largest of their shares has, by node.
        self.staying: dict[str, dict[int, int]] = {}
        self.placings = {each.job: each for each in placings}
        self.queue: list[tuple[int, int, bool, int]] = []
        for each in placings:
            if not each.stays:
                self.spaces.give(each.allocation)
                self._enqueue(each)
        for each in placings:
            if each.stays:
                self.found[each.job] = each.allocation
                for node, count in gpus_by_node(each.allocation).items():
                    self.staying.setdefault(node, {})[each.job] = count
        self.rooms = _Rooms(self.spaces)

    def _enqueue(self, each: Placing) -> None:
        # of equal sizes those that run first, as they lose more
        heapq.heappush(self.queue, (-each.granule, -each.gpus, not each.allocation, each.job))

    def run(self) -> dict[int, Allocation]:
        """Return what was found for each."""
        while self.queue:
            each = self.placings[heapq.heappop(self.queue)[-1]]
            # evicted jobs whose GPUs nobody took keep them after all
            allocation = self._back(each) if each.stays else None
            if allocation is None:
                counts = self._free(each) or self._by_eviction(each)
                allocation = self._give(each, counts) if counts else None
            if allocation is None:
                allocation = self._back(each)
            if allocation is not None:
                self._take(allocation)
                self.found[each.job] = allocation
        return self.found

    def _take(self, allocation: Allocation) -> None:
        for share in allocation:
            self.spaces.take([share])
            self.rooms.update(self.spaces[share.node])

    def _back(self, each: Placing) -> Allocation | None:
        """Return what a job has, if there is no room for what it was to have and it is free."""
        if not each.allocation:
            return None
        for share in each.allocation:
            free = {gpu.index for gpu in self.spaces[share.node].gpus}
            rest = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
            if not free.issuperset(share.gpu_indices) or shortage(rest, self.spaces[share.node]):
                return None
        return each.allocation

    def _free(self, each: Placing) -> dict[str, int] | None:
        """Return nodes with room, those that leave least; None: there are not enough.

        A job that waits prefers GPUs that nobody has now, so that it can start at once.
        """
        counts = each.counts
        if len(counts) > 1:
            return self._free_nodes(each, counts)
        for now in (True, False) if not each.allocation else (False,):
            for name in self.rooms.with_room(each.gpu_type, each.gpus):
                if now and _gpus_on(self.now[name], each.gpu_type) < each.gpus:
                    continue
                if self._fits(each, name, each.gpus):
                    return {name: each.gpus}
        return None

    def _free_nodes(self, each: Placing, counts: Sequence[int]) -> dict[str, int] | None:
        found: dict[str, int] = {}
        for count in counts:
            for name in self.rooms.with_room(each.gpu_type, count):
                if name not in found and self._fits(each, name, count):
                    found[name] = count
                    break
            else:
                return None
        return found

    def _by_eviction(self, each: Placing) -> dict[str, int] | None:
        """Evict the fewest and smallest jobs that are in the way; return the nodes, or None.

        Where there are not enough nodes, some of them take two granules, as nodes are larger.
        """
        options = [
            option
            for name in self.rooms.nodes(each.gpu_type)
            if (option := self._option(name, min(each.granule, each.gpus), each)) is not None
        ]
        options.sort()
        found: dict[str, int] = {}
        for count, option in zip(each.counts, options, strict=False):
            found[option.name] = count
            self._evict(option)
        for count in each.counts[len(options) :]:
            more = [
                option
                for name, taken in found.items()
                if (option := self._option(name, taken + count, each)) is not None
            ]
            if not more:
                return None
            found[min(more).name] += count
            self._evict(min(more))
        if found and all(self._fits(each, name, count) for name, count in found.items()):
            return found
        return None

    def _option(self, name: str, gpus: int, each: Placing) -> "_Option | None":
        jobs = self._in_the_way(name, gpus, each)
        if jobs is None:
            return None
        freed = sum(self.staying[name][job] for job in jobs)
        return _Option(evicted=len(jobs), freed=freed, name=name, jobs=tuple(jobs))

    def _in_the_way(self, name: str, gpus: int, each: Placing) -> list[int] | None:
        """Return the jobs to evict so that a node has room for so many GPUs; None: it cannot."""
        lacking = gpus - _gpus_on(self.spaces[name], each.gpu_type)
        smaller = sorted(
            (count, job)
            for job, count in self.staying.get(name, {}).items()
            if self.placings[job].granule < each.granule
            and self.placings[job].gpu_type == each.gpu_type
        )
        if lacking > sum(count for count, _ in smaller):
            return None
        if lacking <= 0:
            return [] if self._fits(each, name, gpus) else None
        return _fewest(smaller, lacking)

    def _evict(self, option: "_Option") -> None:
        """Take from jobs what they have, and let them be placed anew."""
        for job in option.jobs:
            allocation = self.found.pop(job, None)
            if allocation is None:
                continue  # it was in the way on another node already
            self.spaces.give(allocation)
            for share in allocation:
                self.staying.get(share.node, {}).pop(job, None)
                self.rooms.update(self.spaces[share.node])
            self._enqueue(self.placings[job])

    def _fits(self, each: Placing, name: str, count: int) -> bool:
        chunk = _place_on(each)
        space = self.spaces[name]
        if shortage(chunk, space, exclusive=each.request.exclusive):
            return False
        return room(chunk, space) * chunk.gpus >= count

    def _give(self, each: Placing, counts: Mapping[str, int]) -> Allocation | None:
        """Return so many GPUs of each node: its own first, then those that nobody has now."""
        own = {share.node: set(share.gpu_indices) for share in each.allocation}
        chosen: dict[str, FreeNode] = {}
        for name, count in counts.items():
            space = self.spaces[name]
            mine = own.get(name, set())
            free = {gpu.index for gpu in self.now[name].gpus}
            ranked = sorted(
                (gpu.index not in mine, gpu.index not in free, gpu.index)
                for gpu in space.gpus
                if gpu.type == each.gpu_type
            )
            taken = {index for _, _, index in ranked[:count]}
            gpus = tuple(gpu for gpu in space.gpus if gpu.index in taken)
            chosen[name] = structs.replace(space, gpus=gpus)
        return allocate_on(each.request, Spaces(chosen), dict(sorted(counts.items())))


class _Option(Struct, frozen=True, order=True):
    """How room is made on a node; the least evicts the fewest jobs, and the smallest."""

    evicted: int
    freed: int
    name: str
    jobs: tuple[int, ...]


def _fewest(jobs: Sequence[tuple[int, int]], lacking: int) -> list[int]:
    """Return the fewest jobs that have so many GPUs together, and of those the smallest ones.

    Args:
        jobs: (GPUs, job) in ascending order.
    """
    most = 0
    needed = 0
    while most < lacking:
        needed += 1
        most += jobs[-needed][0]
    # of all runs of so many in a row the first that has enough
    for start in range(len(jobs) - needed + 1):
        run = jobs[start : start + needed]
        if sum(count for count, _ in run) >= lacking:
            return [job for _, job in run]
    raise AssertionError("the largest ones have enough")


def _place_on(each: Placing) -> Chunk:
    """Return a place of a request, of the type that was chosen."""
    return structs.replace(each.request.chunks[0], count=1, gpu_type=each.gpu_type)


def _gpus_on(space: FreeNode, gpu_type: str) -> int:
    return sum(gpu.type == gpu_type for gpu in space.gpus)


class _Rooms:
    """Free GPUs of open nodes by type, sorted, so that the best fit is found at once."""

    def __init__(self, spaces: Spaces) -> None:
        self._order: dict[str, list[tuple[int, str]]] = {}
        self._known: dict[str, dict[str, int]] = {}
        for space in spaces:
            if space.open:
                self._known[space.name] = counts = dict.fromkeys(_types_of(space), 0)
                for gpu in space.gpus:
                    counts[gpu.type] += 1
                for gpu_type, count in counts.items():
                    self._order.setdefault(gpu_type, []).append((count, space.name))
        for order in self._order.values():
            order.sort()

    def nodes(self, gpu_type: str) -> Iterator[str]:
        """Yield all nodes with GPUs of a type, those with fewest free ones first."""
        return (name for _, name in self._order.get(gpu_type, ()))

    def with_room(self, gpu_type: str, gpus: int) -> Iterator[str]:
        """Yield the nodes that have so many free, the fullest first."""
        order = self._order.get(gpu_type, [])
        for at in range(bisect_left(order, (gpus, "")), len(order)):
            yield order[at][1]

    def update(self, space: FreeNode) -> None:
        """Note what is free on a node now."""
        known = self._known.get(space.name)
        if known is None:
            return
        for gpu_type, before in known.items():
            count = _gpus_on(space, gpu_type)
            if count != before:
                order = self._order[gpu_type]
                del order[bisect_left(order, (before, space.name))]
                insort(order, (count, space.name))
                known[gpu_type] = count


def _types_of(space: FreeNode) -> set[str]:
    return {gpu.type for gpu in space.all_gpus}
