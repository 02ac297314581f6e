"""What a submission says of saving its state and of starting anew, checked, with refusals."""

import math
from typing import Final

from msgspec import Struct

from gsched.errors import InvalidRequestError
from gsched.model.signals import describe_signal
from gsched.protocol.api import SubmitJob

MAX_SIGNAL: Final = 64
#: Signals that no program can take notice of: KILL and STOP.
DEAF_SIGNALS: Final = frozenset({9, 19})
MAX_RESTARTS: Final = 1000
DEFAULT_RESTARTS: Final = 3
MIN_INTERVAL_S: Final = 1.0
NODE_FAILURE: Final = "node-failure"


class Saving(Struct, frozen=True, kw_only=True):
    """The fields of `JobSpec`."""

    movable: bool = False
    checkpoint_dir: str = ""
    checkpoint_interval_s: float | None = None
    checkpoint_signal: int = 0
    restarts_max: int = 0


def saving_of(asked: SubmitJob) -> Saving:
    """Return what a submission says of it.

    Raises:
        InvalidRequestError: it cannot be so, or contradicts itself.
    """
    signal = _checked_signal(asked.checkpoint_signal)
    movable = asked.movable or signal > 0
    if asked.checkpoint_dir and not movable:
        raise InvalidRequestError(
            f"checkpoints in {asked.checkpoint_dir}, but the job saves none",
            hint="say --elastic (it uses gsched.elastic) or --checkpoint-signal",
        )
    if asked.checkpoint_dir and not asked.checkpoint_dir.startswith("/"):
        raise InvalidRequestError(f"checkpoint directory {asked.checkpoint_dir!r} is not absolute")
    return Saving(
        movable=movable,
        checkpoint_dir=asked.checkpoint_dir,
        checkpoint_interval_s=_checked_interval(asked),
        checkpoint_signal=signal,
        restarts_max=_checked_restarts(asked),
    )


def _checked_signal(signal: int) -> int:
    if not 0 <= signal <= MAX_SIGNAL:
        raise InvalidRequestError(f"signal {signal} is not between 1 and {MAX_SIGNAL}")
    if signal in DEAF_SIGNALS:
        raise InvalidRequestError(
            f"no program hears signal {describe_signal(signal)}, so none saves its state for it",
            hint="take USR1 or USR2",
        )
    return signal


def _checked_interval(asked: SubmitJob) -> float | None:
    interval_s = asked.checkpoint_interval_s
    if interval_s is None:
        return None
    if not asked.movable:
        raise InvalidRequestError(
            "only a job that uses gsched.elastic takes an interval of checkpoints",
            hint="say --elastic, or leave --checkpoint-interval out",
        )
    if not MIN_INTERVAL_S <= interval_s < math.inf:
        raise InvalidRequestError(
            f"a checkpoint every {interval_s:g} s is not possible",
            hint=f"give {MIN_INTERVAL_S:g} s or more",
        )
    return interval_s


def _checked_restarts(asked: SubmitJob) -> int:
    if not asked.requeue_on:
        return 0
    if asked.requeue_on != NODE_FAILURE:
        raise InvalidRequestError(
            f"requeue on {asked.requeue_on!r} is not known", hint=f"say {NODE_FAILURE}"
        )
    limit = DEFAULT_RESTARTS if asked.requeue_limit is None else asked.requeue_limit
    if not 1 <= limit <= MAX_RESTARTS:
        raise InvalidRequestError(f"{limit} restarts are not between 1 and {MAX_RESTARTS}")
    return limit
