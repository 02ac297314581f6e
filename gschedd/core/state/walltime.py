"""What is left of a job's walltime: a training that moves has one for all its attempts.

The time that counts is that in which it could work: neither the queue, nor the way from its
checkpoint to its first further step, nor what was lost with a node since its last checkpoint.
"""

from typing import Final

from gsched.model.states import OutcomeKind
from gschedd.core.state.records import Attempt, Job

#: A training that moves at the very end of its walltime is started all the same, and ends by it.
LEAST_LEFT_S: Final = 1.0


def walltime_left_s(job: Job) -> float | None:
    """Return how long the present or next attempt of a job may run, seconds; None: no limit."""
    if job.spec.walltime_s is None:
        return None
    return max(LEAST_LEFT_S, job.spec.walltime_s - job.spent_s)


def spent_by(job: Job, attempt: Attempt, wall_s: float, ended_s: float) -> float:
    """Return how much of the walltime is used up when an attempt has ended, seconds.

    Args:
        job: as it was while the attempt ran.
        attempt: with its outcome.
        wall_s: how long it ran.
        ended_s: when its last part ended, seconds since the epoch.
    """
    kind = attempt.outcome.kind if attempt.outcome is not None else None
    if kind is OutcomeKind.MOVED:
        return job.spent_s + max(0.0, wall_s - _saving_s(job, attempt, ended_s))
    if kind is OutcomeKind.RERUN or job.saved is None:
        return 0.0  # it begins anew
    started_s = attempt.started_s or attempt.assigned_s
    return job.spent_s + min(wall_s, max(0.0, job.saved.at_s - started_s))


def _saving_s(job: Job, attempt: Attempt, ended_s: float) -> float:
    """Return how long a training that has left its place had been saving its state, and waiting."""
    requests_s = [
        p.record.requested_s for p in attempt.parts.values() if p.record and p.record.requested
    ]
    if requests_s:
        return max(0.0, ended_s - min(requests_s))
    if job.migration is None or not job.migration.saved_s:
        return 0.0
    return max(0.0, ended_s - job.migration.saved_s) + job.migration.save_s
