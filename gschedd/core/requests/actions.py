"""What each action comes to: the one place that tells actions apart."""

from typing import assert_never

from gsched.errors import (
    BadStateError,
    InvalidRequestError,
    UnknownJobError,
    UnknownNodeError,
)
from gsched.model.ids import short_job_id
from gsched.model.states import NodeState
from gsched.protocol import actions as a
from gschedd.core.nodes import admission, power, windows
from gschedd.core.requests import commands as c
from gschedd.core.requests import jobs
from gschedd.core.requests.access import own_job
from gschedd.core.requests.alter import alter_job
from gschedd.core.requests.arrays import act_on_array
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.migrate import migrate_job
from gschedd.core.requests.reservations import change_reservation
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_parts
from gschedd.core.state.records import Node
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.moments import moment


def act(
    state: State,
    settings: Settings,
    command: c.ActOnJob | c.ActOnNode | c.ChangeReservation,
    now_s: float,
) -> list[f.AnyFact]:
    """Return what a command comes to.

    Raises:
        GschedError: it is refused; the message says why.
    """
    match command:
        case c.ActOnJob():
            return act_on_job(state, settings, command, now_s)
        case c.ActOnNode():
            return act_on_node(state, settings, command, now_s)
        case c.ChangeReservation():
            return change_reservation(state, settings, command, now_s)
        case _:
            assert_never(command)


def act_on_job(
    state: State, settings: Settings, command: c.ActOnJob, now_s: float
) -> list[f.AnyFact]:
    """Return what an action comes to for one job.

    Raises:
        GschedError: it is refused; the message says why.
    """
    of_array = act_on_array(state, settings, command, now_s, act_on_job)
    if of_array is not None:
        return of_array
    if command.elements:
        job = own_job(state, settings, command)
        raise UnknownJobError(f"Unknown Job Id: job {job.id} is not an array")
    match command.action:
        case a.DeleteJob() as action:
            return jobs.delete_job(state, settings, command, action, now_s)
        case a.HoldJob() as action:
            return jobs.hold_job(state, settings, command, action, now_s)
        case a.ReleaseJob() as action:
            return jobs.release_job(state, settings, command, action, now_s)
        case a.SignalJob() as action:
            return jobs.signal_job(state, settings, command, action, now_s)
        case a.RerunJob() as action:
            return jobs.rerun_job(state, settings, command, action, now_s)
        case a.MigrateJob() as action:
            return migrate_job(state, settings, command, action, now_s)
        case a.AlterJob() as action:
            return alter_job(state, settings, command, action, now_s)
        case _:
            assert_never(command.action)


def act_on_node(
    state: State, settings: Settings, command: c.ActOnNode, now_s: float
) -> list[f.AnyFact]:
    """Return what an action comes to for one node.

    Raises:
        GschedError: it is refused; the message says why.
    """
    node, by = _operated_node(state, command), command.caller.user
    match command.action:
        case a.DrainNode() as action:
            return _drain(node, action, by, now_s)
        case a.ResumeNode():
            return _resume(state, node, by, now_s)
        case a.ConfirmDead():
            return _confirm_dead(state, node, by, now_s)
        case a.MaintainNode() as action:
            return windows.change_windows(state, node, action, by, now_s)
        case a.PowerNode() as action:
            return power.change_power(state, settings, node, by, now_s, up=action.up)
        case a.RemoveNode():
            return admission.remove_node(state, node, by, now_s)
        case a.ReplaceNode() as action:
            return admission.replace_node(state, node, action, by, now_s)
        case _:
            assert_never(command.action)


def _operated_node(state: State, command: c.ActOnNode) -> Node:
    """Return the node if the caller may do something to it.

    Raises:
        NotPermittedError: the caller is no operator.
        UnknownNodeError: there is no such node.
    """
    authorize(command.caller, Verb.CHANGE_NODES)
    node = state.nodes.get(command.node)
    if node is None:
        known = ", ".join(sorted(state.nodes)[:10]) or "none has registered"
        raise UnknownNodeError(f"unknown node {command.node!r}", hint=f"nodes here: {known}")
    return node


def _drain(node: Node, action: a.DrainNode, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the drain.

    Raises:
        InvalidRequestError: no reason given: the next operator needs one.
    """
    if not action.reason.strip():
        raise InvalidRequestError("a drain needs a reason", hint="give a reason: -m REASON")
    return [
        f.NodeDrained(
            at_s=now_s,
            node=node.name,
            reason=action.reason.strip(),
            by=by,
            migrate=action.migrate,
        )
    ]


def _resume(state: State, node: Node, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the end of a drain.

    Raises:
        BadStateError: a maintenance has begun, or a job with a damaged record may own something
            there.
    """
    if not node.drained:
        ordered = [window for window in node.windows if window.begun and window.number]
        if ordered:
            raise BadStateError(
                f"node {node.name} is in maintenance {ordered[0].number} until "
                f"{moment(ordered[0].to_s)}",
                hint=f"to end it: gnodes maintenance --cancel {ordered[0].number}",
            )
        return []
    job = state.damaged_on(node.name)
    if job:
        raise BadStateError(
            f"job {short_job_id(job)} may run on {node.name} or own its GPUs, and its record is "
            "damaged",
            hint=f"give it up first: gdel {short_job_id(job)}",
        )
    return [f.NodeResumed(at_s=now_s, node=node.name, by=by)]


def _confirm_dead(state: State, node: Node, by: str, now_s: float) -> list[f.AnyFact]:
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
