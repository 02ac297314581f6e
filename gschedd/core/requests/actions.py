"""What each action comes to: the one place that tells actions apart."""

from typing import assert_never

from gsched.errors import UnknownJobError
from gsched.protocol import actions as a
from gschedd.core.nodes import admission
from gschedd.core.requests import commands as c
from gschedd.core.requests import jobs, nodes
from gschedd.core.requests.access import own_job
from gschedd.core.requests.alter import alter_job
from gschedd.core.requests.arrays import act_on_array, array_meant
from gschedd.core.requests.migrate import migrate_job
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State


def act_on_job(
    state: State, settings: Settings, command: c.ActOnJob, now_s: float
) -> list[f.AnyFact]:
    """Return what an action comes to for one job.

    Raises:
        GschedError: it is refused; the message says why.
    """
    if array_meant(state, command) is not None:
        return act_on_array(state, settings, command, now_s, act_on_job)
    if command.elements:
        job = own_job(state, settings, command)
        raise UnknownJobError(f"Unknown Job Id: job {job.id} is not an array")
    match command.asked:
        case a.DeleteJob() as asked:
            return jobs.delete_job(state, settings, command, asked, now_s)
        case a.HoldJob() as asked:
            return jobs.hold_job(state, settings, command, asked, now_s)
        case a.ReleaseJob() as asked:
            return jobs.release_job(state, settings, command, asked, now_s)
        case a.SignalJob() as asked:
            return jobs.signal_job(state, settings, command, asked, now_s)
        case a.RerunJob() as asked:
            return jobs.rerun_job(state, settings, command, asked, now_s)
        case a.MigrateJob() as asked:
            return migrate_job(state, settings, command, asked, now_s)
        case a.AlterJob() as asked:
            return alter_job(state, settings, command, asked, now_s)
        case _:
            assert_never(command.asked)


def act_on_node(state: State, command: c.ActOnNode, now_s: float) -> list[f.AnyFact]:
    """Return what an action comes to for one node.

    Raises:
        GschedError: it is refused; the message says why.
    """
    node, by = nodes.operated_node(state, command), command.caller.user
    match command.asked:
        case a.DrainNode() as asked:
            return nodes.drain_node(node, asked, by, now_s)
        case a.ResumeNode():
            return nodes.resume_node(state, node, by, now_s)
        case a.ConfirmDead():
            return nodes.confirm_dead(state, node, by, now_s)
        case a.RemoveNode():
            return admission.remove_node(state, node, by, now_s)
        case a.ReplaceNode() as asked:
            return admission.replace_node(state, node, asked, by, now_s)
        case _:
            assert_never(command.asked)
