"""Numbers of GPUs turned into places: what stays where it is, what moves, what starts.

Training jobs whose number does not change stay where they are while the others find room beside
them, on as few nodes as such a number needs. Where they do not, everything movable is packed anew,
the largest first: with numbers that are powers of two and nodes alike that always succeeds, as in a
buddy system, and whoever can stays. Only where that fails, too, is a training spread further. One
that is pinned always stays.

Source: buddy placement with migration, Gu et al., "ElasticFlow", ASPLOS 2023.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Request, Share
from gsched.model.states import Placement
from gschedd.plan.elastic import allocate_on
from gschedd.plan.room import room, shortage, usable_gpus
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import gpu_count, gpus_by_node


class PlacementRequest(Struct, frozen=True, kw_only=True):
    """How many GPUs a training is to have.

    Attributes:
        gpus: as many as it may have by its profile; 0: none.
        request: with one chunk, of which every place has a GPU or more.
        allocation: what it has; empty where it waits.
        pinned: it keeps what it has, even if others find no room beside it.
    """

    job: int
    gpus: int
    request: Request
    allocation: Allocation = ()
    pinned: bool = False

    @property
    def has(self) -> int:
        """Return how many GPUs it has."""
        return gpu_count(self.allocation)


def settle(spaces: Spaces, wanted: Collection[PlacementRequest]) -> dict[int, Allocation]:
    """Return where training jobs go; a job that is missing found no room for its number.

    Args:
        spaces: what is free, beside what the training jobs have; not changed.
        wanted: of all training jobs that run and may be moved, and of those that are to start, each
            on nodes that are known. Their order makes no difference.
    """
    ordered = sorted(
        wanted, key=lambda each: (not each.pinned, -each.gpus, not each.allocation, each.job)
    )
    places = {each.job: each.allocation for each in ordered if each.gpus == each.has}
    best: dict[int, Allocation] = {}
    for training_jobs, spread in (
        ([each for each in ordered if each.gpus != each.has], False),
        (ordered, False),
        (ordered, True),
    ):
        found = _Packing(spaces, training_jobs, spread=spread).run()
        if training_jobs is not ordered:
            found = places | found
        if len(found) > len(best):
            best = found
        if len(found) == len(ordered):
            break
    return best


class _Packing:
    """Places training jobs in order on what is free and what all of them have.

    Args:
        spread: take more nodes than are needed for a number if there is no other room.
    """

    def __init__(
        self, spaces: Spaces, ordered: Collection[PlacementRequest], *, spread: bool
    ) -> None:
        self.now = spaces
        self.spaces = spaces.copy()
        self.ordered = ordered
        self.spread = spread
        self.sizes = sorted((space.total_gpus for space in spaces), reverse=True)
        self.places: dict[int, Allocation] = {}
        #: GPUs of those that would stay where they are, until their turn has come.
        self.held: dict[str, set[int]] = {}
        for each in ordered:
            self.spaces.give(each.allocation)
            if each.gpus == each.has:
                for share in each.allocation:
                    self.held.setdefault(share.node, set()).update(share.gpu_indices)

    def run(self) -> dict[int, Allocation]:
        """Return the places of all that found room."""
        for each in self.ordered:
            allocation: Allocation | None = ()
            if each.gpus:
                allocation = self._stay(each) or self._node(each) or self._nodes(each)
            if allocation is not None:
                self.spaces.take(allocation)
                self.places[each.job] = allocation
        return self.places

    def _stay(self, each: PlacementRequest) -> Allocation | None:
        """Return what a training has, if it is to keep it and nobody larger has taken of it."""
        if each.gpus != each.has:
            return None
        for share in each.allocation:
            self.held[share.node].difference_update(share.gpu_indices)
        stays = each.pinned or self._few(each, len(each.allocation))
        return each.allocation if stays and fits(each.allocation, self.spaces) else None

    def _node(self, each: PlacementRequest) -> Allocation | None:
        """Return a place on one node: where fewest that would stay are pushed out, best fit."""
        chunk = _place_of(each.request)
        most = chunk.gpus if each.request.placement is Placement.SCATTER else each.gpus
        if each.gpus > most:
            return None
        own = gpus_by_node(each.allocation)
        best: FreeNode | None = None
        best_key: tuple[int, bool, bool, int, str] | None = None
        for space in self.spaces:
            left = len(space.gpus) - each.gpus
            if left < 0:
                continue
            pushed = max(len(self.held.get(space.name, ())) - left, 0)
            later = not own and len(self.now[space.name].gpus) < each.gpus
            key = (pushed, later, space.name not in own, left, space.name)
            if (best_key is None or key < best_key) and self._room(each, chunk, space) >= each.gpus:
                best, best_key = space, key
        return None if best is None else self._give(each, {best.name: each.gpus})

    def _nodes(self, each: PlacementRequest) -> Allocation | None:
        """Return a place on several nodes: as few as will do, those that push out fewest first."""
        if each.request.placement is Placement.PACK:
            return None
        chunk = _place_of(each.request)
        own = gpus_by_node(each.allocation)
        rooms = {space.name: self._room(each, chunk, space) for space in self.spaces}
        if each.request.placement is Placement.SCATTER:
            rooms = {name: min(free, chunk.gpus) for name, free in rooms.items()}
        counts: dict[str, int] = {}
        left = each.gpus
        for name in sorted(
            (name for name, free in rooms.items() if free),
            key=lambda name: (-rooms[name], len(self.held.get(name, ())), name not in own, name),
        ):
            counts[name] = min(rooms[name], left)
            left -= counts[name]
            if not left:
                return self._give(each, counts) if self._few(each, len(counts)) else None
        return None

    def _few(self, each: PlacementRequest, nodes: int) -> bool:
        """Return whether a number may be spread over so many nodes: no more than it needs."""
        if self.spread or each.request.placement is Placement.SCATTER:
            return True
        return sum(self.sizes[: nodes - 1]) < each.gpus

    def _room(self, each: PlacementRequest, chunk: Chunk, space: FreeNode) -> int:
        if shortage(chunk, space, exclusive=each.request.exclusive):
            return 0
        return room(chunk, space) * chunk.gpus

    def _give(self, each: PlacementRequest, counts: Mapping[str, int]) -> Allocation | None:
        """Return so many GPUs of each node: its own or free ones, those of who stays last."""
        chunk = _place_of(each.request)
        owned = {share.node: set(share.gpu_indices) for share in each.allocation}
        chosen: dict[str, FreeNode] = {}
        for name, count in counts.items():
            held = self.held.get(name, set())
            liked = owned.get(name) or {gpu.index for gpu in self.now[name].gpus}
            ranked = sorted(
                (gpu.index in held, gpu.index not in liked, gpu.index)
                for gpu in usable_gpus(chunk, self.spaces[name])
            )
            taken = {index for _, _, index in ranked[:count]}
            gpus = tuple(gpu for gpu in self.spaces[name].gpus if gpu.index in taken)
            chosen[name] = structs.replace(self.spaces[name], gpus=gpus)
        return allocate_on(each.request, Spaces(chosen), counts)


def _place_of(request: Request) -> Chunk:
    return structs.replace(request.chunks[0], count=1)


def fits(allocation: Allocation, spaces: Spaces) -> bool:
    """Return whether all of an allocation is free."""
    return all(_still_free(share, spaces[share.node]) for share in allocation)


def _still_free(share: Share, space: FreeNode) -> bool:
    """Return whether nobody has taken of a share; on a closed node nobody can."""
    if not {gpu.index for gpu in space.gpus}.issuperset(share.gpu_indices):
        return False
    rest = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
    return not space.open or not shortage(rest, space, exclusive=share.exclusive)
