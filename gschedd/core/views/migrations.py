"""A job's checkpoints, moves and progress as users see them."""

from gsched.model.reports import Checkpoint, Progress, made_of
from gsched.protocol.api import MoveRow
from gschedd.core.state.records import Job, MigrationProgress, Reached


def move_row(job: Job) -> MoveRow | None:
    """Return the move under way, or the last one; None if there was none, or it came to nothing."""
    migration = job.migration
    if migration is None:
        return None
    move = job.move
    return MoveRow(
        phase=_phase(migration),
        requested_s=migration.requested_s,
        to=tuple(share.node for share in move.allocation) if move is not None else (),
        gpus=sum(len(share.gpu_indices) for share in move.allocation) if move is not None else 0,
        why=move.why if move is not None else "",
        by=move.by if move is not None else "",
        prepared_s=migration.prepared_s or None,
        start=_start(migration),
        saved_s=migration.saved_s or None,
        left_s=migration.left_s or None,
        placed_s=migration.placed_s or None,
        resumed_s=migration.resumed_s or None,
        save_s=migration.save_s,
        restore_s=migration.restore_s,
        size_bytes=migration.size_bytes,
        cost_s=migration.cost_s,
        lost=migration.lost,
    )


def _start(migration: MigrationProgress) -> str:
    """Return how the next attempt starts, or has started, where that is known."""
    if migration.cold:
        return f"cold: {migration.cold}"
    return "warm" if migration.warm or migration.prepared_s else ""


def _phase(migration: MigrationProgress) -> str:
    """Return the last phase of a move that is over."""
    phases = (
        ("done", migration.resumed_s),
        ("placed", migration.placed_s),
        ("stopped", migration.left_s),
        ("checkpointed", migration.saved_s),
        ("prepared", migration.prepared_s),
    )
    return next((name for name, at_s in phases if at_s), "requested")


def checkpoint_row(job: Job) -> Checkpoint | None:
    """Return a training's newest checkpoint that is known."""
    return None if job.saved is None else made_of(Checkpoint, job.saved)


def progress_row(reached: Reached | None) -> Progress | None:
    """Return how far a training is, as it says."""
    return None if reached is None else made_of(Progress, reached)
