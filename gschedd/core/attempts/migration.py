"""Moves of running training jobs, from a policy's wish to the attempt at the new place."""

from collections.abc import Iterable, Iterator, Mapping

from gsched.model.resources import Share
from gsched.model.signals import describe_signal
from gsched.model.states import AttemptState, JobState
from gschedd.core.attempts.assign import Assigner
from gschedd.core.attempts.leaving import has_begun_to_leave, stop_to_move
from gschedd.core.attempts.warm import given_up, is_preparing, overdue_s, preparation
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import going, owned_space
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.snapshot import Move
from gschedd.plan.space import FreeNode, Spaces, give, take
from gschedd.plan.validate import Movable, covers


def movable(state: State, job_id: int) -> Movable | None:
    """Return a job that runs and can be moved; one that starts or is being stopped cannot."""
    job = state.running.get(job_id)
    if job is None or job.state is not JobState.RUNNING or not job.spec.movable:
        return None
    if job.current_attempt.state is not AttemptState.RUNNING:
        return None  # it would have nothing to go on from
    return Movable(request=job.spec.request, allocation=job.current_attempt.allocation)


def requested(  # noqa: PLR0913 # what is so, who, where and when
    state: State,
    settings: Settings,
    job: Job,
    move: Move,
    *,
    by: str,
    now_s: float,
    others: Iterable[Share] = (),
) -> f.MigrationRequested:
    """Return that a job is to migrate; ``others`` use memory by the same plan."""
    prepare, cold = preparation(state, settings, job, move.allocation, others)
    return f.MigrationRequested(
        at_s=now_s,
        job=job.id,
        attempt=job.attempts,
        allocation=move.allocation,
        why=move.why,
        by=by,
        request=job.moves_requested + 1,
        batching=move.batching,
        prepare=prepare,
        cold=cold,
    )


def moved(
    state: State, settings: Settings, moves: Iterable[Move], now_s: float, taken: Iterable[Share]
) -> Iterator[f.MigrationRequested]:
    """Yield that jobs are to migrate; ``taken`` is what others start on by the same plan."""
    prepared = list(taken)
    for move in moves:
        job = state.jobs[move.job]
        fact = requested(state, settings, job, move, by="gsched", now_s=now_s, others=prepared)
        if fact.prepare:
            prepared.extend(fact.allocation)
        yield fact


def arrivals(
    state: State, assigner: Assigner, now_s: float
) -> Iterator[f.AttemptAssigned | f.JobRequeued]:
    """Yield the new attempts of moving jobs that have left their places and can have new ones.

    One whose new place is held by somebody who will not leave after all goes to its queue.
    """
    owned: dict[str, FreeNode] = {}
    for job in state.targets.values():
        if job.attempt is not None or job.move is None or not job.move.allocation:
            continue
        allocation = job.move.allocation
        for share in allocation:
            if share.node not in owned:
                owned[share.node] = owned_space(state, state.nodes[share.node])
        spaces = Spaces({share.node: owned[share.node] for share in allocation})
        if covers(job.spec.request, allocation, spaces):
            if not _will_be_free(state, job, owned):
                reason = "the target of its migration is not free"
                yield f.JobRequeued(at_s=now_s, job=job.id, reason=reason, faults=0)
            continue  # somebody has not left yet
        for share in allocation:
            owned[share.node] = take(owned[share.node], share)
        why, batching = job.move.why, job.move.batching
        reservation = state.reservation_on(job.spec, allocation)
        yield assigner.assign(job, allocation, why, batching, reservation)


def _will_be_free(state: State, job: Job, owned: Mapping[str, FreeNode]) -> bool:
    """Return whether a job can have its new place when all have left that are to leave."""
    then: dict[str, FreeNode] = {}
    for share in job.target.allocation:
        space = owned[share.node]
        for other in going(state, share.node):
            space = give(space, other)
        then[share.node] = space
    return not covers(job.spec.request, job.target.allocation, Spaces(then))


def waiting_for_checkpoint(state: State) -> Iterator[Job]:
    """Yield moving jobs that were asked to save their state, and have not yet."""
    for job in state.targets.values():
        if job.attempt is not None and job.attempt.stop is None and not is_preparing(job):
            yield job


def preparing(state: State) -> Iterator[Job]:
    """Yield moving jobs that train on until their next attempts are prepared."""
    return (job for job in state.targets.values() if is_preparing(job))


def waiting_for_place(state: State) -> Iterator[tuple[Job, float]]:
    """Yield moving jobs that have left, and whose new places are not free yet, and since when."""
    for job in state.targets.values():
        if job.attempt is None and job.migration is not None:
            yield job, job.migration.left_s


def next_overdue_s(state: State, settings: Settings) -> float | None:
    """Return when the next of both is given up, seconds since the epoch; None if there is none."""
    limits_s = [_limit_s(job, settings) for job in waiting_for_checkpoint(state)]
    limits_s += [overdue_s(job, settings) for job in preparing(state)]
    limits_s += [
        since_s + settings.config.moves.checkpoint_timeout_s
        for _, since_s in waiting_for_place(state)
    ]
    return min(limits_s, default=None)


def _limit_s(job: Job, settings: Settings) -> float:
    """Return by when a moving job must have saved its state, seconds since the epoch."""
    return (job.target.ready_s or job.target.requested_s) + _patience_s(job, settings)


def _patience_s(job: Job, settings: Settings) -> float:
    return (
        job.spec.grace_s
        if job.spec.checkpoint_signal
        else settings.config.moves.checkpoint_timeout_s
    )


def overdue(
    state: State, settings: Settings, now_s: float
) -> Iterator[f.MigrationPrepared | f.MigrationAbandoned | f.StopRequested | f.JobRequeued]:
    """Yield that jobs which did not save their state in time stay where they are.

    One that has left a part of its place by then, after its signal, cannot: it is stopped. One that
    has left all of it, and waits for somebody who does not go, may find another place by its queue.
    """
    for job, since_s in waiting_for_place(state):
        if since_s + settings.config.moves.checkpoint_timeout_s <= now_s:
            within = f"within {settings.config.moves.checkpoint_timeout_s:g} s"
            reason = f"the target of its migration was not free {within}"
            yield f.JobRequeued(at_s=now_s, job=job.id, reason=reason, faults=0)
    for job in preparing(state):
        if overdue_s(job, settings) <= now_s:
            within = f"within {settings.config.moves.prepare_timeout_s:g} s"
            yield given_up(job, f"its processes were not prepared {within}", now_s)
    for job in waiting_for_checkpoint(state):
        if _limit_s(job, settings) > now_s:
            continue
        if has_begun_to_leave(job):
            yield stop_to_move(job, now_s)
            continue
        within = f"within {_patience_s(job, settings):g} s"
        reason = f"it did not save its state {within}"
        if job.spec.checkpoint_signal:
            name = describe_signal(job.spec.checkpoint_signal)
            reason = f"it did not exit {within} of signal {name}"
        yield f.MigrationAbandoned(at_s=now_s, job=job.id, attempt=job.attempts, reason=reason)
