"""Builders of free spaces and requests, random ones, and placement by trying everything."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from types import MappingProxyType

from hypothesis import strategies as st

from gsched.model.resources import Chunk, Gpu, Request
from gsched.model.states import Placement
from gschedd.plan.space import FreeNode, Spaces

NO_GENERIC: Mapping[str, int] = MappingProxyType({})


def space(
    name: str = "n1",
    *,
    cpus: int = 4,
    memory_bytes: int = 0,
    gpu_types: tuple[str, ...] = (),
    features: Iterable[str] = (),
    generic: Mapping[str, int] = NO_GENERIC,
    **changes: object,
) -> FreeNode:
    """Return an idle node; ``gpu_types`` has one name for each GPU."""
    gpus = tuple(Gpu(index=index, type=kind) for index, kind in enumerate(gpu_types))
    counted = tuple(sorted(generic.items()))
    fields: dict[str, object] = {
        "name": name,
        "cpus": cpus,
        "memory_bytes": memory_bytes,
        "gpus": gpus,
        "generic": counted,
        "total_cpus": cpus,
        "total_memory_bytes": memory_bytes,
        "total_gpus": len(gpus),
        "total_generic": counted,
        "all_gpus": gpus,
        "features": frozenset({name, *features, *filter(None, gpu_types)}),
        **changes,
    }
    return FreeNode(**fields)  # type: ignore[arg-type] # any of its fields may be changed


def spaces(*given: FreeNode) -> Spaces:
    """Return nodes by name."""
    return Spaces({each.name: each for each in given})


@cache  # to build a strategy takes as long as to draw from it
def node_spaces(name: str, largest: int = 4) -> st.SearchStrategy[FreeNode]:
    """Return random idle nodes."""
    return st.builds(
        space,
        st.just(name),
        cpus=st.integers(1, largest),
        memory_bytes=st.integers(0, largest),
        gpu_types=st.lists(st.sampled_from(["", "a", "b"]), max_size=3).map(tuple),
        features=st.sets(st.sampled_from(["red", "blue"])),
        generic=st.dictionaries(st.just("licence"), st.integers(1, 2)),
        owners=st.sampled_from([0, 0, 0, 1]),
        open=st.sampled_from([True, True, True, False]),
    )


@cache
def chunks(largest: int = 3, count: int = 3) -> st.SearchStrategy[Chunk]:
    """Return random chunks."""
    return st.builds(
        Chunk,
        count=st.integers(1, count),
        cpus=st.integers(1, largest),
        gpus=st.sampled_from([0, 0, 1, 2]),
        gpu_type=st.sampled_from(["", "", "a", "b"]),
        memory_bytes=st.sampled_from([0, 0, 1, 2]),
        features=st.sampled_from([(), (), ("red",), ("blue",)]),
        generic=st.sampled_from([(), (), (("licence", 1),)]),
    ).map(_without_idle_type)


def _without_idle_type(chunk: Chunk) -> Chunk:
    """A type without GPUs says nothing."""
    if chunk.gpus:
        return chunk
    fields = {name: getattr(chunk, name) for name in chunk.__struct_fields__}
    return Chunk(**{**fields, "gpu_type": ""})


@cache
def requests(largest: int = 3, places: int = 4) -> st.SearchStrategy[Request]:
    """Return random requests of at most ``places`` places."""
    return st.builds(
        Request,
        chunks=st.lists(chunks(largest), min_size=1, max_size=3).map(tuple),
        placement=st.sampled_from(list(Placement)),
        exclusive=st.sampled_from([False, False, True]),
    ).filter(lambda request: request.places <= places)


def fits_by_trying(request: Request, nodes: Spaces) -> bool:
    """Return whether any way to lay the places over the nodes is possible, trying all of them."""
    places = [chunk for chunk in request.chunks for _ in range(chunk.count)]
    names = [each.name for each in nodes]
    arrangement_allowed: dict[Placement, Callable[[tuple[str, ...]], bool]] = {
        Placement.SCATTER: lambda chosen: len(set(chosen)) == len(chosen),
        Placement.PACK: lambda chosen: len(set(chosen)) == 1,
        Placement.FREE: lambda chosen: True,
    }
    return any(
        arrangement_allowed[request.placement](chosen)
        and all(
            _holds(nodes[name], [p for p, at in zip(places, chosen, strict=True) if at == name],
                   exclusive=request.exclusive)
            for name in set(chosen)
        )
        for chosen in product(names, repeat=len(places))
    )  # fmt: skip


def _holds(node: FreeNode, places: list[Chunk], *, exclusive: bool) -> bool:
    """Return whether one node can take all of these places, counted from first principles."""
    if not node.open or node.exclusive or (exclusive and node.owners):
        return False
    if sum(place.cpus for place in places) > node.cpus:
        return False
    if sum(place.memory_bytes for place in places) > node.memory_bytes:
        return False
    if any(word not in node.features for place in places for word in place.features):
        return False
    wanted = {name for place in places for name, _ in place.generic}
    for name in wanted:
        if sum(dict(place.generic).get(name, 0) for place in places) > dict(node.generic).get(
            name, 0
        ):
            return False
    if sum(place.gpus for place in places) > len(node.gpus):
        return False
    return all(
        sum(place.gpus for place in places if place.gpu_type == kind)
        <= sum(gpu.type == kind for gpu in node.gpus)
        for kind in {place.gpu_type for place in places if place.gpu_type}
    )
