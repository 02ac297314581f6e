"""What the system did to a job is not its own end: it gets another attempt, but not for ever."""

from typing import Final

from msgspec import structs

from gsched.model.job import Outcome
from gsched.model.states import HoldKind, OutcomeKind
from gschedd.core import facts as f
from gschedd.core.state import Attempt, Job

#: Faults of the system in a row after which a job is held for a person to look at.
MAX_FAULTS: Final = 5
#: Delay before the next try after the first fault, seconds; doubles with each.
FAULT_DELAY_S: Final = 2.0
#: The longest of these delays, seconds: whoever allows a hundred tries does not want years.
MAX_DELAY_S: Final = 600.0
#: Of an attempt's part: the node or the supervisor has gone, and the outcome with it.
LOST: Final = frozenset({OutcomeKind.NODE_LOST, OutcomeKind.SUPERVISOR_LOST})


def after_fault(job: Job, outcome: Outcome, at_s: float) -> f.JobRequeued | f.JobEnded | None:
    """Return what becomes of a job whose attempt has just ended through no fault of its own.

    None: the outcome is the job's. A job that has asked for it (`JobSpec.restarts_max`) is started
    anew also after the death of one of its ranks, but only so often in a row without having saved
    its state in between; then the outcome is its own.
    """
    attempt = job.attempt
    assert attempt is not None, "the attempt has just ended"
    asked_for = job.spec.restarts_max > 0 and _has_died(attempt, outcome)
    if not asked_for and not _is_fault(job, attempt, outcome):
        return None
    faults = 1 if _has_progressed(job, attempt) else job.faults + 1
    if asked_for and faults > job.spec.restarts_max:
        times = "once" if faults == 2 else f"{faults - 1} times"
        message = f"{outcome.message}; it was started anew {times} in vain".removeprefix("; ")
        ended_s = attempt.ended_s if attempt.ended_s is not None else at_s
        return f.JobEnded(
            at_s=at_s,
            job=job.id,
            outcome=structs.replace(outcome, message=message),
            ended_s=ended_s,
        )
    reason = _words(outcome)
    if not asked_for and faults >= MAX_FAULTS:
        return f.JobRequeued(
            at_s=at_s,
            job=job.id,
            reason=f"{faults} attempts failed in a row through no fault of its own, last: {reason}",
            faults=faults,
            holds=(HoldKind.SYSTEM,),
        )
    # the exponent is bounded, or many tries would overflow
    delay_s = min(MAX_DELAY_S, FAULT_DELAY_S * 2 ** min(faults - 1, 30))
    return f.JobRequeued(
        at_s=at_s, job=job.id, reason=reason, faults=faults, not_before_s=at_s + delay_s
    )


def _words(outcome: Outcome) -> str:
    where = f" on {outcome.node}" if outcome.node else ""
    signal = f" {outcome.signal}" if outcome.kind is OutcomeKind.SIGNALLED else ""
    kind = "killed by signal" if signal else outcome.kind.replace("_", " ")
    return f"{kind}{signal}{where}: {outcome.message}".removesuffix(": ")


def _has_progressed(job: Job, attempt: Attempt) -> bool:
    """Return whether a training has saved its state since the attempt began."""
    return job.saved is not None and job.saved.at_s >= attempt.assigned_s


def _has_died(attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether a node or a rank has died, rather than ended by its own will.

    A rank that has lost its peers says so with an exit code of its own, mostly before anybody knows
    that their node is gone.
    """
    if outcome.kind is OutcomeKind.SIGNALLED:
        return True
    records = [part.record for part in attempt.parts.values() if part.record is not None]
    return outcome.kind in {*LOST, OutcomeKind.EXITED} and any(r.kind in LOST for r in records)


def _is_fault(job: Job, attempt: Attempt, outcome: Outcome) -> bool:
    """Return whether the system failed the job, so that it gets another attempt."""
    if outcome.kind is OutcomeKind.LAUNCH_FAILED:
        records = [part.record for part in attempt.parts.values() if part.record is not None]
        return not any(record.user_error for record in records)
    return outcome.kind in LOST and job.spec.rerunnable
