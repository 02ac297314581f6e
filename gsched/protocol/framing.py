"""Packs messages into frames of the node channel, by their bytes.

Messages differ by a factor of 100,000 in size: a stop has 80 bytes, a launch may hold a script of
16 MiB. A frame beyond `MAX_FRAME_BYTES` closes the connection, so what counts is bytes.

A message with a piece of a file goes alone, packed, to a peer that can read that: its bytes as they
are, without base64.

Each frame is decoded as its receiver will decode it before it is sent: a message that the receiver
could not read would be sent again after each new connection.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from gsched.protocol.code import CodeRead
from gsched.protocol.deliveries import DeliverPiece, FileDone, FileOrder, StagedRead
from gsched.protocol.node import (
    MAX_FRAME_BYTES,
    HeadMessage,
    KnownAttempt,
    KnownAttempts,
    NodeMessage,
    decode_from_head,
    decode_from_node,
    encode_packed,
)
from gsched.protocol.reading import FAULTS, salvaged

FRAME_BYTES: Final = 4 * 1024 * 1024  # of a frame with more than one message
FRAME_MESSAGES: Final = 2_000  # of one frame: the receiver handles it in one turn

_WITH_DATA: Final = (CodeRead, DeliverPiece, FileDone, FileOrder, StagedRead)
_encoder = msgspec.json.Encoder()
M = TypeVar("M", bound=Struct)


class Frame(NamedTuple, Generic[M]):
    """Some messages, encoded as one JSON list, or one message, packed."""

    payload: bytes
    messages: Sequence[M]


def frames_from_head(
    messages: Sequence[HeadMessage],
    set_aside: Callable[[HeadMessage, str], None],
    *,
    packs: bool = False,
) -> Iterator[Frame[HeadMessage]]:
    """Yield frames that hold all messages in order; a larger message than a frame goes alone.

    Messages are encoded as the frames are requested: a sender that waits for a slow peer holds one
    frame and one message more, not all.

    Args:
        messages: in the order in which they are sent.
        set_aside: takes each message that the node could not read, with the reason.
        packs: the node reads packed frames.
    """
    return _frames(messages, decode_from_head, set_aside, packs=packs)


def frames_from_node(
    messages: Sequence[NodeMessage],
    set_aside: Callable[[NodeMessage, str], None],
    *,
    packs: bool = False,
) -> Iterator[Frame[NodeMessage]]:
    """Yield the same of a node; a report goes without the parts that the head could not read.

    Args:
        messages: in the order in which they are sent.
        set_aside: takes each message that the head could not read, with what is wrong with it.
        packs: the head reads packed frames.
    """

    def mend(message: NodeMessage, reason: str) -> NodeMessage | None:
        set_aside(message, reason)
        found = salvaged(message)
        return None if found is None else found.message

    return _frames(messages, decode_from_node, mend, packs=packs)


def _frames(
    messages: Sequence[M],
    decode: Callable[[bytes], Sequence[object]],
    set_aside: Callable[[M, str], M | None],
    *,
    packs: bool,
) -> Iterator[Frame[M]]:
    parts: list[tuple[bytes, M]] = []
    size = 0
    for message in messages:
        packed = _packed(message, decode) if packs else None
        if packed is not None:
            if parts:
                yield from _checked(parts, decode, set_aside)
                parts, size = [], 0
            yield packed
            continue
        part = _part(message)
        if parts and (size + len(part) + 2 > FRAME_BYTES or len(parts) >= FRAME_MESSAGES):
            yield from _checked(parts, decode, set_aside)
            parts, size = [], 0
        parts.append((part, message))
        size += len(part) + 1
    if parts:
        yield from _checked(parts, decode, set_aside)


def _packed(message: M, decode: Callable[[bytes], Sequence[object]]) -> Frame[M] | None:
    """Return the packed frame of a message with data; None: its receiver could not read it.

    The message is checked without its data, which may be any bytes.
    """
    if type(message) not in _WITH_DATA:
        return None
    try:
        frame = Frame(encode_packed(message), [message])
        bare = Frame(encode_packed(structs.replace(message, data=b"")), [message])
    except FAULTS:
        return None
    return None if len(frame.payload) > MAX_FRAME_BYTES or _fault(bare, decode) else frame


def _part(message: Struct) -> bytes:
    """Return a message as JSON; what cannot be encoded is no JSON, and so found by the check."""
    try:
        return _encoder.encode(message)
    except FAULTS:
        return b""


def _checked(
    parts: list[tuple[bytes, M]],
    decode: Callable[[bytes], Sequence[object]],
    set_aside: Callable[[M, str], M | None],
) -> Iterator[Frame[M]]:
    """Yield a frame if its receiver can read it, else one of the messages that it can read."""
    frame = _frame(parts)
    if not _fault(frame, decode):
        yield frame
        return
    readable: list[tuple[bytes, M]] = []
    for part, message in parts:
        reason = _fault(_frame([(part, message)]), decode)
        kept: M | None = message
        if reason:
            kept = set_aside(message, reason)
        if kept is not None:
            readable.append((_part(kept), kept))
    if readable:
        yield _frame(readable)


def _fault(frame: Frame[M], decode: Callable[[bytes], Sequence[object]]) -> str:
    """Return why the receiver could not read a frame; empty: it can."""
    size = len(frame.payload)
    if size > MAX_FRAME_BYTES:
        return f"it has {size} bytes; the limit is {MAX_FRAME_BYTES}"
    try:
        if len(decode(frame.payload)) == len(frame.messages):
            return ""
        reason = "it cannot be encoded"
    except FAULTS as error:
        reason = str(error)
    try:
        _encoder.encode(frame.messages)
    except FAULTS as error:
        reason = str(error)
    return reason


def _frame(parts: list[tuple[bytes, M]]) -> Frame[M]:
    payload = b"[" + b",".join(part for part, _ in parts) + b"]"
    return Frame(payload, [message for _, message in parts])


def known_pieces(attempts: Sequence[KnownAttempt]) -> Iterator[KnownAttempts]:
    """Yield the answer to a survey in messages that fit into frames, the last one ``done``."""
    piece: list[KnownAttempt] = []
    size = 0
    for attempt in attempts:
        length = len(_part(attempt)) + 1
        if piece and size + length > FRAME_BYTES // 2:
            yield KnownAttempts(attempts=tuple(piece))
            piece, size = [], 0
        piece.append(attempt)
        size += length
    if piece:
        yield KnownAttempts(attempts=tuple(piece))
    yield KnownAttempts(attempts=(), done=True)
