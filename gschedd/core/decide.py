"""Commands into facts, or a refusal in words. Nothing is changed here."""

from gsched.errors import (
    BadStateError,
    InvalidRequestError,
    NotPermittedError,
    UnknownJobError,
    UnknownNodeError,
)
from gsched.model.dependency import format_dependencies
from gsched.model.ids import format_job_id, short_job_id
from gsched.model.job import ExitRecord, Outcome
from gsched.model.resources import Usage
from gsched.model.signals import MAX_SIGNAL
from gsched.model.states import (
    HoldKind,
    JobState,
    NodeState,
    OutcomeKind,
    PartState,
    StopReason,
)
from gsched.protocol import actions as a
from gschedd.core import commands as c
from gschedd.core import facts as f
from gschedd.core.requests.submit import checked_grace, checked_holds
from gschedd.core.settings import Caller, Settings
from gschedd.core.state import Job, Node, State


def own_job(state: State, settings: Settings, command: c.ActOnJob) -> Job:
    """Return the job if the caller may change it.

    Raises:
        UnknownJobError: no such job, or it is done.
        NotPermittedError: it is somebody else's.
    """
    job = state.jobs.get(command.job)
    if job is None:
        name = format_job_id(command.job, settings.server)
        if command.job in state.damaged:
            raise BadStateError(
                f"the record of job {name} in the head's database is damaged",
                hint="an operator can give the job up with gdel, or restore a backup",
            )
        if command.job in state.unstored.finished:
            raise BadStateError(f"job {name} has already finished")
        raise UnknownJobError(f"Unknown Job Id {name}", hint="see gstat for jobs, ghist for past")
    authorize(command.caller, job)
    return job


def authorize(caller: Caller, job: Job) -> None:
    """Refuse who is neither the job's owner nor an operator.

    Raises:
        NotPermittedError: the caller is neither.
    """
    owner = job.spec.owner
    if caller.owns(owner) or caller.operator:
        return
    if caller.uid != owner.uid:
        why = ""
    elif caller.is_nameless:
        why = f", and the head's machine knows no user with your uid {caller.uid} now"
    else:
        why = f", who had uid {caller.uid} before you ({caller.user})"
    raise NotPermittedError(
        f"job {short_job_id(job.id)} belongs to {owner.user}{why}",
        hint="its owner or an operator can do this",
    )


def delete_job(
    state: State, settings: Settings, command: c.ActOnJob, asked: a.DeleteJob, now_s: float
) -> list[f.AnyFact]:
    """Return what deleting means: an end at once, or a stop of what runs."""
    if command.job in state.damaged and command.caller.operator:
        return [
            f.JobDiscarded(
                at_s=now_s,
                job=command.job,
                by=command.caller.user,
                attempts=dict(state.damaged[command.job]),
            )
        ]
    job = own_job(state, settings, command)
    by = command.caller.user
    if job.attempt is None:
        why = f": {asked.message}" if asked.message else ""
        when = "while it migrated" if job.move is not None else "before it started"
        message = f"cancelled by {by} {when}{why}"
        outcome = Outcome(kind=OutcomeKind.CANCELLED, message=message)
        return [f.JobEnded(at_s=now_s, job=job.id, outcome=outcome, ended_s=now_s, by=by)]
    grace_s = job.spec.grace_s if asked.grace_s is None else checked_grace(asked.grace_s)
    return [
        f.StopRequested(
            at_s=now_s,
            job=job.id,
            attempt=job.attempt.number,
            reason=StopReason.DELETE,
            grace_s=grace_s,
            by=by,
            message=asked.message,
        )
    ]


def hold_job(
    state: State, settings: Settings, command: c.ActOnJob, asked: a.HoldJob, now_s: float
) -> list[f.AnyFact]:
    """Return the hold; a running job is held when it is requeued.

    Raises:
        NotPermittedError: the caller may not set this kind of hold.
    """
    holds = _holds(asked, command.caller)
    job = own_job(state, settings, command)
    if set(holds) <= set(job.holds):
        return []
    return [f.JobHeld(at_s=now_s, job=job.id, holds=holds, by=command.caller.user)]


def release_job(
    state: State, settings: Settings, command: c.ActOnJob, asked: a.ReleaseJob, now_s: float
) -> list[f.AnyFact]:
    """Return the release.

    Raises:
        BadStateError: the job is not held, or held by others.
        NotPermittedError: the caller may not release this kind of hold.
    """
    holds = _holds(asked, command.caller)
    job = own_job(state, settings, command)
    taken = tuple(hold for hold in holds if hold in job.holds)
    if not taken:
        if not job.holds:
            raise BadStateError(f"job {short_job_id(job.id)} is not held")
        kinds = ", ".join(job.holds)
        because = f": {job.hold_reason}" if job.hold_reason else ""
        if set(job.holds) == {HoldKind.DEPENDENCY}:
            waits = format_dependencies(job.spec.depends)
            raise BadStateError(
                f"job {short_job_id(job.id)} waits for its dependencies: {waits}",
                hint=f"remove them with galter -W depend= {short_job_id(job.id)}",
            )
        hint = f"release it with -h {''.join(kind[0] for kind in job.holds)}"
        if not command.caller.operator:
            hint = "only an operator can release it"  # a user's own hold would have been taken off
        raise BadStateError(f"job {short_job_id(job.id)} is held by: {kinds}{because}", hint=hint)
    return [f.JobReleased(at_s=now_s, job=job.id, holds=taken, by=command.caller.user)]


