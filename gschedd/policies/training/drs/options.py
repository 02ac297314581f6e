"""Where training jobs may run on what is free: which numbers of GPUs, on which nodes, how fast.

Placing is that of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149: nodes stand by their
free GPUs, the fewest first. A plan for one node takes the first that has enough, one across nodes
takes what each has until there is enough, and may so land on one node. Ours: on a cluster of
several kinds of nodes there are also plans that keep to one kind, and among nodes with as many free
GPUs the one that ranks lower comes first.

Requests of one form see the same free GPUs, and training jobs of one speed are equally fast on
them, so that both are computed once for all of them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Request
from gsched.model.states import Placement
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.elastic import allocate_on, free_gpus
from gschedd.plan.layouts import slowest_type
from gschedd.plan.snapshot import JobClass, Snapshot
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import Fabric, Layout, Speed, TrainingProfile

#: By what nodes with as many free GPUs are ordered, the lower first; their names decide the rest.
Preference = Callable[[FreeNode], float]


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A training job that waits to start; ``form`` is that of its request (see `form_of`)."""

    profile: TrainingProfile
    job_class: JobClass
    form: Request


def waiting_jobs(snapshot: Snapshot, training_jobs: TrainingJobs) -> list[WaitingJob]:
    """Return the training jobs that wait, by job id."""
    forms: dict[Request, Request] = {}
    found: list[WaitingJob] = []
    for job, job_class in training_jobs.waiting.items():
        request = job_class.request
        if request not in forms:
            forms[request] = form_of(request)
        profile = snapshot.profiles[job]
        found.append(WaitingJob(profile=profile, job_class=job_class, form=forms[request]))
    return found


def form_of(request: Request) -> Request:
    """Return a request for one place of it: requests of one form differ in their number alone."""
    chunk = structs.replace(request.chunks[0], count=1)
    return structs.replace(request, chunks=(chunk,), places_max=0)


class PlacementOption(Struct, frozen=True, kw_only=True, cache_hash=True):
    """One plan for a training on what is free.

    Attributes:
        gpus: how many it takes.
        layout: as it really would be placed.
        across: it was made across nodes, whether or not it lands on one.
        pool: of the nodes that it was made of; 0: all nodes.
    """

    gpus: int
    layout: Layout
    across: bool = False
    pool: int = 0


#: Where a node stands among others: its free GPUs, what it is preferred by, its name.
_Key = tuple[int, float, str]

_FIRST = float("-inf")


