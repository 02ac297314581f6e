"""Cancel, hold, release, signal and rerun a job: the facts, or a refusal in words."""

from gsched.errors import BadStateError, InvalidRequestError
from gsched.model.dependency import format_dependencies
from gsched.model.ids import short_job_id
from gsched.model.job import Outcome
from gsched.model.signals import MAX_SIGNAL
from gsched.model.states import HoldKind, JobState, OutcomeKind, PartState, StopReason
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.requests.access import own_job
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.requests.schedule import checked_grace, checked_holds
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State


def delete_job(
    state: State, settings: Settings, command: c.ActOnJob, action: a.DeleteJob, now_s: float
) -> list[f.AnyFact]:
    """Return what deleting means: an end at once, or a stop of what runs."""
    if command.job in state.damaged and may(command.caller, Verb.DISCARD_JOB):
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
        why = f": {action.message}" if action.message else ""
        when = "while it migrated" if job.move is not None else "before it started"
        message = f"cancelled by {by} {when}{why}"
        outcome = Outcome(kind=OutcomeKind.CANCELLED, message=message)
        return [f.JobEnded(at_s=now_s, job=job.id, outcome=outcome, ended_s=now_s, by=by)]
    grace_s = job.spec.grace_s if action.grace_s is None else checked_grace(action.grace_s)
    return [
        f.StopRequested(
            at_s=now_s,
            job=job.id,
            attempt=job.attempt.number,
            reason=StopReason.DELETE,
            grace_s=grace_s,
            by=by,
            message=action.message,
        )
    ]


def hold_job(
    state: State, settings: Settings, command: c.ActOnJob, action: a.HoldJob, now_s: float
) -> list[f.AnyFact]:
    """Return the hold; a running job is held when it is requeued.

    Raises:
        NotPermittedError: the caller may not set this kind of hold.
    """
    holds = _holds(action, command.caller)
    job = own_job(state, settings, command)
    if set(holds) <= set(job.holds):
        return []
    return [f.JobHeld(at_s=now_s, job=job.id, holds=holds, by=command.caller.user)]


def release_job(
    state: State, settings: Settings, command: c.ActOnJob, action: a.ReleaseJob, now_s: float
) -> list[f.AnyFact]:
    """Return the release.

    Raises:
        BadStateError: the job is not held, or held by others.
        NotPermittedError: the caller may not release this kind of hold.
    """
    holds = _holds(action, command.caller)
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
        if not may(command.caller, Verb.HOLD_FOR_SITE):
            hint = "only an operator can release it"  # a user's own hold would have been taken off
        raise BadStateError(f"job {short_job_id(job.id)} is held by: {kinds}{because}", hint=hint)
    return [f.JobReleased(at_s=now_s, job=job.id, holds=taken, by=command.caller.user)]


def _holds(action: a.HoldJob | a.ReleaseJob, caller: Caller) -> tuple[HoldKind, ...]:
    if not action.holds:
        raise InvalidRequestError("no kind of hold named", hint="say -h u, o or s")
    return checked_holds(action.holds, caller)


def signal_job(
    state: State, settings: Settings, command: c.ActOnJob, action: a.SignalJob, now_s: float
) -> list[f.AnyFact]:
    """Return the signal.

    Raises:
        BadStateError: nothing of the job runs.
        InvalidRequestError: no such signal.
    """
    job = own_job(state, settings, command)
    if not 1 <= action.signal <= MAX_SIGNAL:
        raise InvalidRequestError(f"signal {action.signal} is not between 1 and {MAX_SIGNAL}")
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
            signal=action.signal,
            by=command.caller.user,
        )
    ]


def rerun_job(
    state: State, settings: Settings, command: c.ActOnJob, action: a.RerunJob, now_s: float
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
    if not job.spec.rerunnable and not (action.force and may(command.caller, Verb.FORCE_REQUEUE)):
        raise BadStateError(
            f"job {short_job_id(job.id)} is not rerunnable (-r n)",
            hint="an operator can force it with -f",
        )
    grace_s = job.spec.grace_s if action.grace_s is None else checked_grace(action.grace_s)
    return [
        f.StopRequested(
            at_s=now_s,
            job=job.id,
            attempt=job.attempt.number,
            reason=StopReason.RERUN,
            grace_s=grace_s,
            by=command.caller.user,
            message=action.message,
        )
    ]
