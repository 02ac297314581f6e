"""Requests that leave open how many places they get, and allocations of a number that is chosen."""

from collections.abc import Mapping

from msgspec import structs

from gsched.model.resources import Allocation, Request, Share
from gschedd.plan.fit import NoFit, place
from gschedd.plan.room import room, share_of, shortage
from gschedd.plan.space import Spaces


def is_elastic(request: Request) -> bool:
    """Return whether the number of places is left open."""
    return request.places_max > request.places


def at_count(request: Request, places: int) -> Request:
    """Return an elastic request with the number of places fixed.

    Raises:
        ValueError: the request does not allow that number.
    """
    if not request.places <= places <= max(request.places, request.places_max):
        raise ValueError(f"{places} places for {request.places} to {request.places_max} asked")
    if places == request.places:
        return structs.replace(request, places_max=0)
    chunk = structs.replace(request.chunks[0], count=places)
    return structs.replace(request, chunks=(chunk,), places_max=0)


def free_gpus(request: Request, spaces: Spaces) -> dict[str, int]:
    """Return how many GPUs of each node a request can use: those of nodes that have any.

    A place may need more than a GPU: where CPUs or memory run out, GPUs that are idle do not count.
    For a request with one chunk.
    """
    chunk = structs.replace(request.chunks[0], count=1)
    found: dict[str, int] = {}
    for space in spaces:
        if space.gpus and not shortage(chunk, space, exclusive=request.exclusive):
            found[space.name] = room(chunk, space) * chunk.gpus
    return found


def allocate_on(request: Request, spaces: Spaces, gpus: Mapping[str, int]) -> Allocation | None:
    """Return an allocation of exactly so many GPUs on each node, or None if it is not free.

    Args:
        request: with one chunk, whose places have one GPU or more.
        gpus: by node, multiples of the chunk's; rank order is that of the mapping.
    """
    chunk = structs.replace(request.chunks[0], count=1)
    shares: list[Share] = []
    for name, count in gpus.items():
        copies, rest = divmod(count, chunk.gpus)
        if rest or copies < 1 or name not in spaces:
            return None
        space = spaces[name]
        if shortage(chunk, space, exclusive=request.exclusive) or room(chunk, space) < copies:
            return None
        shares.append(share_of(chunk, space, exclusive=request.exclusive, copies=copies))
    return tuple(shares)


def allocate(request: Request, spaces: Spaces, places: int) -> Allocation | None:
    """Return an allocation of so many places by best fit, or None if there is none."""
    found = place(at_count(request, places), spaces)
    return None if isinstance(found, NoFit) else found
