"""What the system did to a job is not its own end: it gets another attempt, but not for ever."""

from typing import Final

from msgspec import structs

from gsched.model.job import Outcome
from gsched.model.states import HoldKind, OutcomeKind
from gsched.model.wording import counted, outcome_words
from gschedd.core.attempts.blame import Verdict, verdict_on
from gschedd.core.attempts.relaunch import AFTER, after_failed_start
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job
from gschedd.core.training.checkpoints import checkpoint_dir

#: Faults of the system in a row after which a job is held for a person to look at.
MAX_FAULTS: Final = 5
#: Delay before the next try after the first fault, seconds; doubles with each.
FAULT_DELAY_S: Final = 2.0
#: The longest of these delays, seconds: whoever allows a hundred tries does not want years.
MAX_DELAY_S: Final = 600.0
#: The exit code of a training that cannot go on from its checkpoints (sysexits' EX_CONFIG), as
#: `gsched.elastic` gives it: to start it again would meet the same.
CANNOT_GO_ON: Final = 78
#: What the reason of a hold begins with when a training cannot go on from its checkpoints.
CKPT_BAD: Final = "CKPT_BAD"
#: Starts in a row from a checkpoint that did not come to a first step, after which a training is
#: held. It leaves each of the two checkpoints that it keeps alone after three, and then says so
#: with its exit code: this is for one that cannot even do that.
MAX_LOADS: Final = 8
#: The longest delay between two of them, seconds: to wait does not mend a checkpoint.
MAX_LOAD_DELAY_S: Final = 16.0
#: How a start fails that is not the system's fault.
_OWN_ENDS: Final = frozenset({OutcomeKind.EXITED, OutcomeKind.SIGNALLED, OutcomeKind.LAUNCH_FAILED})
#: Of an attempt's part: the node or the supervisor has gone, and the outcome with it.
LOST: Final = frozenset({OutcomeKind.NODE_LOST, OutcomeKind.SUPERVISOR_LOST})


def after_fault(job: Job, outcome: Outcome, at_s: float) -> f.JobRequeued | f.JobEnded | None:
    """Return what becomes of a job whose attempt has just ended through no fault of its own.

    None: the outcome is the job's. A job that has asked for it (`JobSpec.restarts_max`) is
    restarted also after the death of one of its ranks, but only so often in a row without having
    saved its state in between; then the outcome is its own.
    """
    attempt = job.current_attempt
    if job.recovered:
        return None  # its script and environment are lost with the old database
    if _failed_to_go_on(job, attempt, outcome):
        return _after_load(job, outcome, at_s)
    if outcome.kind is OutcomeKind.LAUNCH_FAILED:
        faults = 1 if _has_saved(job, attempt) else job.faults + 1
        return after_failed_start(job, attempt, outcome_words(outcome), faults=faults, at_s=at_s)
    is_restart = job.spec.restarts_max > 0 and _has_died(attempt, outcome)
    if not is_restart and not _is_fault(job, attempt, outcome):
        return None
    faults = 1 if _has_saved(job, attempt) else job.faults + 1
    if is_restart and faults > job.spec.restarts_max:
        failed = f"failed after {counted(faults - 1, 'restart')}"
        message = f"{outcome.message}; {failed}".removeprefix("; ")
        ended_s = attempt.ended_s if attempt.ended_s is not None else at_s
        return f.JobEnded(
            at_s=at_s,
            job=job.id,
            outcome=structs.replace(outcome, message=message),
            ended_s=ended_s,
        )
    reason = outcome_words(outcome)
    if not is_restart and faults >= MAX_FAULTS:
        return f.JobRequeued(
            at_s=at_s,
            job=job.id,
            reason=(
                f"{AFTER} {counted(faults, 'failed attempt')} through no fault of its own; "
                f"last: {reason}"
            ),
            faults=faults,
            holds=(HoldKind.SYSTEM,),
        )
    not_before_s = at_s + _delay_s(faults)
    return f.JobRequeued(
        at_s=at_s, job=job.id, reason=reason, faults=faults, not_before_s=not_before_s
    )


def _failed_to_go_on(job: Job, attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether an attempt that was to go on from a checkpoint failed before its first step.

    Its user has not started it, so what it has done must not end with it.
    """
    spec = job.spec
    if not spec.movable or spec.checkpoint_signal or outcome.succeeded:
        return False
    if outcome.kind not in _OWN_ENDS or _has_lost(attempt) or _is_fault(job, attempt, outcome):
        return False
    if job.saved is None or job.saved.step <= 0:
        return False  # it tells no steps, so that nobody has heard of its first one
    return attempt.work_begun > 0 and not attempt.resumed and not _has_saved(job, attempt)


def _after_load(job: Job, outcome: Outcome, at_s: float) -> f.JobRequeued:
    """Return the next try of a training that did not come to its first step, or that it is held.

    By its user's hold: whoever mends its checkpoints lets it go on.
    """
    faults = job.faults + 1
    why = outcome_words(outcome)
    if outcome.exit_code != CANNOT_GO_ON and faults < MAX_LOADS:
        return f.JobRequeued(
            at_s=at_s,
            job=job.id,
            reason=f"it failed before its first step from the checkpoint: {why}",
            faults=faults,
            not_before_s=at_s + min(MAX_LOAD_DELAY_S, _delay_s(faults)),
        )
    if outcome.exit_code != CANNOT_GO_ON:
        why = f"{faults} starts in a row did not come to a step, last: {why}"
    return f.JobRequeued(
        at_s=at_s,
        job=job.id,
        reason=(
            f"{CKPT_BAD}: it cannot go on from its checkpoints ({why}): see its output; mend what "
            f"is wrong in {checkpoint_dir(job)}, or move it away to begin anew"
        ),
        faults=faults,
        holds=(HoldKind.USER,),
    )


def _delay_s(faults: int) -> float:
    """Return how long the next try waits after so many faults in a row, seconds."""
    # the exponent is bounded, or many tries would overflow
    return min(MAX_DELAY_S, FAULT_DELAY_S * 2.0 ** min(faults - 1, 30))


def _has_saved(job: Job, attempt: Attempt) -> bool:
    """Return whether a training has saved its state since the attempt began."""
    return job.saved is not None and job.saved.at_s > attempt.assigned_s


def _has_lost(attempt: Attempt) -> bool:
    """Return whether a part of an attempt went with its node or supervisor."""
    return any(
        part.record is not None and part.record.kind in LOST for part in attempt.parts.values()
    )


def _has_died(attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether a node or a rank has died, rather than ended by its own will.

    A rank that has lost its peers says so with an exit code of its own, mostly before anybody knows
    that their node is gone.
    """
    if outcome.kind is OutcomeKind.SIGNALLED:
        return True
    return outcome.kind in {*LOST, OutcomeKind.EXITED} and _has_lost(attempt)


def _is_fault(job: Job, attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether the system failed the job, so that it gets another attempt."""
    if outcome.kind is OutcomeKind.LAUNCH_FAILED:
        return verdict_on(attempt) is not Verdict.JOB
    return outcome.kind in LOST and job.spec.rerunnable
