"""Moves of running trainings, from a policy's wish to the attempt at the new place."""

from collections.abc import Iterable, Iterator

from gsched.model.states import AttemptState, JobState
from gschedd.core import facts as f
from gschedd.core.assigning import Assigner
from gschedd.core.owning import owned_space
from gschedd.core.state import State
from gschedd.plan.snapshot import Move, Verdict
from gschedd.plan.space import NodeSpace, Spaces, take
from gschedd.plan.validate import Movable, covers


def movable(state: State, job_id: int) -> Movable | None:
    """Return a job that runs and can be moved; one that starts or is being stopped cannot."""
    job = state.running.get(job_id)
    if job is None or job.state is not JobState.RUNNING or not job.spec.movable:
        return None
    assert job.attempt is not None, "a running job has an attempt"
    if job.attempt.state is not AttemptState.RUNNING:
        return None  # it would have nothing to go on from
    return Movable(request=job.spec.request, allocation=job.attempt.allocation)


def moved(state: State, moves: Iterable[Move], now_s: float) -> Iterator[f.MoveRequested]:
    """Yield that jobs are to go on elsewhere."""
    for move in moves:
        yield f.MoveRequested(
            at_s=now_s,
            job=move.job,
            attempt=state.jobs[move.job].attempts,
            allocation=move.allocation,
            why=move.why,
            by="gsched",
        )


def judged(state: State, verdicts: Iterable[Verdict], now_s: float) -> Iterator[f.DeadlineJudged]:
    """Yield what was never said of a job's deadline before, or was said otherwise."""
    for verdict in verdicts:
        job = state.jobs.get(verdict.job)
        if job is not None and job.spec.deadline_s and job.meets is not verdict.meets:
            yield f.DeadlineJudged(
                at_s=now_s,
                job=job.id,
                meets=verdict.meets,
                end_s=verdict.end_s,
                gpus=verdict.gpus,
                why=verdict.why,
            )


def arrivals(state: State, assigner: Assigner) -> Iterator[f.AttemptAssigned]:
    """Yield the new attempts of moving jobs that have left their places and can have new ones."""
    owned: dict[str, NodeSpace] = {}
    for job in state.targets.values():
        if job.attempt is not None or job.move is None or not job.move.allocation:
            continue
        allocation = job.move.allocation
        for share in allocation:
            if share.node not in owned:
                owned[share.node] = owned_space(state, state.nodes[share.node])
        spaces = Spaces({share.node: owned[share.node] for share in allocation})
        if covers(job.spec.request, allocation, spaces):
            continue  # somebody has not left yet
        for share in allocation:
            owned[share.node] = take(owned[share.node], share)
        yield assigner.assign(job, allocation, job.move.why)
