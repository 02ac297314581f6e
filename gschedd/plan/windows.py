"""Nodes that a job may not have, as a window begins there before its walltime ends.

A window is of maintenance, of power, or of a reservation, which may keep a part of the node only.
A job is started only where its walltime ends before the window begins; one without a walltime could
run into any window to come, as nothing ends it, so it starts after them or on other nodes. The
planned run time of a kind of jobs is no limit and does not count here.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Share
from gsched.model.window import NodeWindow
from gschedd.plan.moments import moment
from gschedd.plan.rests import with_rests
from gschedd.plan.space import FreeNode, Spaces, kept_back
from gschedd.plan.words import Reason

#: Windows by node; nodes without one are missing.
Windows = Mapping[str, tuple[NodeWindow, ...]]
#: What a job may not have: a node, by its name, or a part of one.
Closed = str | Share


class ReservedWindow(Struct, frozen=True, kw_only=True):
    """A time in which a reservation holds ``shares``; an exclusive one is the whole node."""

    name: str
    from_s: float
    to_s: float
    shares: Allocation


def window_end_s(reserved: Iterable[ReservedWindow], name: str, at_s: float) -> float | None:
    """Return when the window of a reservation ends that is at a time; None: there is none."""
    return next((w.to_s for w in reserved if w.name == name and w.from_s <= at_s < w.to_s), None)


def holds_within(window: ReservedWindow, now_s: float, walltime_s: float | None) -> bool:
    """Return whether a job can still start in a window and end in it."""
    return max(now_s, window.from_s) + (walltime_s or 0.0) <= window.to_s


def barring(
    windows: Windows, node: str, start_s: float, walltime_s: float | None
) -> NodeWindow | None:
    """Return the window that keeps a job from starting on a node then; None: none does."""
    found = (each for each in windows.get(node, ()) if each.bars(start_s, walltime_s))
    return min(found, key=lambda window: window.from_s, default=None)


def barred(windows: Windows, start_s: float, walltime_s: float | None) -> frozenset[Closed]:
    """Return the nodes, and parts of nodes, on which a job may not start then."""
    return frozenset(
        node if window.share is None else window.share
        for node, of_node in with_rests(windows.items())
        for window in of_node
        if window.bars(start_s, walltime_s)
    )


def without(spaces: Spaces, closed: Iterable[Closed]) -> Spaces:
    """Return the same free resources without some nodes and parts of nodes."""
    left = spaces.copy()
    for each in with_rests(closed):
        node = each if isinstance(each, str) else each.node
        if node in left:
            left.put(narrowed(left[node], each))
    return left


def narrowed(space: FreeNode, closed: Closed) -> FreeNode:
    """Return a node without a part, or closed."""
    if isinstance(closed, str):
        return structs.replace(space, open=False)
    return _without_part(space, closed)


def _without_part(space: FreeNode, part: Share) -> FreeNode:
    """Return a node without a part, as if it did not have the free GPUs of that."""
    less = kept_back(space, (), (part,))
    gone = {gpu.index for gpu in space.gpus if gpu.index in part.gpu_indices}
    gpus = tuple(gpu for gpu in space.all_gpus if gpu.index not in gone)
    return structs.replace(less, all_gpus=gpus)


def window_reason(
    windows: Windows, closed: Iterable[str], start_s: float, walltime_s: float | None
) -> Reason:
    """Return why a job that would fit does not start: it would run into a window.

    A window without a number is of a reservation, or of power: a node that is not up yet.
    """
    found = [
        (window, node)
        for node in closed
        if (window := barring(windows, node, start_s, walltime_s)) is not None
    ]
    window, node = min(found, key=lambda each: (each[0].from_s, each[1]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    because = f": {window.reason}" if window.reason else ""
    if not window.number and not window.reservation:
        short = f"node {window.reason}"
        return Reason(f"{node}{more} is {window.reason}: up by {moment(window.to_s)}", short)
    what = f"reservation {window.reservation}" if window.reservation else "maintenance"
    if start_s >= window.from_s:
        words = f"{what} of {node}{more} until {moment(window.to_s)}{because}"
        return Reason(words, what)
    limit = "it has no walltime" if walltime_s is None else "its walltime does not end before"
    words = (
        f"{what} of {node}{more} from {moment(window.from_s)} to {moment(window.to_s)}"
        f"{because}; {limit}"
    )
    return Reason(words, what)
