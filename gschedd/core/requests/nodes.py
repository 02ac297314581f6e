"""Drain, resume and give up a node: the facts, or a refusal in words. For operators."""

from gsched.errors import (
    BadStateError,
    InvalidRequestError,
    NotPermittedError,
    UnknownNodeError,
)
from gsched.model.ids import short_job_id
from gsched.model.states import NodeState
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_parts
from gschedd.core.state.records import Node
from gschedd.core.state.state import State


def operated_node(state: State, command: c.ActOnNode) -> Node:
    """Return the node if the caller may do something to it.

    Raises:
        NotPermittedError: the caller is no operator.
        UnknownNodeError: there is no such node.
    """
    if not command.caller.operator:
        raise NotPermittedError(
            "only operators may change nodes", hint="ask an operator to do this"
        )
    node = state.nodes.get(command.node)
    if node is None:
        known = ", ".join(sorted(state.nodes)[:10]) or "none has registered"
        raise UnknownNodeError(f"unknown node {command.node!r}", hint=f"nodes here: {known}")
    return node


def drain_node(node: Node, asked: a.DrainNode, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the drain.

    Raises:
        InvalidRequestError: no reason given: the next operator needs one.
    """
    if not asked.reason.strip():
        raise InvalidRequestError("a drain needs a reason", hint="give a reason: -m REASON")
    return [
        f.NodeDrained(
            at_s=now_s,
            node=node.name,
            reason=asked.reason.strip(),
            by=by,
            migrate=asked.migrate,
        )
    ]


def resume_node(state: State, node: Node, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the end of a drain.

    Raises:
        BadStateError: a job with a damaged record may own something there.
    """
    if not node.drained:
        return []
    job = state.damaged_on(node.name)
    if job:
        raise BadStateError(
            f"job {short_job_id(job)} may run on {node.name} or own its GPUs, and its record is "
            "damaged",
            hint=f"give it up first: gdel {short_job_id(job)}",
        )
    return [f.NodeResumed(at_s=now_s, node=node.name, by=by)]


def confirm_dead(state: State, node: Node, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the end of every part that ran on a node of which an operator says it is dead.

    Raises:
        BadStateError: the node is connected, so it is not dead.
    """
    if node.state is NodeState.UP:
        raise BadStateError(
            f"node {node.name} is connected, so it is not dead", hint="use gnodes drain"
        )
    message = f"{by} confirmed that {node.name} is dead"
    return lost_parts(state, node.name, now_s=now_s, message=message)
