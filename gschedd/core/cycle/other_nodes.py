"""A job that failed to start goes to other nodes first, whatever the policy has planned.

Nodes on which it failed are its last choice, not forbidden: where nothing else is free for it, it
is tried there again. Policies need not know of it, since such starts are rare; a reservation that
a policy has made may be later by one such start.
"""

from collections.abc import Sequence

from msgspec import structs

from gsched.model.resources import Request
from gschedd.core.state.state import State
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.snapshot import Start
from gschedd.plan.space import Spaces


def elsewhere(state: State, starts: Sequence[Start]) -> tuple[Start, ...]:
    """Return accepted starts, those on nodes that their jobs avoid elsewhere if there is room.

    Args:
        state: as it is before the starts.
        starts: all of them, accepted together.
    """
    avoiding = {start.job for start in starts if _is_avoided(state, start)}
    if not avoiding:
        return tuple(starts)
    free = Spaces(state.spaces)
    for start in starts:
        free.take(start.allocation)
    return tuple(_moved(state, start, free) if start.job in avoiding else start for start in starts)


def _is_avoided(state: State, start: Start) -> bool:
    avoid = state.jobs[start.job].avoid
    return bool(avoid) and any(share.node in avoid for share in start.allocation)


def _moved(state: State, start: Start, free: Spaces) -> Start:
    """Return a start elsewhere, and take it from ``free``; or the same one."""
    avoid = [name for name in state.jobs[start.job].avoid if name in free]
    free.give(start.allocation)
    others = free.copy()
    for name in avoid:
        others.put(structs.replace(others[name], open=False))
    found = place(_asked(start), others)
    if isinstance(found, NoFit):
        free.take(start.allocation)
        return start
    free.take(found)
    why = f"{start.why}; not on {', '.join(avoid)}, where it failed to start"
    return structs.replace(start, allocation=found, why=why)


def _asked(start: Start) -> Request:
    request = start.job_class.request
    places = sum(share.slots for share in start.allocation)
    return at_count(request, places) if is_elastic(request) else request
