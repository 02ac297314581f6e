"""Schema of the head's periodic tasks, as `gsched.protocol.api` is of all else."""

from enum import StrEnum

from msgspec import Struct


class TaskOutcome(StrEnum):
    """How the last run of a task went."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class TaskRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One periodic task.

    Attributes:
        schedule: as ``[tasks]`` states it.
        started_s: of the last run; None: it has never run.
        ended_s: of it; None: it runs, or the head ended meanwhile.
        outcome: of it; None: it has never run.
        text: what it says of itself, or why it failed.
        next_s: when it runs next; None: never.
        overlaps: how often its time came since the head's start while it still ran.
    """

    name: str
    schedule: str
    started_s: float | None = None
    ended_s: float | None = None
    outcome: TaskOutcome | None = None
    text: str = ""
    next_s: float | None = None
    overlaps: int = 0


class TaskList(Struct, frozen=True, kw_only=True):
    """``GET /v1/tasks``."""

    now_s: float
    tasks: tuple[TaskRow, ...]


class RunTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/tasks``: start a task now."""

    name: str
