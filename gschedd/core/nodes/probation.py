"""Nodes that gsched drains itself: probed after a while, and resumed when a probe passes.

A probe is a start of a program that does nothing, by the way that jobs take, as an ordinary user.
A node that is suspected is probed at once: a probe that fails is proof, and the node is drained.
A drained node is probed again after a pause that doubles; one that passes resumes it, but only so
often a day, unless the node just lacked what jobs had used up. What an operator drains is left
alone.
"""

from typing import Final

from gsched.model.states import NodeState
from gsched.protocol.node import Probed
from gschedd.core.state import facts as f
from gschedd.core.state.records import Node, Probation
from gschedd.core.state.state import State

#: From a drain to the first probe, seconds; doubled by each one that fails and each resumption.
FIRST_PAUSE_S: Final = 30.0
#: The longest of these pauses, seconds.
LONGEST_PAUSE_S: Final = 3600.0
#: A probe that was not answered for so long is requested again, seconds. A node answers within
#: a minute, also where its launcher does not.
ANSWER_S: Final = 120.0
#: A node whose probe has passed is not probed again for so long, seconds.
REST_S: Final = 30.0
#: So many times within `DAY_S` a node is resumed without an operator.
MAX_RESUMPTIONS: Final = 6
DAY_S: Final = 86_400.0


def recent_resumptions(probation: Probation, now_s: float) -> int:
    """Return how often a node was resumed without an operator within a day."""
    return sum(at_s > now_s - DAY_S for at_s in probation.resumed_s)


def pause_s(probation: Probation, now_s: float) -> float:
    """Return how long the next probe of a drained node waits, seconds."""
    doublings = probation.failed + recent_resumptions(probation, now_s)
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(doublings, 30))


def probe_request(node: Node, now_s: float) -> f.NodeProbeRequested:
    """Return that a node is requested a probe now."""
    return f.NodeProbeRequested(
        at_s=now_s,
        node=node.name,
        request=node.probation.request + 1,
        due_s=now_s + ANSWER_S,
    )


def ask_if_suspected(node: Node, now_s: float) -> list[f.AnyFact]:
    """Return the request for a probe of a node that could not start a job, unless one is due.

    A node that is not connected is not asked: it may be the end of an attempt taken back after a
    loss that makes it suspected.
    """
    probation = node.probation
    if node.state is not NodeState.UP:
        return []
    if not node.probes or node.drained or probation.due_s > 0:
        return []
    if now_s < probation.passed_s + REST_S:
        return []
    return [probe_request(node, now_s)]


def drained(node: Node, reason: str, now_s: float, *, exhausted: bool = False) -> f.NodeDrained:
    """Return that gsched drains a node, and when it is probed."""
    due_s = now_s + pause_s(node.probation, now_s) if node.probes else 0.0
    return f.NodeDrained(
        at_s=now_s,
        node=node.name,
        reason=reason,
        by="gsched",
        automatic=True,
        exhausted=exhausted,
        due_s=due_s,
    )


def stay_drained(node: Node, reason: str, now_s: float) -> f.NodeDrained:
    """Return that gsched drains a node, and no probe resumes it."""
    return f.NodeDrained(at_s=now_s, node=node.name, reason=reason, by="gsched", automatic=True)


def next_probe_s(state: State) -> float | None:
    """Return when a node is to be probed next, seconds since the epoch."""
    times = [
        node.probation.due_s
        for node in (state.nodes[name] for name in state.on_probation)
        if node.state is NodeState.UP
    ]
    return min(times, default=None)


def due_probes(state: State, now_s: float) -> list[f.AnyFact]:
    """Return the requests for the probes that are due."""
    nodes = (state.nodes[name] for name in sorted(state.on_probation))
    return [
        probe_request(node, now_s)
        for node in nodes
        if node.state is NodeState.UP and node.probation.due_s <= now_s
    ]


def answered(node: Node, report: Probed, now_s: float, *, exhausted: bool) -> list[f.AnyFact]:
    """Return what follows from the answer to the last request for a probe.

    Args:
        exhausted: what the probe failed for is something that jobs use up.
    """
    if report.passed:
        return _passed(node, now_s)
    probed = f.NodeProbed(at_s=now_s, node=node.name, passed=False, message=report.message)
    if not node.drained:
        reason = f"it cannot start jobs: {report.message}"
        return [probed, drained(node, reason, now_s, exhausted=exhausted)]
    if not node.probation.drained:
        return [probed]
    failed = Probation(failed=node.probation.failed + 1, resumed_s=node.probation.resumed_s)
    due_s = now_s + pause_s(failed, now_s)
    return [
        f.NodeProbed(at_s=now_s, node=node.name, passed=False, message=report.message, due_s=due_s)
    ]


def _passed(node: Node, now_s: float) -> list[f.AnyFact]:
    probed = f.NodeProbed(at_s=now_s, node=node.name, passed=True, message="")
    probation = node.probation
    if not probation.drained:
        return [probed]
    if probation.exhausted or recent_resumptions(probation, now_s) < MAX_RESUMPTIONS:
        return [probed, f.NodeResumed(at_s=now_s, node=node.name, by="gsched", automatic=True)]
    reason = (
        f"{node.reason}; it was resumed {MAX_RESUMPTIONS} times within a day, so it stays "
        "drained until gnodes resume"
    )
    return [probed, stay_drained(node, reason, now_s)]
