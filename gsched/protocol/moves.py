"""A migration of a running job, as users see it."""

from msgspec import Struct


class MoveRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move of a running job: the one under way, or the last.

    Moments are seconds since the epoch, None while they are to come.

    Attributes:
        to: the nodes that it goes to; empty once it is there, or if it goes to its queue.
        gpus: how many it will have there; 0 where ``to`` is empty.
        phase: ``requested``, ``prepared``, ``checkpointed``, ``stopped``, ``placed`` or ``done``.
        requested_s: when it was decided.
        prepared_s: when the processes of its next attempt waited for the launch; None: they do not.
        start: of that attempt: ``warm``, or ``cold:`` and why; empty: it is not known.
        saved_s: when its checkpoint was published.
        left_s: when nothing of it was left at its old place.
        placed_s: when it had its new place.
        resumed_s: when its first step there was done.
        save_s, restore_s: what writing and reading the checkpoint took, seconds.
        cost_s: time without progress: from the checkpoint, or from the order to a job that knows
            only its signal, to the first step at the new place.
        lost: how the job was killed at its checkpoint signal: it restarts, and has not moved.
    """

    phase: str
    requested_s: float
    to: tuple[str, ...] = ()
    gpus: int = 0
    why: str = ""
    by: str = ""
    prepared_s: float | None = None
    start: str = ""
    saved_s: float | None = None
    left_s: float | None = None
    placed_s: float | None = None
    resumed_s: float | None = None
    save_s: float = 0.0
    restore_s: float = 0.0
    size_bytes: int = 0
    cost_s: float | None = None
    lost: str = ""
