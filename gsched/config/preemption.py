"""The table ``[preemption]``: running jobs that give way to waiting ones."""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Struct

from gsched.config.words import Seconds

#: How a running job gives way, the least lost work first.
PreemptWay = Literal["shrink", "migrate", "checkpoint", "requeue", "cancel"]
WAYS: Final[tuple[PreemptWay, ...]] = get_args(PreemptWay)
#: The last of these ways that is allowed.
PreemptMode = Literal["off", "shrink", "migrate", "checkpoint", "requeue", "cancel"]
#: Likewise of a queue or QOS; empty: that of ``[preemption]``.
OwnPreemptMode = Literal["", "off", "shrink", "migrate", "checkpoint", "requeue", "cancel"]
#: Minimum run time of a queue or QOS; -1: that of ``[preemption]``.
OwnMinRun = Annotated[float, msgspec.Meta(ge=-1, le=1e9)]
PreemptRule = Literal["queue", "qos", "share"]


class PreemptionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[preemption]``: running jobs give way to waiting jobs that are more important.

    Attributes:
        by: which jobs are more important: ``queue``, those of a queue with a higher priority;
            ``qos``, those of a QOS that names the other one in ``preempts``; ``share``, those of
            users below their share, than those of users above theirs. Empty: none are.
        mode: the last of ``shrink``, ``migrate``, ``checkpoint``, ``requeue`` and ``cancel`` that
            may be done to a job; ``off``: none.
        min_run_s: a job runs for so long before it is preempted.
        again_s: after it was preempted, for so long until it is once more; by ``share``, its next
            run takes so long, and each further one twice as long as the one before.
        wait_s: a job waits for so long before others are preempted for it.
        max_loss: the rule ``share`` costs no more than this part of the time of all nodes since the
            head started, and an hour. What is not used is kept, up to that of a day.
    """

    by: tuple[PreemptRule, ...] = ()
    mode: PreemptMode = "requeue"
    min_run_s: Seconds = 60.0
    again_s: Seconds = 1800.0
    wait_s: Seconds = 0.0
    max_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.02
