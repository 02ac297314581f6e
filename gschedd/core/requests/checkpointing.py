"""What a submission says of saving its state and of starting anew, checked, with refusals."""

from typing import Final

from msgspec import Struct

from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_CHECKPOINT_INTERVAL_S, MAX_LEASE_S, MIN_LEASE_S
from gsched.model.signals import MAX_SIGNAL, describe_signal
from gsched.model.units import format_duration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.state.settings import Settings

#: Signals that no program can take notice of: KILL and STOP.
DEAF_SIGNALS: Final = frozenset({9, 19})
EARLY_MOST_S: Final = 65_535.0  # of a signal before the end of the walltime: Slurm's limit
MAX_RESTARTS: Final = 1000
DEFAULT_RESTARTS: Final = 3
MIN_INTERVAL_S: Final = 1.0
NODE_FAILURE: Final = "node-failure"


class Saving(Struct, frozen=True, kw_only=True):
    """The fields of `JobSpec`, and what the user should know of them."""

    movable: bool = False
    checkpoint_dir: str = ""
    checkpoint_interval_s: float | None = None
    checkpoint_signal: int = 0
    restarts_max: int = 0
    lease_s: float = 0.0
    warnings: tuple[str, ...] = ()


def saving_of(submitted: SubmitJob, walltime_s: float | None, settings: Settings) -> Saving:
    """Return what a submission says of it.

    Raises:
        InvalidRequestError: it cannot be so, or contradicts itself.
    """
    signal = _checked_signal(submitted.checkpoint_signal)
    movable = submitted.movable or signal > 0
    if submitted.checkpoint_dir and not movable:
        raise InvalidRequestError(
            f"checkpoints in {submitted.checkpoint_dir}, but the job saves none",
            hint="say --elastic (it uses gsched.elastic) or --checkpoint-signal",
        )
    if submitted.checkpoint_dir and not submitted.checkpoint_dir.startswith("/"):
        raise InvalidRequestError(
            f"checkpoint directory {submitted.checkpoint_dir!r} is not absolute"
        )
    return Saving(
        movable=movable,
        checkpoint_dir=submitted.checkpoint_dir,
        checkpoint_interval_s=_checked_interval(submitted),
        checkpoint_signal=signal,
        restarts_max=_checked_restarts(submitted),
        lease_s=_lease_s(submitted, settings),
        warnings=_early_notes(submitted, walltime_s),
    )


def _checked_signal(signal: int) -> int:
    if not 0 <= signal <= MAX_SIGNAL:
        raise InvalidRequestError(f"signal {signal} is not between 1 and {MAX_SIGNAL}")
    if signal in DEAF_SIGNALS:
        raise InvalidRequestError(
            f"signal {describe_signal(signal)} cannot be caught, so it cannot request a checkpoint",
            hint="take USR1 or USR2",
        )
    return signal


def _checked_interval(submitted: SubmitJob) -> float | None:
    interval_s = submitted.checkpoint_interval_s
    if interval_s is None:
        return None
    if not submitted.movable:
        raise InvalidRequestError(
            "only a job that uses gsched.elastic takes an interval of checkpoints",
            hint="say --elastic, or leave --checkpoint-interval out",
        )
    if not MIN_INTERVAL_S <= interval_s <= MAX_CHECKPOINT_INTERVAL_S:
        raise InvalidRequestError(
            f"a checkpoint every {interval_s:g} s is not possible",
            hint=f"give {MIN_INTERVAL_S:g} s to {format_duration(MAX_CHECKPOINT_INTERVAL_S)}",
        )
    return interval_s


def _checked_restarts(submitted: SubmitJob) -> int:
    if not submitted.requeue_on:
        return 0
    if submitted.requeue_on != NODE_FAILURE:
        raise InvalidRequestError(
            f"requeue on {submitted.requeue_on!r} is not known", hint=f"say {NODE_FAILURE}"
        )
    limit = DEFAULT_RESTARTS if submitted.requeue_limit is None else submitted.requeue_limit
    if not 1 <= limit <= MAX_RESTARTS:
        raise InvalidRequestError(f"{limit} restarts are not between 1 and {MAX_RESTARTS}")
    return limit


def _lease_s(submitted: SubmitJob, settings: Settings) -> float:
    """Return the lease of a submission in seconds, 0 for none.

    Raises:
        InvalidRequestError: it is too short or too long, or the job may not run again.
    """
    lease_s = submitted.lease_s
    if lease_s is None:
        return settings.config.head.lease_s if submitted.rerunnable else 0.0
    if lease_s == 0:
        return 0.0
    if not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
        raise InvalidRequestError(
            f"a lease of {lease_s:.15g} s is not between {MIN_LEASE_S} s and "
            f"{format_duration(MAX_LEASE_S)}",
            hint="specify a lease within these limits, or none",
        )
    if not submitted.rerunnable:
        raise InvalidRequestError(
            "a lease requires a rerunnable job, but this one must not be rerun (-r n)",
            hint="omit the lease or -r n",
        )
    return lease_s


def _early_notes(submitted: SubmitJob, walltime_s: float | None) -> tuple[str, ...]:
    """Return what the user should know of the signal before the end of the walltime.

    Raises:
        InvalidRequestError: no such signal, or a time that is too long.
    """
    early = submitted.early_signal
    if early is None:
        return ()
    _checked_signal(early.signal)
    if not early.signal or not 0 <= early.before_s <= EARLY_MOST_S:
        raise InvalidRequestError(
            f"signal {early.signal}, {early.before_s:g} s before the end of the walltime: at least "
            f"signal 1, and 0 to {EARLY_MOST_S:g} s",
            hint="write --signal USR1@60, for example",
        )
    if walltime_s is None:
        return ("--signal has no effect: the job has no walltime",)
    if early.before_s >= walltime_s:
        return ("--signal is sent when the job starts: its walltime is not longer",)
    return ()
