"""Frames with a message that cannot be read: that message is set aside, never the connection.

What is in a frame was sent by the peer as it stands: to close the connection would bring the same
message again after the next registration, and so on for ever. Both sides
therefore check a frame as its receiver will decode it before they send it
(`gsched.protocol.framing`), and a receiver reads the other messages of a frame.

A node's report is worth more without some of its parts than not at all, as the end of an attempt
that the head does not learn keeps its resources: parts that cannot be read get their defaults or
are left out (`salvaged`). An order of the head is obeyed as a whole or not at all.
"""

import contextlib
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct, structs

from gsched.model.origin import Origin
from gsched.protocol.node import (
    HeadMessage,
    NodeMessage,
    decode_from_head,
    decode_from_node,
    encode,
    is_packed,
)
from gsched.protocol.unreadable import Unreadable

M = TypeVar("M", bound=Struct)

#: What goes wrong in encoding or decoding a message: bounds, types, surrogates, depth.
FAULTS: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)
MAX_REASON: Final = 500  # characters of a reason
MAX_PARTS: Final = 10  # of a report that are named when they are left out
#: Never taken in part: a job without one of its fields would be another job.
_WHOLE: Final = (Origin,)
_TYPES: Final[dict[str, type[Struct]]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(NodeMessage)
}


class _Envelope(Struct):
    """What names a message, as it stands in the frame."""

    type: Raw = Raw(b"null")
    job: Raw = Raw(b"null")
    attempt: Raw = Raw(b"null")
    launch: Raw = Raw(b"{}")  # of a preparation
    record: Raw = Raw(b"{}")  # of an end


class _PackedEnvelope(Struct):
    """What names a message in a packed frame; nothing else of it is decoded."""

    type: str = ""
    job: int = 0
    attempt: int = 0


class UnreadablePart(Struct, frozen=True):
    """A part of a report that cannot be read; ``job`` is that which it is about, 0: unknown."""

    where: str
    job: int
    reason: str


class Salvaged(Struct, frozen=True):
    """A report without the parts that cannot be read."""

    message: NodeMessage
    lost: tuple[UnreadablePart, ...]


def read_from_head(frame: bytes | memoryview) -> tuple[list[HeadMessage], list[Unreadable]]:
    """Return the messages of a frame that the head sent, and those that cannot be read.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: the frame is no list of messages.
    """
    try:
        return decode_from_head(frame), []
    except FAULTS as error:
        if is_packed(frame):
            return [], [_named_packed(frame, error)]
    read: list[HeadMessage] = []
    unreadable: list[Unreadable] = []
    for raw in _raws(frame):
        try:
            read += decode_from_head(b"[" + bytes(raw) + b"]")
        except FAULTS as error:
            unreadable.append(_named(raw, error))
    return read, unreadable


def read_from_node(
    frame: bytes | memoryview,
) -> tuple[list[NodeMessage], list[Salvaged], list[Unreadable]]:
    """Return the messages of a frame that a node sent, in order.

    Also those of them that are incomplete, and those that cannot be read at all.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: the frame is no list of messages.
    """
    try:
        return decode_from_node(frame), [], []
    except FAULTS as error:
        if is_packed(frame):
            return [], [], [_named_packed(frame, error)]
    read: list[NodeMessage] = []
    incomplete: list[Salvaged] = []
    unreadable: list[Unreadable] = []
    for raw in _raws(frame):
        try:
            read += decode_from_node(b"[" + bytes(raw) + b"]")
            continue
        except FAULTS as error:
            named = _named(raw, error)
        found = None
        with contextlib.suppress(*FAULTS):
            found = _salvaged(msgspec.json.decode(raw))
        if found is None:
            unreadable.append(named)
        else:
            read.append(found.message)
            incomplete.append(found)
    return read, incomplete, unreadable


def salvaged(message: NodeMessage) -> Salvaged | None:
    """Return a report that the head can read, made of one that it cannot; None: there is none."""
    with contextlib.suppress(*FAULTS):
        return _salvaged(msgspec.to_builtins(message))
    return None


def named(message: HeadMessage | NodeMessage, reason: str) -> Unreadable:
    """Return what to say of a message that the peer could not read."""
    inner = getattr(message, "launch", None) or getattr(message, "record", None)
    about = inner if isinstance(inner, Struct) else message
    return Unreadable(
        of=str(type(message).__struct_config__.tag),
        job=_count(getattr(about, "job", 0)),
        attempt=_count(getattr(about, "attempt", 0)),
        reason=reason[:MAX_REASON],
    )


