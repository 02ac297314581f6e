"""Messages between the token daemon and processes of jobs: 64 bytes, little-endian.

`gnode/gpushare/native/gpushare.h` has the same numbers, and a test compares them.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VERSION: Final = 2
#: Jobs outlive an upgrade with the library that they have loaded: the daemon serves these, too.
OLDEST_VERSION: Final = 1
CLAIM_HELD: Final = 1
FORCED: Final = 2
CHANNEL_LAUNCH: Final = 0
CHANNEL_MEMORY: Final = 1
SECRET_BYTES_MAX: Final = 128

_STRUCT: Final = struct.Struct("<HHIIIQQQQQQ")
MESSAGE_BYTES: Final = _STRUCT.size
MAX_NUMBER: Final = 2**64 - 1


class MessageKind(IntEnum):
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
    VERSION = 255  # the same in all versions, like HELLO and the size of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; what the numbers mean depends on its kind."""

    kind: MessageKind
    flags: int = 0
    pid: int = 0
    client: int = 0
    seq: int = 0
    epoch: int = 0
    a: int = 0
    b: int = 0
    c: int = 0


class BadMessageError(ValueError):
    """Bytes that are not a message."""


class OtherVersionError(BadMessageError):
    """A message of a version that is not served."""


def pack(message: Message, version: int = VERSION) -> bytes:
    """Return the bytes of a message for a peer of a version."""
    return _STRUCT.pack(
        version,
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


def version_of(data: bytes) -> int:
    """Return the version of a message."""
    return int.from_bytes(data[:2], "little")


def unpack(data: bytes) -> tuple[Message, bytes]:
    """Return the message at the beginning of a datagram, and the bytes behind it.

    Raises:
        OtherVersionError: it is of a version that is not served.
        BadMessageError: too short, or of an unknown kind.
    """
    if len(data) < MESSAGE_BYTES:
        raise BadMessageError(f"{len(data)} bytes: a message has {MESSAGE_BYTES}")
    version, kind, *numbers, _reserved = _STRUCT.unpack_from(data)
    if not OLDEST_VERSION <= version <= VERSION:
        raise OtherVersionError(f"version {version}: {OLDEST_VERSION} to {VERSION} are served")
    try:
        known = MessageKind(kind)
    except ValueError:
        raise BadMessageError(f"unknown kind {kind}") from None
    flags, pid, client, seq, epoch, a, b, c = numbers
    message = Message(
        kind=known, flags=flags, pid=pid, client=client, seq=seq, epoch=epoch, a=a, b=b, c=c
    )
    return message, data[MESSAGE_BYTES:]