class FreeNodes:
    """The nodes with GPUs free for requests of one form, by how many, as a plan takes of them.

    Args:
        form: see `form_of`.
        spaces: what is free; `refresh` takes in which nodes have changed.
        fabric: how nodes are connected.
        preference: orders nodes with as many free GPUs.
    """

    def __init__(
        self,
        form: Request,
        spaces: Spaces,
        fabric: Fabric,
        preference: Preference = lambda _: 0.0,
    ) -> None:
        self.form = form
        self._spaces = spaces
        self._fabric = fabric
        self._preference = preference
        self._keys: dict[str, _Key] = {}
        self._types: dict[str, str] = {}
        self._layouts: dict[tuple[tuple[int, int | str], ...], Layout] = {}
        of_node: dict[str, tuple[float, float]] = {}
        wanted = form.chunks[0].gpu_type
        for space in spaces:
            gpus = (gpu for gpu in space.all_gpus if gpu.type == wanted or not wanted)
            self._types[space.name] = slowest = slowest_type(gpus, fabric)
            of_node[space.name] = (
                fabric.devices.get(slowest, 1.0),
                fabric.inside.get(space.name, fabric.inside_bytes_s),
            )
        kinds = {kind: number for number, kind in enumerate(sorted(set(of_node.values())))}
        self._kinds = {name: kinds[kind] for name, kind in of_node.items()}
        # pool 0 is of all nodes; where there are several kinds, pool k + 1 is of those of kind k
        self._pools: list[list[_Key]] = [[] for _ in range(len(kinds) + 1 if len(kinds) > 1 else 1)]
        for name, count in free_gpus(form, spaces).items():
            self._insert(name, count)

    def _insert(self, name: str, count: int) -> None:
        if self.form.placement is Placement.SCATTER:  # one place on each node
            count = min(count, self.form.chunks[0].gpus)
        if count:
            key = self._keys[name] = (count, self._preference(self._spaces[name]), name)
            for pool in self._pools_of(name):
                insort(pool, key)

    def _pools_of(self, name: str) -> Iterator[list[_Key]]:
        yield self._pools[0]
        if len(self._pools) > 1:
            yield self._pools[self._kinds[name] + 1]

    def refresh(self, names: Iterable[str]) -> None:
        """Take in that something was taken from nodes, or given to them."""
        for name in names:
            before = self._keys.pop(name, None)
            if before is not None:
                for pool in self._pools_of(name):
                    del pool[bisect_left(pool, before)]
            space = Spaces({name: self._spaces[name]})
            self._insert(name, free_gpus(self.form, space).get(name, 0))

    @property
    def fewest(self) -> int:
        """Return the fewest free GPUs of a node that has any; 0 where none has."""
        return self._pools[0][0][0] if self._pools[0] else 0

    def options(self, counts: Sequence[int]) -> tuple[PlacementOption, ...]:
        """Return every plan for some numbers of GPUs: on one node, then across nodes.

        Of plans that are equally good the first is the one to take: it is made of all nodes.

        Args:
            counts: ascending.
        """
        found: list[PlacementOption] = []
        for number, pool in enumerate(self._pools):
            found += self._inside(number, pool, counts)
        if self.form.placement is not Placement.PACK:
            for number, pool in enumerate(self._pools):
                if len(pool) > 1:
                    found += self._across(number, pool, counts)
        return tuple(found)

    def _inside(
        self, number: int, pool: list[_Key], counts: Sequence[int]
    ) -> Iterator[PlacementOption]:
        most = pool[-1][0] if pool else 0
        for count in counts:
            if count > most:
                return
            node = pool[bisect_left(pool, (count, _FIRST, ""))][2]
            yield PlacementOption(gpus=count, layout=self._layout(((node, count),)), pool=number)

    def _across(
        self, number: int, pool: list[_Key], counts: Sequence[int]
    ) -> Iterator[PlacementOption]:
        taken: list[tuple[str, int]] = []
        have = index = 0
        for count in counts:
            while have < count and index < len(pool):
                taken.append((pool[index][2], pool[index][0]))
                have += pool[index][0]
                index += 1
            if have < count:
                return
            if count > 1:
                name, free = taken[-1]
                parts = (*taken[:-1], (name, free - (have - count)))
                yield PlacementOption(
                    gpus=count, layout=self._layout(parts), across=True, pool=number
                )

    def _layout(self, parts: Sequence[tuple[str, int]]) -> Layout:
        """Return the layout of so many GPUs on each node; equal ones are one object."""
        named = bool(self._fabric.between)
        key = tuple(sorted((count, name if named else self._kinds[name]) for name, count in parts))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._fabric.layout(dict(parts), self._types)
        return layout

    def allocate(self, option: PlacementOption) -> Allocation:
        """Return the allocation of a plan made on what is free now, most GPUs first.

        Raises:
            ValueError: it was made of something else.
        """
        found = allocate_on(self.form, self._spaces, self._nodes_of(option))
        if found is None:
            raise ValueError(f"{option} is not what is free now")
        return found

    def _nodes_of(self, option: PlacementOption) -> dict[str, int]:
        pool, left = self._pools[option.pool], option.gpus
        if not option.across:
            return {self._node_of(option, pool): left}
        parts: list[tuple[str, int]] = []
        for free, _, name in pool:
            if not left:
                break
            parts.append((name, min(free, left)))
            left -= parts[-1][1]
        return dict(reversed(parts))

    def _node_of(self, option: PlacementOption, pool: list[_Key]) -> str:
        index = bisect_left(pool, (option.gpus, _FIRST, ""))
        if index == len(pool):
            raise ValueError(f"{option} is not what is free now")
        return pool[index][2]


class LayoutPaces(dict[Layout, float]):
    """Seconds that a unit of work takes, for training jobs of one speed, by layout.

    Infinite where a job cannot run, and on more than its minimum number of GPUs also where it would
    not be faster than on one (inequality 11). With that minimum a job runs even so.
    """

    def __init__(self, speed: Speed, least: int) -> None:
        super().__init__()
        self._speed = speed
        self._least = least
        self._alone: dict[float, float] = {}

    def __missing__(self, layout: Layout) -> float:
        rate, gpus = self._speed.rate(layout), layout.gpus
        allowed = rate > 0 and (
            gpus <= self._least or gpus == 1 or rate > self._rate_of_one(layout.device)
        )
        pace = self[layout] = 1 / rate if allowed else float("inf")
        return pace

    def _rate_of_one(self, device: float) -> float:
        rate = self._alone.get(device)
        if rate is None:
            rate = self._alone[device] = self._speed.rate(Layout(counts=(1,), device=device))
        return rate


class Paces(dict[tuple[Speed, int], LayoutPaces]):
    """The same by speed and minimum number of GPUs; each is computed once."""

    def __missing__(self, key: tuple[Speed, int]) -> LayoutPaces:
        found = self[key] = LayoutPaces(*key)
        return found
