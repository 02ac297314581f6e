"""Jobs that know only a signal: whether one has left at it, and with its state saved or lost.

Such a job saves its state to its own files, and gsched sees only its end. One that exits by itself,
with whatever code, has saved it. One that was killed has not, as far as is known: by the signal
itself, since it lost its handler or never had one of its own; by another signal, or for memory,
while it was saving; or by gsched, since it did not exit within its grace period.

A part none of whose processes handles the signal is not asked. One that is asked is enough: the
ranks of a job work together, and it is its program's choice which of them save the state of all.
So the migration is off only if no part can be asked, and a part that cannot is stopped when the
others have left.
"""

from typing import Final

from gsched.model.job import ExitRecord
from gsched.model.signals import SIGNAL_NAMES, describe_signal
from gsched.model.states import OutcomeKind, PartState, StopReason
from gsched.model.wording import outcome_words
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job
from gschedd.core.state.state import State
from gschedd.core.state.transient import UnhandledSignal

#: Grace for a training that has saved its state, seconds: it has nothing left to do.
MOVE_GRACE_S: Final = 5.0
#: A shell, torchrun and others say so with their exit code that a signal ended their program.
_SIGNAL_CODE: Final = 128
_KILLED: Final = frozenset(
    {
        OutcomeKind.SIGNALLED,
        OutcomeKind.OOM,
        OutcomeKind.NODE_LOST,
        OutcomeKind.SUPERVISOR_LOST,
    }
)


def leaves_by_itself(job: Job) -> bool:
    """Return whether a moving job has been asked to end by its signal: its parts need not agree."""
    return job.move is not None and job.spec.checkpoint_signal > 0


def has_begun_to_leave(job: Job) -> bool:
    """Return whether a part of a moving job has ended after its signal, and others have not."""
    if job.attempt is None or not leaves_by_itself(job):
        return False
    return any(part.state is PartState.ENDED for part in job.attempt.parts.values())


def stop_to_move(job: Job, at_s: float) -> f.StopRequested:
    """Return the stop of a moving job that has saved its state."""
    return f.StopRequested(
        at_s=at_s,
        job=job.id,
        attempt=job.attempts,
        reason=StopReason.MOVE,
        grace_s=min(job.spec.grace_s, MOVE_GRACE_S),
        by=job.target.by,
        message=job.target.why,
    )


def note_unhandled_signal(state: State, job: Job, node: str) -> None:
    """Note that no process of a moving job's part on a node handles its signal."""
    there = state.volatile.unhandled.get(job.id)
    if there is None or there.request != job.target.request:
        there = UnhandledSignal(request=job.target.request, nodes=set())
        state.volatile.unhandled[job.id] = there
    there.nodes.add(node)


def has_unhandled_signal(state: State, job: Job) -> bool:
    """Return whether none of the parts that are left of a moving job handles its signal."""
    there = state.volatile.unhandled.get(job.id)
    if there is None or job.attempt is None or job.move is None:
        return False
    if there.request != job.move.request:
        return False
    return all(
        node in there.nodes
        for node, part in job.attempt.parts.items()
        if part.state in {PartState.PENDING, PartState.RUNNING}
    )


def has_left(job: Job, attempt: Attempt) -> bool:
    """Return whether an attempt has ended for its checkpoint signal: within the grace after it."""
    records = [part.record for part in attempt.parts.values() if part.record is not None]
    if any(record.stop_reason is StopReason.WALLTIME for record in records):
        return False
    return any(
        record.requested == job.moves_requested
        and record.ended_s - record.requested_s <= job.spec.grace_s
        for record in records
        if record.requested
    )


def lost_by(job: Job, attempt: Attempt) -> str:
    """Return in words how an attempt that has left lost its work; empty: it has saved its state.

    A job with a checkpoint signal may also speak to its node, as with `gsched.elastic`: a
    checkpoint of which it has told since it got the signal counts, however it ended.
    """
    if job.saved is not None and job.saved.at_s >= _requested_s(job, attempt):
        return ""
    for node, part in attempt.parts.items():
        if part.record is None or _is_left_to_others(part.record, job):
            continue
        words = _killed(part.record, node, job)
        if words:
            return (
                f"{words} after its checkpoint signal: its work since its own last checkpoint "
                "is lost"
            )
    return ""


def _is_left_to_others(record: ExitRecord, job: Job) -> bool:
    """Return whether a part was stopped that could not be asked, when the others had left."""
    return record.stop_reason is StopReason.MOVE and record.unhandled == job.moves_requested


def _requested_s(job: Job, attempt: Attempt) -> float:
    """Return when the job was asked to save its state; by its node's clock if it moves no more."""
    if job.move is not None:
        return job.move.requested_s
    return min(
        p.record.requested_s for p in attempt.parts.values() if p.record and p.record.requested
    )


def _killed(record: ExitRecord, node: str, job: Job) -> str:
    """Return in words how a part was killed; empty: it exited by itself."""
    words = outcome_words(record.outcome(node))
    if record.kind in _KILLED:
        if record.stop_reason is StopReason.MOVE:
            return f"{words} as it did not exit within {job.spec.grace_s:g} s"
        return words
    number = (record.exit_code or 0) - _SIGNAL_CODE
    if record.kind is OutcomeKind.EXITED and record.rank is None and number in SIGNAL_NAMES:
        return f"{words} (signal {describe_signal(number)})"
    return ""
