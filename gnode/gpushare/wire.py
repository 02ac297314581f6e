"""Messages between the token daemon and processes of jobs: 64 bytes, little-endian.

`gnode/gpushare/native/gpushare.h` has the same numbers, and a test compares them.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 2
CLAIM_HELD: Final = 1
FORCED: Final = 2
CHANNEL_LAUNCH: Final = 0
CHANNEL_MEMORY: Final = 1
SECRET_BYTES_MAX: Final = 128

_STRUCT: Final = struct.Struct("<HHIIIQQQQQQ")
MESSAGE_BYTES: Final = _STRUCT.size
MAX_NUMBER: Final = 2**64 - 1


class Kind(IntEnum):
    """Types of messages."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    GRANT = 4
    REVOKE = 5
    RELEASED = 6
    YIELD = 7
    RESERVE = 8
    RESERVED = 9
    REFUSED = 10
    FREE = 11
    STAT = 12
    WAITING = 13
    BUSY = 14
    PING = 15
    PONG = 16
    LOADING = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; what the numbers mean depends on its kind."""

    kind: Kind
    flags: int = 0
    pid: int = 0
    client: int = 0
    seq: int = 0
    epoch: int = 0
    a: int = 0
    b: int = 0
    c: int = 0


class BadMessageError(ValueError):
    """Bytes that are not a message of this version."""


def pack(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _STRUCT.pack(
        VERSION,
        message.kind,
        message.flags,
        message.pid,
        message.client,
        message.seq,
        message.epoch,
        message.a,
        message.b,
        message.c,
        0,
    )


def unpack(data: bytes) -> tuple[Message, bytes]:
    """Return the message at the beginning of a datagram, and the bytes behind it.

    Raises:
        BadMessageError: too short, of another version, or of an unknown kind.
    """
    if len(data) < MESSAGE_BYTES:
        raise BadMessageError(f"{len(data)} bytes: a message has {MESSAGE_BYTES}")
    version, kind, *numbers, _reserved = _STRUCT.unpack_from(data)
    if version != VERSION:
        raise BadMessageError(f"version {version}: this is {VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise BadMessageError(f"unknown kind {kind}") from None
    flags, pid, client, seq, epoch, a, b, c = numbers
    message = Message(
        kind=known, flags=flags, pid=pid, client=client, seq=seq, epoch=epoch, a=a, b=b, c=c
    )
    return message, data[MESSAGE_BYTES:]
