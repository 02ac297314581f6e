"""Nodes that a job may not have, as a window of maintenance begins there before its walltime ends.

A job is started only where its walltime ends before the window begins; one without a walltime could
run into any window to come, as nothing ends it, so it starts after them or on other nodes. The
planned run time of a kind of jobs is no limit and does not count here.
"""

from collections.abc import Iterable, Mapping

from msgspec import structs

from gsched.model.window import NodeWindow
from gschedd.plan.moments import moment
from gschedd.plan.space import Spaces
from gschedd.plan.words import Reason

#: Windows by node; nodes without one are missing.
Windows = Mapping[str, tuple[NodeWindow, ...]]


def barring(
    windows: Windows, node: str, start_s: float, walltime_s: float | None
) -> NodeWindow | None:
    """Return the window that keeps a job from starting on a node then; None: none does."""
    found = (each for each in windows.get(node, ()) if each.bars(start_s, walltime_s))
    return min(found, key=lambda window: window.from_s, default=None)


def barred(windows: Windows, start_s: float, walltime_s: float | None) -> frozenset[str]:
    """Return the nodes on which a job may not start then."""
    return frozenset(
        node for node in windows if barring(windows, node, start_s, walltime_s) is not None
    )


def without(spaces: Spaces, closed: Iterable[str]) -> Spaces:
    """Return the same free resources with some nodes closed."""
    left = spaces.copy()
    for node in closed:
        if node in left:
            left.put(structs.replace(left[node], open=False))
    return left


def window_reason(
    windows: Windows, closed: Iterable[str], start_s: float, walltime_s: float | None
) -> Reason:
    """Return why a job that would fit does not start: it would run into a window.

    A window without a number is of power: a node that is powered down, or not up yet.
    """
    found = [
        (window, node)
        for node in closed
        if (window := barring(windows, node, start_s, walltime_s)) is not None
    ]
    window, node = min(found, key=lambda each: (each[0].from_s, each[1]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    because = f": {window.reason}" if window.reason else ""
    if not window.number:
        short = f"node {window.reason}"
        return Reason(f"{node}{more} is {window.reason}: up by {moment(window.to_s)}", short)
    if start_s >= window.from_s:
        words = f"maintenance of {node}{more} until {moment(window.to_s)}{because}"
        return Reason(words, "maintenance")
    limit = "it has no walltime" if walltime_s is None else "its walltime does not end before"
    words = (
        f"maintenance of {node}{more} from {moment(window.from_s)} to {moment(window.to_s)}"
        f"{because}; {limit}"
    )
    return Reason(words, "maintenance")
