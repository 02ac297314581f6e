"""The part of `gschedd.core.apply` for pre-emption: who gives way, and what is kept for whom."""

from gschedd.core.state import facts as f
from gschedd.core.state.indexing import move, set_claim, touch
from gschedd.core.state.records import Preempted, RoomClaim
from gschedd.core.state.state import State
from gschedd.core.state.transitions import next_job_state


def preempted(state: State, fact: f.JobPreempted) -> None:
    """A running job gives way."""
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)
    before = job.preempted
    if before is None or (before.attempt, before.job_for) != (fact.attempt, fact.job_for):
        job.preemptions += 1  # else it gives way in another manner than it was first asked
    job.preempted = Preempted(
        attempt=fact.attempt,
        at_s=fact.at_s,
        way=fact.way,
        why=fact.why,
        job_for=fact.job_for,
        or_requeue=fact.or_requeue,
        behind=fact.behind,
    )
    job.preempted_gpu_s += fact.gpus * fact.lost_s


def room_claimed(state: State, fact: f.RoomClaimed) -> None:
    """An allocation is kept for a waiting job."""
    job = state.jobs[fact.job]
    next_job_state(job.state, fact, job.state)
    claim = RoomClaim(allocation=fact.allocation, jobs=fact.jobs, until_s=fact.until_s)
    set_claim(state, job, claim)
    touch(state, job)


def claim_ended(state: State, fact: f.ClaimEnded) -> None:
    """It is kept no more."""
    job = state.jobs[fact.job]
    next_job_state(job.state, fact, job.state)
    set_claim(state, job, None)
    touch(state, job)
