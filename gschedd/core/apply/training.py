"""The part of `gschedd.core.apply` for training jobs: moves, checkpoints, judged deadlines."""

from msgspec import structs

from gsched.model.states import JobState
from gschedd.core.state import facts as f
from gschedd.core.state.indexing import give_up_move, move, touch, touch_attempt
from gschedd.core.state.ledger import release, reserve
from gschedd.core.state.records import Job, MigrationProgress, MigrationTarget, Reached, Saved
from gschedd.core.state.state import State
from gschedd.core.training import move_costs as movecosts
from gschedd.core.training import step_times as steptimes
from gschedd.core.training.backoff import forget_refusals, leave_alone
from gschedd.core.training.startups import learn


def move_requested(state: State, fact: f.MigrationRequested) -> None:
    """A job is to migrate: its new allocation is kept for it."""
    job = state.jobs[fact.job]
    move(state, job, fact, JobState.MIGRATING)
    state.note_moved(job.id)
    job.moves_requested = max(job.moves_requested, fact.request)
    job.migration = MigrationProgress(requested_s=fact.at_s, cold=fact.cold)
    job.prepared = max(job.prepared, fact.prepare)
    state.volatile.turns[job.spec.owner.uid] += 1
    job.move = MigrationTarget(
        allocation=fact.allocation,
        why=fact.why,
        by=fact.by,
        requested_s=fact.at_s,
        request=fact.request,
        batching=fact.batching,
        prepare=fact.prepare,
    )
    reserve(state, job)


def move_prepared(state: State, fact: f.MigrationPrepared) -> None:
    """A migrating job's next attempt is prepared, or will not be."""
    job = state.jobs[fact.job]
    move(state, job, fact, JobState.MIGRATING)
    ready_s = job.target.ready_s or fact.at_s
    if fact.ready:
        job.move = structs.replace(job.target, ready_s=ready_s)
    else:
        job.move = structs.replace(release(state, job), ready_s=ready_s, prepare=0)
        reserve(state, job)
    if job.migration is not None:
        prepared_s = fact.at_s if fact.ready else job.migration.prepared_s
        job.migration = structs.replace(
            job.migration, prepared_s=prepared_s, cold="" if fact.ready else fact.reason
        )


def checkpoint_taken(state: State, fact: f.CheckpointTaken) -> None:
    """A training has published a checkpoint."""
    job = state.jobs[fact.job]
    move(state, job, fact, job.state)
    job.saved = Saved(
        at_s=fact.at_s,
        step=fact.step,
        path=fact.path,
        size_bytes=fact.size_bytes,
        wall_s=fact.wall_s,
        world_sizes=fact.world_sizes or (job.saved.world_sizes if job.saved is not None else ()),
    )
    job.work_done = max(job.work_done, fact.work_done)
    job.work_total = fact.work_total or job.work_total
    if job.move is not None and job.migration is not None and fact.request == job.move.request:
        job.migration = structs.replace(
            job.migration, saved_s=fact.at_s, save_s=fact.wall_s, size_bytes=fact.size_bytes
        )


def move_abandoned(state: State, fact: f.MigrationAbandoned) -> None:
    """A job stays where it is."""
    job = state.jobs[fact.job]
    state.note_moved(job.id)
    move(state, job, fact, JobState.RUNNING)
    job.migration = None
    leave_alone(state, job.id, fact.at_s)
    state.volatile.reservations_changed |= bool(state.reservations)
    state.volatile.unhandled.pop(job.id, None)
    give_up_move(state, job)


def note_arrival(state: State, job: Job, at_s: float, *, warm: bool) -> None:
    """A job that has left its old place gets its new one, ``warm`` as it was prepared there.

    One that was killed at its checkpoint signal has not moved but restarted, and policies and
    drains leave it alone for a while: it would lose its work again.
    """
    if job.migration is None or not job.migration.lost:
        job.moves += 1
        forget_refusals(state, job.id)
    else:
        job.moves_lost += 1
        leave_alone(state, job.id, at_s)
    if job.migration is not None:
        job.migration = structs.replace(job.migration, placed_s=at_s, warm=warm)


def batching_chosen(state: State, fact: f.BatchingChosen) -> None:
    """An adaptive training splits its samples otherwise."""
    job = state.jobs[fact.job]
    touch_attempt(state, job).batching = fact.batching
    move(state, job, fact, job.state)


def place_lost(state: State, fact: f.TargetLost) -> None:
    """A moving job goes to its queue instead."""
    job = state.jobs[fact.job]
    move(state, job, fact, JobState.MIGRATING)
    job.move = structs.replace(release(state, job), allocation=(), why=fact.reason, prepare=0)
    reserve(state, job)


def training_resumed(state: State, fact: f.TrainingResumed) -> None:
    """The first step after a move or a restart is done."""
    job = state.jobs[fact.job]
    if job.attempt is not None and job.attempt.number == fact.attempt:
        touch_attempt(state, job).resumed = True
    move(state, job, fact, job.state)
    if (
        job.migration is not None and not job.migration.resumed_s
    ):  # else it is over, and this a restart
        job.migration = structs.replace(
            job.migration, resumed_s=fact.at_s, restore_s=fact.restore_s
        )
        if not job.spec.checkpoint_signal:  # of its own program it is not known when it works again
            job.moves_cost_s += job.migration.cost_s or 0.0
    job.spent_s -= fact.restore_s  # it could not work meanwhile
    state.note_moved(job.id)


def note_progress(state: State, job: int, reached: Reached) -> None:
    """Note how far a training is. This is no fact: it is not durable, and it says so again."""
    if job not in state.running:
        return
    before = state.reached.get(job)
    if before is not None and before.attempt == reached.attempt:
        reached = structs.replace(reached, since_s=before.since_s, since_work=before.since_work)
    state.reached[job] = reached


def startup_measured(state: State, fact: f.StartupMeasured) -> None:
    """It is known how long an attempt took until its first step."""
    learn(state, fact)
    job = state.jobs[fact.job]
    if job.attempt is not None and job.attempt.number == fact.attempt:
        touch_attempt(state, job).startup_s = fact.startup_s


def steps_measured(state: State, fact: f.StepsMeasured) -> None:
    """It is known how long steps take where an attempt runs: plans may change."""
    steptimes.learn(state, fact)
    job = state.jobs[fact.job]
    if job.attempt is not None and job.attempt.number == fact.attempt:
        attempt = touch_attempt(state, job)
        attempt.step_s, attempt.step_known_s = fact.steps.step_s, fact.at_s
    if job.id in state.training_jobs:
        state.dirty.mark_all()


def move_measured(state: State, fact: f.MigrationMeasured) -> None:
    """It is known what a move has cost."""
    movecosts.learn(state, fact)


def judged(state: State, fact: f.DeadlineJudged) -> None:
    """What is expected of a deadline is known, or has changed."""
    job = state.jobs[fact.job]
    if job.guaranteed is None and fact.firm:
        job.guaranteed = fact.meets
    job.meets, job.expected_end_s = fact.meets, fact.end_s
    touch(state, job)
