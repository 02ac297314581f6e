"""The time that migrations keep training jobs from working: measured, and expected."""

from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.models.kinds import kind_of
from gschedd.models.startup import StartupKey


def cost_by_resuming(job: Job, now_s: float) -> f.MigrationMeasured | None:
    """Return what the move of a job has cost whose first step after it is done.

    That is the time from the step after which it saved its state. Nothing is known of the cost of
    one that was restarted, or knows only its signal.
    """
    migration = job.migration
    if migration is None or not migration.saved_s or not migration.placed_s or migration.resumed_s:
        return None
    family = StartupKey.of(kind_of(job.spec))
    return f.MigrationMeasured(
        at_s=now_s,
        job=job.id,
        attempt=job.attempts,
        cost_s=max(0.0, now_s - (migration.saved_s - migration.save_s)),
        save_s=migration.save_s,
        size_bytes=migration.size_bytes,
        kind=family.kind,
        program=family.program,
        owner_uid=family.owner_uid,
    )


def learn(state: State, fact: f.MigrationMeasured) -> None:
    """Take a move into account; also of a job that is over, when a head starts."""
    family = StartupKey(kind=fact.kind, program=fact.program, owner_uid=fact.owner_uid)
    state.move_costs.learn(family, fact.cost_s)


def expected_move_s(job: Job, state: State, settings: Settings, startup_s: float) -> float:
    """Return how long a move is expected to keep a training from working, seconds.

    What moves of its kind, its program, its owner or all training jobs took in the middle; where
    there were none, what the site says, no less than its start, and what its own last checkpoint
    took.

    Args:
        job: it.
        state: what is known.
        settings: what is said where nothing was measured.
        startup_s: from a start to the first step, as far as is known.
    """
    if state.move_costs:
        return state.move_costs.expected_s(StartupKey.of(kind_of(job.spec)))
    save_s = job.saved.wall_s if job.saved is not None else 0.0
    return max(settings.config.training.move_s, startup_s + save_s)
