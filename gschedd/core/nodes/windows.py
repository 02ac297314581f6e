"""Windows of maintenance: ordered and cancelled by operators, begun and ended by time."""

from typing import Final

from gsched.errors import BadStateError, InvalidRequestError
from gsched.model.window import NodeWindow
from gsched.protocol import actions as a
from gschedd.core.state import facts as f
from gschedd.core.state.records import Node
from gschedd.core.state.state import State
from gschedd.plan.moments import moment

#: Windows that a node has at most.
MAX_WINDOWS: Final = 32
#: Windows that begin or end in one step at most.
MAX_DUE: Final = 64
#: How far in the future a window may lie, seconds: a slip of the year is no plan.
FARTHEST_S: Final = 5 * 365 * 86_400.0


def change_windows(
    state: State, node: Node, action: a.MaintainNode, by: str, now_s: float
) -> list[f.AnyFact]:
    """Return that a window is ordered on a node, or cancelled.

    Raises:
        InvalidRequestError: the times are no window.
        BadStateError: it overlaps another window, there are too many, or there is no such window.
    """
    if action.cancel:
        if not any(window.number == action.cancel for window in node.windows):
            raise BadStateError(
                f"node {node.name} has no maintenance {action.cancel}",
                hint="gnodes maintenance lists them",
            )
        return [f.NodeWindowEnded(at_s=now_s, node=node.name, number=action.cancel, by=by)]
    _check(node, action, now_s)
    window = NodeWindow(
        number=_number(state, action, by),
        from_s=action.from_s,
        to_s=action.to_s,
        reason=action.reason.strip(),
        by=by,
    )
    return [f.NodeWindowAdded(at_s=now_s, node=node.name, window=window)]


def _check(node: Node, action: a.MaintainNode, now_s: float) -> None:
    if action.to_s <= action.from_s:
        raise InvalidRequestError(
            f"the maintenance ends at {moment(action.to_s)}, which is not after its beginning at "
            f"{moment(action.from_s)}",
            hint="give a later --to",
        )
    if action.to_s <= now_s:
        raise InvalidRequestError(
            f"the maintenance would have ended at {moment(action.to_s)}", hint="give a later --to"
        )
    if action.from_s > now_s + FARTHEST_S:
        raise InvalidRequestError(
            f"the maintenance would begin at {moment(action.from_s)}, more than five years from now"
        )
    for other in node.windows:
        if other.from_s < action.to_s and action.from_s < other.to_s:
            raise BadStateError(
                f"node {node.name} has maintenance {other.number} from {moment(other.from_s)} to "
                f"{moment(other.to_s)}, which overlaps",
                hint=f"cancel it first: gnodes maintenance --cancel {other.number}",
            )
    if len(node.windows) >= MAX_WINDOWS:
        raise BadStateError(f"node {node.name} has {MAX_WINDOWS} windows of maintenance already")


def _number(state: State, action: a.MaintainNode, by: str) -> int:
    """Return the number of a window: that of the same order on another node, or the next one."""
    order = (action.from_s, action.to_s, action.reason.strip(), by)
    return state.windowed.number_of(order) or state.windowed.highest + 1


def due_windows(state: State, now_s: float) -> list[f.AnyFact]:
    """Return which windows have begun or are over; of many the first, and the next ones at once.

    Plans go by the times of windows, so it is no matter when the others follow.
    """
    found: list[f.AnyFact] = []
    for name in state.windowed.due(now_s, MAX_DUE):
        for window in state.nodes[name].windows:
            if window.to_s <= now_s:
                found.append(f.NodeWindowEnded(at_s=now_s, node=name, number=window.number))
            elif window.from_s <= now_s and not window.begun:
                found.append(f.NodeWindowBegun(at_s=now_s, node=name, number=window.number))
    return found


def longer_jobs(state: State, node: str, from_s: float) -> tuple[int, ...]:
    """Return the jobs on a node that may still run when a window begins there."""
    found = []
    for job in state.by_node.get(node, {}).values():
        limit_s, started_s = job.spec.walltime_s, job.current_attempt.started_s
        if limit_s is None or started_s is None or started_s + limit_s > from_s:
            found.append(job.id)
    return tuple(sorted(found))


def window_words(node: Node) -> str:
    """Return the window that is now or comes next, in words; empty: there is none."""
    if not node.windows:
        return ""
    window = node.windows[0]
    because = f": {window.reason}" if window.reason else ""
    if window.begun:
        return f"maintenance until {moment(window.to_s)}{because}"
    return f"maintenance from {moment(window.from_s)} to {moment(window.to_s)}{because}"
