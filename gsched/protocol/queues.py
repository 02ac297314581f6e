"""Schema of changes of queues, projects, users and QOS, and of scheduling."""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from gsched.model.configuration import ObjectKind

QueueValue = bool | int | float | str | tuple[str, ...]


class QueueChange(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A change by an operator.

    Attributes:
        verb: ``set`` and ``unset`` an attribute, ``add`` to a list and ``remove`` from it,
            ``create`` and ``delete`` an object.
        kind: of the object; see `gsched.config.objects`.
        queue: its name; empty: the server, of which only ``scheduling`` and limits can be set.
        attribute: a key of the object's table, a limit such as ``total.max_gpus``, or
            ``scheduling``.
        value: of ``set``, ``add`` and ``remove``.
        where: it is stated, for the message of a refusal: ``line 7``.
    """

    verb: Literal["set", "unset", "add", "remove", "create", "delete"]
    kind: ObjectKind = "queue"
    queue: str = ""
    attribute: str = ""
    value: QueueValue = 0.0
    where: Annotated[str, msgspec.Meta(max_length=32)] = ""


#: Attributes of objects, by kind and name.
Objects = dict[str, dict[str, dict[str, QueueValue]]]


class QueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/queues``: all of the changes, or none. With ``dry_run`` they are only checked."""

    changes: tuple[QueueChange, ...]
    dry_run: bool = False


class ObjectsReply(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/objects``.

    Attributes:
        objects: attributes that differ from the defaults, by kind and name; see
            `gsched.config.objects`.
    """

    objects: Objects
