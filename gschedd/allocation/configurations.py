"""Where training jobs may run on what is free: which numbers of GPUs, on which nodes, how fast.

Placing is that of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149: nodes stand by their
free GPUs, the fewest first. A plan for one node takes the first that has enough, one across nodes
takes what each has until there is enough, and may so land on one node. Ours: on a cluster of
several kinds of nodes there are also plans that keep to one kind, and among nodes with as many free
GPUs the one that ranks lower comes first.

Requests of one form see the same free GPUs, and training jobs of one speed are equally fast on
them, so that both are worked out once for all of them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Request
from gsched.model.states import Placement
from gschedd.plan.elastic import allocate_on, free_gpus
from gschedd.plan.fit import NoFit, place
from gschedd.plan.layouts import has_alike_gpus, layout_of, slowest_type
from gschedd.plan.snapshot import JobClass, Snapshot
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import Fabric, Layout, Speed, TrainingProfile

#: By what nodes with as many free GPUs are ordered, the lower first; their names decide the rest.
Preference = Callable[[FreeNode], float]


class Waiting(Struct, frozen=True, kw_only=True):
    """A training that waits to start.

    Attributes:
        form: of its request (see `form_of`); None where it can only be placed as it is.
        kind: the same number for all in one plan whose form, speed and numbers of GPUs are equal:
            the same plans suit them.
    """

    profile: TrainingProfile
    job_class: JobClass
    form: Request | None
    kind: int


def waiting_training_jobs(snapshot: Snapshot) -> list[Waiting]:
    """Return the training jobs that wait, by job id; jobs without a profile are not among them."""
    forms: dict[Request, Request | None] = {}
    kinds: dict[tuple[Request | None, Speed, tuple[int, ...]], int] = {}
    found: list[Waiting] = []
    for group in snapshot.groups:
        profile = (
            snapshot.profiles.get(group.job_class.training) if group.job_class.training else None
        )
        if profile is None:
            continue
        request = group.job_class.request
        if request not in forms:
            forms[request] = form_of(request) if has_alike_gpus(request) else None
        form = forms[request]
        kind = kinds.setdefault((form, profile.speed, profile.gpus), len(kinds))
        found.append(Waiting(profile=profile, job_class=group.job_class, form=form, kind=kind))
    return sorted(found, key=lambda each: each.profile.job)


def form_of(request: Request) -> Request:
    """Return a request for one place of it: requests of one form differ in their number alone."""
    chunk = structs.replace(request.chunks[0], count=1)
    return structs.replace(request, chunks=(chunk,), places_max=0)


class Option(Struct, frozen=True, kw_only=True, cache_hash=True):
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
        form: see `form_of`; only where GPUs are alike (`has_alike_gpus`).
        spaces: what is free; when it changes, `refresh` is told of which nodes.
        fabric: how nodes are connected.
        preference: orders nodes with as many free GPUs.
        by_kind: also make plans that keep to one kind of nodes, where there are several.
    """

    def __init__(
        self,
        form: Request,
        spaces: Spaces,
        fabric: Fabric,
        *,
        preference: Preference | None = None,
        by_kind: bool = False,
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
        # pool 0 is of all nodes, pool k + 1 of those of kind k
        self._pools: list[list[_Key]] = [[]]
        self._by_kind = by_kind and len(kinds) > 1
        if self._by_kind:
            self._pools += [[] for _ in kinds]
        for name, count in free_gpus(form, spaces).items():
            self._put(name, self._capped(count))
        for pool in self._pools:
            pool.sort()

    def _capped(self, count: int) -> int:
        """Return how many GPUs of a node one training may have: one place where they scatter."""
        scatters = self.form.placement is Placement.SCATTER
        return min(count, self.form.chunks[0].gpus) if scatters else count

    def _put(self, name: str, count: int) -> None:
        if count:
            preference = self._preference(self._spaces[name]) if self._preference else 0.0
            key = self._keys[name] = (count, preference, name)
            for pool in self._pools_of(name):
                pool.append(key)

    def _pools_of(self, name: str) -> Iterator[list[_Key]]:
        yield self._pools[0]
        if self._by_kind:
            yield self._pools[self._kinds[name] + 1]

    def refresh(self, names: Iterable[str]) -> None:
        """Look at nodes again of which something was taken or to which something was given."""
        for name in names:
            before = self._keys.pop(name, None)
            if before is not None:
                for pool in self._pools_of(name):
                    del pool[bisect_left(pool, before)]
            space = self._spaces[name]
            count = self._capped(free_gpus(self.form, Spaces({name: space})).get(name, 0))
            if count:
                preference = self._preference(space) if self._preference else 0.0
                key = self._keys[name] = (count, preference, name)
                for pool in self._pools_of(name):
                    insort(pool, key)

    @property
    def fewest(self) -> int:
        """Return the fewest free GPUs of a node that has any; 0 where none has."""
        return self._pools[0][0][0] if self._pools[0] else 0

    @property
    def most(self) -> int:
        """Return the most free GPUs of a node."""
        return self._pools[0][-1][0] if self._pools[0] else 0

    @property
    def total(self) -> int:
        """Return the free GPUs of all nodes."""
        return sum(key[0] for key in self._pools[0])

    def options(self, counts: Sequence[int]) -> tuple[Option, ...]:
        """Return every plan for some numbers of GPUs: on one node, then across nodes.

        Of plans that are equally good the first is the one to take: it is made of all nodes.

        Args:
            counts: ascending.
        """
        found: list[Option] = []
        for number, pool in enumerate(self._pools):
            found += self._inside(number, pool, counts)
        if self.form.placement is not Placement.PACK:
            for number, pool in enumerate(self._pools):
                if len(pool) > 1:
                    found += self._across(number, pool, counts)
        return tuple(found)

    def _inside(self, number: int, pool: list[_Key], counts: Sequence[int]) -> Iterator[Option]:
        most = pool[-1][0] if pool else 0
        for count in counts:
            if count > most:
                return
            node = pool[bisect_left(pool, (count, _FIRST, ""))][2]
            yield Option(gpus=count, layout=self._layout(((node, count),)), pool=number)

    def _across(self, number: int, pool: list[_Key], counts: Sequence[int]) -> Iterator[Option]:
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
                yield Option(gpus=count, layout=self._layout(parts), across=True, pool=number)

    def _layout(self, parts: Sequence[tuple[str, int]]) -> Layout:
        """Return the layout of so many GPUs on each node; equal ones are one object."""
        named = bool(self._fabric.between)
        key = tuple(sorted((count, name if named else self._kinds[name]) for name, count in parts))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._fabric.layout(dict(parts), self._types)
        return layout

    def allocate(self, option: Option) -> Allocation:
        """Return the allocation of a plan made on what is free now, most GPUs first.

        Raises:
            ValueError: it was made of something else.
        """
        found = allocate_on(self.form, self._spaces, self._nodes_of(option))
        if found is None:
            raise ValueError(f"{option} is not what is free now")
        return found

    def _nodes_of(self, option: Option) -> dict[str, int]:
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

    def _node_of(self, option: Option, pool: list[_Key]) -> str:
        index = bisect_left(pool, (option.gpus, _FIRST, ""))
        if index == len(pool):
            raise ValueError(f"{option} is not what is free now")
        return pool[index][2]


class Paces:
    """Seconds that a unit of work takes, by speed and layout; each is asked for once.

    A plan on more GPUs than a training needs at least, on which it would not be faster than on one
    (inequality 11), has no pace.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Speed, int], PacesOf] = {}

    def of(self, speed: Speed, layout: Layout, fewest: int) -> float:
        """Return the pace on a layout, infinite where it cannot or should not run.

        Args:
            speed: of the training.
            layout: where.
            fewest: GPUs that it may have: these it gets even if one alone would be faster.
        """
        return self.of_speed(speed, fewest)[layout]

    def of_speed(self, speed: Speed, fewest: int) -> "PacesOf":
        """Return the paces of one speed by layout: who asks for many of them takes these."""
        found = self._known.get((speed, fewest))
        if found is None:
            found = self._known[speed, fewest] = PacesOf(speed, fewest)
        return found


class PacesOf(dict[Layout, float]):
    """The paces of training jobs of one speed, by layout; each is computed when it is needed."""

    def __init__(self, speed: Speed, fewest: int) -> None:
        super().__init__()
        self._speed = speed
        self._fewest = fewest
        self._alone: dict[float, float] = {}

    def __missing__(self, layout: Layout) -> float:
        """Work out the pace on a layout, and keep it."""
        rate, gpus = self._speed.rate(layout), layout.gpus
        allowed = rate > 0 and (
            gpus <= self._fewest or gpus == 1 or rate > self._rate_of_one(layout.device)
        )
        pace = self[layout] = 1 / rate if allowed else float("inf")
        return pace

    def _rate_of_one(self, device: float) -> float:
        rate = self._alone.get(device)
        if rate is None:
            rate = self._alone[device] = self._speed.rate(Layout(counts=(1,), device=device))
        return rate


def place_whole(
    request: Request, spaces: Spaces, fabric: Fabric
) -> tuple[Allocation, Layout] | None:
    """Return where a request that is not plain fits as it is, and its layout; None: nowhere."""
    found = place(request, spaces)
    if isinstance(found, NoFit):
        return None
    return found, layout_of(found, spaces.gpus_of, fabric)