def _salvaged(value: Any) -> Salvaged | None:
    kind = _TYPES.get(str(value.get("type"))) if isinstance(value, dict) else None
    if kind is None:
        raise ValueError("it is of an unknown type")
    lost: list[UnreadablePart] = []
    message = _mended({k: v for k, v in value.items() if k != "type"}, kind, "$", lost)
    decode_from_node(encode([message]))
    return Salvaged(message=message, lost=tuple(lost[:MAX_PARTS]))


def _mended(value: Any, kind: Any, where: str, lost: list[UnreadablePart]) -> Any:
    """Return a value of a type, without what is in it and does not follow the type.

    Raises:
        FAULTS: nothing of it can be used.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except FAULTS:
        origin, of = get_origin(kind), get_args(kind)
        if kind in _WHOLE or origin is Annotated:
            raise
        if origin is tuple and isinstance(value, list | tuple):
            if of[-1] is Ellipsis:
                return tuple(_items(value, of[0], where, lost))
            if len(of) == len(value):
                pairs = enumerate(zip(value, of, strict=True))
                return tuple(_mended(v, k, f"{where}[{i}]", lost) for i, (v, k) in pairs)
        if origin in {Union, UnionType} and len(of) == 2 and NoneType in of:
            return _mended(value, of[0] if of[1] is NoneType else of[1], where, lost)
        if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
            return kind(**_fields(value, kind, where, lost))
        raise


def _items(value: Any, kind: Any, where: str, lost: list[UnreadablePart]) -> Iterator[Any]:
    for index, each in enumerate(value):
        try:
            yield _mended(each, kind, f"{where}[{index}]", lost)
        except FAULTS as error:
            lost.append(UnreadablePart(f"{where}[{index}]", _job_of(each), str(error)[:MAX_REASON]))


def _fields(
    value: dict[str, Any], kind: type[Struct], where: str, lost: list[UnreadablePart]
) -> dict[str, object]:
    """Return the fields that can be used; those with a default may be left out."""
    kept: dict[str, object] = {}
    for field in structs.fields(kind):
        if field.encode_name not in value:
            continue
        inner = f"{where}.{field.name}"
        try:
            kept[field.name] = _mended(value[field.encode_name], field.type, inner, lost)
        except FAULTS as error:
            if field.required:
                raise
            lost.append(UnreadablePart(inner, _job_of(value), str(error)[:MAX_REASON]))
    return kept


def _job_of(value: object) -> int:
    """Return the job that a part of a report is about, 0 if it does not say so."""
    if isinstance(value, dict):
        return _count(value.get("job", 0))
    return _count(value[0]) if isinstance(value, list | tuple) and value else 0


def _count(value: object) -> int:
    with contextlib.suppress(*FAULTS):
        return msgspec.convert(value, Unreadable.__annotations__["job"])  # type: ignore[no-any-return] # Count
    return 0


def _raws(frame: bytes | memoryview) -> list[Raw]:
    try:
        return msgspec.json.decode(frame, type=list[Raw])
    except RecursionError as error:
        raise msgspec.DecodeError(str(error)) from error


def _named_packed(frame: bytes | memoryview, error: BaseException) -> Unreadable:
    (found,) = msgspec.msgpack.decode(frame, type=tuple[_PackedEnvelope])
    return Unreadable(
        of=found.type[:MAX_REASON],
        job=_count(found.job),
        attempt=_count(found.attempt),
        reason=str(error)[:MAX_REASON],
    )


def _named(raw: Raw, error: BaseException) -> Unreadable:
    """Return what a message that cannot be read says of itself."""
    outer = _part(raw, _Envelope, _Envelope())
    inner = _part(outer.launch, _Envelope, _part(outer.record, _Envelope, _Envelope()))
    if _part(inner.job, int, 0) == 0:
        inner = _part(outer.record, _Envelope, inner)
    return Unreadable(
        of=_part(outer.type, str, "")[:MAX_REASON],
        job=_count(_part(outer.job, int, 0) or _part(inner.job, int, 0)),
        attempt=_count(_part(outer.attempt, int, 0) or _part(inner.attempt, int, 0)),
        reason=str(error)[:MAX_REASON],
    )


P = TypeVar("P")


def _part(raw: Raw, kind: type[P], otherwise: P) -> P:
    with contextlib.suppress(*FAULTS):
        return msgspec.json.decode(raw, type=kind)
    return otherwise
