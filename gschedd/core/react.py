"""Which effects a durable fact asks for."""

from collections.abc import Iterator

from gsched.model.states import PartState
from gschedd.core import effects as e
from gschedd.core import facts as f
from gschedd.core.state import Attempt, Job, State


def react(state: State, fact: f.AnyFact) -> Iterator[e.AnyEffect]:
    """Yield what is to be sent because of a fact that has been applied."""
    match fact:
        case f.AttemptAssigned():
            for node in fact.active:
                yield e.SendLaunch(node=node, job=fact.job, attempt=fact.attempt)
        case f.MoveRequested() | f.MoveAbandoned():
            yield from _checkpointing(state, fact)
        case f.StopRequested() | f.JobSignalled() | f.JobAltered():
            job = state.jobs.get(fact.job)
            if job is not None and job.attempt is not None:
                yield from _to_parts(fact, job.attempt)
        case f.PartStarted():
            job = state.jobs.get(fact.job)
            if job is not None and job.attempt is not None and job.attempt.stop is not None:
                yield stop(fact.node, fact.job, job.attempt)
        case f.PartEnded():
            yield e.SendExitAck(node=fact.node, job=fact.job, attempt=fact.attempt)
        case _:
            pass


def _checkpointing(state: State, fact: f.MoveRequested | f.MoveAbandoned) -> Iterator[e.AnyEffect]:
    """Yield what the node of rank 0 is told: the ranks agree among themselves."""
    job = state.jobs.get(fact.job)
    if job is None or job.attempt is None:
        return
    if isinstance(fact, f.MoveRequested):
        yield ask_checkpoint(job, job.attempt)
        return
    yield e.SendGoOn(
        node=next(iter(job.attempt.parts)),
        job=job.id,
        attempt=job.attempt.number,
        request=job.moves_asked,
    )


def ask_checkpoint(job: Job, attempt: Attempt) -> e.SendCheckpoint:
    """Return the order to save its state, for the node of rank 0 of a moving job."""
    return e.SendCheckpoint(
        node=next(iter(attempt.parts)),
        job=job.id,
        attempt=attempt.number,
        request=job.moves_asked,
    )


def _to_parts(
    fact: f.StopRequested | f.JobSignalled | f.JobAltered, attempt: Attempt
) -> Iterator[e.AnyEffect]:
    for node, part in attempt.parts.items():
        if part.state not in {PartState.PENDING, PartState.RUNNING}:
            continue
        match fact:
            case f.StopRequested():
                yield stop(node, fact.job, attempt)
            case f.JobSignalled():
                yield e.SendSignal(
                    node=node, job=fact.job, attempt=attempt.number, signal=fact.signal
                )
            case f.JobAltered():
                if "resources" in fact.changed:
                    yield e.SendRetime(
                        node=node,
                        job=fact.job,
                        attempt=attempt.number,
                        walltime_s=fact.spec.walltime_s,
                    )


def stop(node: str, job: int, attempt: Attempt) -> e.SendStop:
    """Return the stop of one part, for the reason that stands."""
    assert attempt.stop is not None, "a stop has a reason"
    return e.SendStop(
        node=node,
        job=job,
        attempt=attempt.number,
        reason=attempt.stop,
        grace_s=attempt.stop_grace_s,
    )
