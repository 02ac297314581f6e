"""How soon a training could be done at best: what an idle cluster could give it."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from gsched.model.resources import Request
from gsched.model.states import Placement
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.elastic import free_gpus
from gschedd.plan.layouts import fastest
from gschedd.plan.space import Spaces, emptied
from gschedd.plan.training import Fabric, Layout, Size

#: Numbers of places that are looked at one by one; of more only so many, evenly in proportion.
MAX_COUNTS: Final = 256


class Best(Struct, frozen=True, kw_only=True):
    """The shortest run that could be.

    Attributes:
        run_s: infinite where nothing here could hold it.
        gpus: on how many GPUs.
        most_gpus: how many it could have at all, of those that it would take.
    """

    run_s: float = math.inf
    gpus: int = 0
    most_gpus: int = 0


def shortest_run(request: Request, size: Size, *, state: State, settings: Settings) -> Best:
    """Return how long a training runs on the best that an idle cluster could give it.

    Nothing is faster than what is said here: GPUs are on as few nodes as can be, the connections
    between nodes are the best that there are, and a slow device counts only where it is needed. So
    what is refused by it is impossible.
    """
    if not request.gpus:
        return Best(run_s=_run_s(size, Layout(counts=(max(1, request.cpus),))))
    idle = Spaces({name: emptied(space) for name, space in state.spaces.items()})
    best = Best()
    for layout in _layouts(request, idle, gpu_speeds(state, settings.fabric), settings.fabric):
        run_s = _run_s(size, layout)
        most_gpus = max(best.most_gpus, layout.gpus)
        if run_s < best.run_s:
            best = Best(run_s=run_s, gpus=layout.gpus, most_gpus=most_gpus)
        else:
            best = Best(run_s=best.run_s, gpus=best.gpus, most_gpus=most_gpus)
    # a number that was passed over is faster by what it has more at most
    return Best(run_s=best.run_s / _ratio(request), gpus=best.gpus, most_gpus=best.most_gpus)


def gpu_speeds(state: State, fabric: Fabric) -> Mapping[str, float]:
    """Return how fast the fastest GPU of each node is, by node; nodes without any are left out."""
    return {
        name: fastest(node.inventory.gpus, fabric)
        for name, node in state.nodes.items()
        if node.inventory.gpus
    }


def _run_s(size: Size, layout: Layout) -> float:
    rate = size.speed.rate(layout)
    return size.work / rate if rate > 0 else math.inf


def _layouts(
    request: Request, idle: Spaces, speeds: Mapping[str, float], fabric: Fabric
) -> Iterator[Layout]:
    """Yield the best layout of each number of places, for each speed of the slowest device."""
    if len(request.chunks) != 1:
        yield Layout(counts=(request.gpus,), device=max(speeds.values(), default=1.0))
        return
    room = free_gpus(request, idle)
    each = request.chunks[0].gpus
    for device in sorted(set(speeds.values())):
        names = [name for name in room if speeds.get(name, 1.0) >= device and room[name]]
        names.sort(key=lambda name: (-room[name], name))
        for places in _numbers(request):
            counts = _counts(request.placement, [room[name] for name in names], places, each)
            if counts is None:
                break
            yield Layout(
                counts=counts,
                device=device,
                bandwidth_bytes_s=_bandwidth_bytes_s(fabric, names, counts, room),
            )


def _numbers(request: Request) -> Iterator[int]:
    """Yield the numbers of places to look at, ascending; the last one is among them."""
    least, most = request.places, max(request.places, request.places_max)
    ratio = _ratio(request)
    if ratio == 1:
        yield from range(least, most + 1)
        return
    numbers = {round(least * ratio**step) for step in range(MAX_COUNTS + 1)}
    yield from sorted({*numbers, most})


def _ratio(request: Request) -> float:
    """Return what is between two numbers of places that are looked at; 1: all of them are."""
    least, most = request.places, max(request.places, request.places_max)
    return 1.0 if most - least < MAX_COUNTS else (most / least) ** (1 / MAX_COUNTS)


def _counts(
    placement: Placement, room: list[int], places: int, each: int
) -> tuple[int, ...] | None:
    """Return the GPUs on each node, on as few nodes as can be; None if they have no room.

    Args:
        room: GPUs of each node, the most first.
        each: GPUs of a place.
    """
    if placement is Placement.PACK:
        return (places * each,) if room and room[0] >= places * each else None
    if placement is Placement.SCATTER:
        return (each,) * places if len(room) >= places and room[places - 1] >= each else None
    left = places * each
    counts: list[int] = []
    for gpus in room:
        taken = min(gpus // each * each, left)
        if taken:
            counts.append(taken)
            left -= taken
        if not left:
            return tuple(counts)
    return None


def _bandwidth_bytes_s(
    fabric: Fabric, names: list[str], counts: tuple[int, ...], room: Mapping[str, int]
) -> float:
    """Return the best bandwidth: also one node may be beaten by two, if it is slow inside."""
    between = max([fabric.between_bytes_s, *fabric.between.values()])
    if len(counts) > 1:
        return between
    inside = max(
        fabric.inside.get(name, fabric.inside_bytes_s) for name in names if room[name] >= counts[0]
    )
    return max(inside, between) if len(names) > 1 and counts[0] > 1 else inside
