"""The part of `gschedd.core.apply` for what is taken back from nodes after a loss."""

from gsched.model.job import Outcome
from gsched.model.states import AttemptState, JobState, OutcomeKind, PartState
from gschedd.core.state import facts as f
from gschedd.core.state.indexing import give_up_move, move, touch_attempt
from gschedd.core.state.ledger import disown, own
from gschedd.core.state.records import Attempt, Part
from gschedd.core.state.state import State
from gschedd.core.state.transitions import next_attempt_state


def recovered(state: State, fact: f.AttemptRecovered) -> None:
    """A job has an attempt that only its nodes knew; an older one, if any, is over."""
    job = state.jobs[fact.job]
    if job.attempt is not None:
        older = touch_attempt(state, job)
        older.state = next_attempt_state(older.state, fact, AttemptState.ENDED)
        older.ended_s = fact.at_s
        older.outcome = Outcome(
            kind=OutcomeKind.RERUN, message=f"attempt {fact.attempt} took its place"
        )
        disown(state, job, older)
        state.dirty.nodes.update(older.parts)
    if job.move is not None:
        give_up_move(state, job)
    move(state, job, fact, JobState.RUNNING)
    parts = {
        share.node: Part(
            share=share,
            state=PartState.RUNNING if share.node in fact.active else PartState.PASSIVE,
            started_s=fact.started_s.get(share.node),
        )
        for share in fact.allocation
    }
    started_s = min(fact.started_s.values(), default=None)
    attempt = Attempt(
        number=fact.attempt,
        state=AttemptState.RUNNING,
        assigned_s=fact.assigned_s,
        master_port=fact.master_port,
        parts=parts,
        token=fact.token,
        boot_ids=dict(fact.boot_ids),
        work_begun=job.work_done,
        started_s=started_s,
        stop=fact.stop,
    )
    if job.started_s is None:
        job.started_s = started_s
    job.attempt, job.attempts = attempt, fact.attempt
    own(state, job, attempt)
    touch_attempt(state, job)
