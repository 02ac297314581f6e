"""Packs messages into frames of the node channel, by their bytes.

Messages differ by a factor of 100,000 in size: a stop has 80 bytes, a launch may hold a script of
16 MiB. A frame beyond `MAX_FRAME_BYTES` closes the connection, so what counts is bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gsched.protocol.node import HeadMessage, Known, KnownAttempt, NodeMessage

FRAME_BYTES: Final = 4 * 1024 * 1024  # of a frame with more than one message
FRAME_MESSAGES: Final = 2_000  # of one frame: the receiver handles it in one turn

_encoder = msgspec.json.Encoder()


class Frame(NamedTuple):
    """Some messages, encoded as one JSON list of ``number``."""

    payload: bytes
    number: int


def frames(messages: Sequence[HeadMessage] | Sequence[NodeMessage]) -> Iterator[Frame]:
    """Yield frames that hold all messages in order; a larger message than a frame goes alone.

    Messages are encoded as the frames are asked for: a sender that waits for a slow peer holds one
    frame and one message more, not all.
    """
    parts: list[bytes] = []
    size = 0
    for message in messages:
        part = _encoder.encode(message)
        if parts and (size + len(part) + 2 > FRAME_BYTES or len(parts) >= FRAME_MESSAGES):
            yield _frame(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield _frame(parts)


def _frame(parts: list[bytes]) -> Frame:
    return Frame(b"[" + b",".join(parts) + b"]", len(parts))


def known_pieces(attempts: Sequence[KnownAttempt]) -> Iterator[Known]:
    """Yield the answer to a survey in messages that fit into frames, the last one ``done``."""
    piece: list[KnownAttempt] = []
    size = 0
    for attempt in attempts:
        length = len(_encoder.encode(attempt)) + 1
        if piece and size + length > FRAME_BYTES // 2:
            yield Known(attempts=tuple(piece))
            piece, size = [], 0
        piece.append(attempt)
        size += length
    if piece:
        yield Known(attempts=tuple(piece))
    yield Known(attempts=(), done=True)
