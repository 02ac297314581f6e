"""Facts that were to follow, and do not hold any more when their turn comes.

Of what is decided at one moment, one fact may bring about another one that was decided, too: two
jobs that wanted each other's places and are given up both, or a job whose new place was on two
nodes that are both gone. It happens once.
"""

from gsched.model.states import JobState
from gschedd.core.attempts.steps import part_opened
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.state import State

_GOES_ON = frozenset({JobState.MIGRATING, JobState.EXITING})


def is_overtaken(state: State, fact: f.AnyFact) -> bool:
    """Return whether a fact about a move, or about its end, has become true or moot meanwhile."""
    match fact:
        case f.MigrationAbandoned():
            job = state.jobs.get(fact.job)
            return job is None or not _is_requested(job, fact.attempt)
        case f.MigrationPrepared():
            job = state.jobs.get(fact.job)
            return job is None or job.move is None or not job.move.prepare
        case f.PartOpened():
            return not part_opened(state, fact)
        case f.TargetLost():
            job = state.jobs.get(fact.job)
            return job is None or job.move is None or not job.move.allocation
        case f.JobRequeued():
            job = state.jobs.get(fact.job)
            return job is None or job.state not in _GOES_ON
        case _:
            return False


def _is_requested(job: Job, attempt: int) -> bool:
    """Return whether a job is asked to move, and has not begun to stop for it."""
    here = job.attempt
    return (
        job.move is not None and here is not None and here.number == attempt and here.stop is None
    )