def _holds(asked: a.HoldJob | a.ReleaseJob, caller: Caller) -> tuple[HoldKind, ...]:
    if not asked.holds:
        raise InvalidRequestError("no kind of hold named", hint="say -h u, o or s")
    return checked_holds(asked.holds, caller)


def signal_job(
    state: State, settings: Settings, command: c.ActOnJob, asked: a.SignalJob, now_s: float
) -> list[f.AnyFact]:
    """Return the signal.

    Raises:
        BadStateError: nothing of the job runs.
        InvalidRequestError: no such signal.
    """
    job = own_job(state, settings, command)
    if not 1 <= asked.signal <= MAX_SIGNAL:
        raise InvalidRequestError(f"signal {asked.signal} is not between 1 and {MAX_SIGNAL}")
    attempt = job.attempt
    if attempt is None or not any(p.state is PartState.RUNNING for p in attempt.parts.values()):
        if attempt is not None and job.state is JobState.RUNNING:
            parts = attempt.parts.values()
            is_over = all(p.state in {PartState.ENDED, PartState.PASSIVE} for p in parts)
            raise BadStateError(
                f"job {short_job_id(job.id)} has no process now: its attempt "
                + ("ends" if is_over else "has not started yet on its nodes"),
                hint=f"gstat -f {short_job_id(job.id)} shows what became of it"
                if is_over
                else f"send it again when gstat -f {short_job_id(job.id)} shows that it has",
            )
        raise BadStateError(
            f"job {short_job_id(job.id)} is {job.state}: only a running job can get a signal"
        )
    return [
        f.JobSignalled(
            at_s=now_s,
            job=job.id,
            attempt=attempt.number,
            signal=asked.signal,
            by=command.caller.user,
        )
    ]


def rerun_job(
    state: State, settings: Settings, command: c.ActOnJob, asked: a.RerunJob, now_s: float
) -> list[f.AnyFact]:
    """Return the stop after which the job is requeued.

    Raises:
        BadStateError: it does not run, is being cancelled, or may not be rerun.
    """
    job = own_job(state, settings, command)
    if job.attempt is None:
        raise BadStateError(
            f"job {short_job_id(job.id)} is {job.state}: only a running job can be rerun"
        )
    if job.attempt.stop is StopReason.DELETE:
        raise BadStateError(f"job {short_job_id(job.id)} is being cancelled")
    if not job.spec.rerunnable and not (asked.force and command.caller.operator):
        raise BadStateError(
            f"job {short_job_id(job.id)} is not rerunnable (-r n)",
            hint="an operator can force it with -f",
        )
    grace_s = job.spec.grace_s if asked.grace_s is None else checked_grace(asked.grace_s)
    return [
        f.StopRequested(
            at_s=now_s,
            job=job.id,
            attempt=job.attempt.number,
            reason=StopReason.RERUN,
            grace_s=grace_s,
            by=command.caller.user,
            message=asked.message,
        )
    ]


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


def lost_parts(state: State, node: str, *, now_s: float, message: str) -> list[f.AnyFact]:
    """Return the end of all parts on a node that are proven to be gone."""
    facts: list[f.AnyFact] = []
    for job in state.by_node.get(node, {}).values():
        attempt = job.attempt
        assert attempt is not None, "a job on a node has an attempt"
        if attempt.parts[node].state in {PartState.PENDING, PartState.RUNNING}:
            facts.append(lost_part(job, node, now_s=now_s, message=message))
    return facts


def lost_part(job: Job, node: str, *, now_s: float, message: str) -> f.PartEnded:
    """Return the end of one part that nobody can report any more."""
    assert job.attempt is not None, "only an attempt can be lost"
    started_s = job.attempt.parts[node].started_s or 0.0
    record = ExitRecord(
        job=job.id,
        attempt=job.attempt.number,
        kind=OutcomeKind.NODE_LOST,
        message=message,
        started_s=started_s,
        ended_s=now_s,
    )
    return f.PartEnded(
        at_s=now_s,
        job=job.id,
        attempt=job.attempt.number,
        node=node,
        record=record,
        usage=Usage(wall_s=max(0.0, now_s - started_s) if started_s else 0.0),
    )


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


def due_jobs(state: State, now_s: float) -> list[f.AnyFact]:
    """Return that the time of delayed jobs has come."""
    facts: list[f.AnyFact] = []
    for at_s, number in state.delayed:
        if at_s > now_s:
            break
        retry = state.jobs[number].spec.start_after_s < at_s
        facts.append(f.JobDue(at_s=now_s, job=number, retry=retry))
    return facts
