"""Schema of changes of queues and of scheduling, as `gsched.protocol.api` is of all else."""

from typing import Literal

from msgspec import Struct

QueueValue = bool | int | float | str | tuple[str, ...]


class QueueChange(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A change by an operator.

    Attributes:
        verb: ``set`` and ``unset`` an attribute, ``add`` to a list and ``remove`` from it,
            ``create`` and ``delete`` a queue.
        queue: its name; empty: all scheduling is meant (``set`` of ``scheduling`` only).
        attribute: a key of ``[[queue]]``, or ``scheduling``.
        value: of ``set``, ``add`` and ``remove``.
    """

    verb: Literal["set", "unset", "add", "remove", "create", "delete"]
    queue: str = ""
    attribute: str = ""
    value: QueueValue = 0.0


class QueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/queues``: all of the changes, or none."""

    changes: tuple[QueueChange, ...]
