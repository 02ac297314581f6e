"""Schema of changes of queues and of scheduling, as `gsched.protocol.api` is of all else."""

from typing import Literal

from msgspec import Struct

#: What can be changed of a queue on a running head.
QUEUE_ATTRIBUTES = ("enabled", "started", "max_walltime_s", "default_walltime_s")


class QueueChange(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A change by an operator.

    Attributes:
        verb: ``set`` and ``unset`` an attribute, ``create`` and ``delete`` a queue.
        queue: its name; empty: all scheduling is meant (``set`` of ``scheduling`` only).
        attribute: one of `QUEUE_ATTRIBUTES`, or ``scheduling``.
        value: of ``set``: true or false, or seconds (0: no limit).
    """

    verb: Literal["set", "unset", "create", "delete"]
    queue: str = ""
    attribute: str = ""
    value: bool | float = 0.0


class QueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/queues``: all of the changes, or none."""

    changes: tuple[QueueChange, ...]
