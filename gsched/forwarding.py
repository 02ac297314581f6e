"""Forwarded ports: several connections in one stream of bytes between a client and a job.

`gshell -L` listens on the user's machine and starts a relay in the job, which connects to ports of
its node. Between them each part of a connection is one record: its kind, the number of the
connection, and a content. Each side may have `WINDOW_BYTES` of a connection under way that the
other one has not written yet, so that a reader that does not read stops its own connection only.
Standard library only: the supervisor uses it too.
"""

import enum
import struct
from collections.abc import Iterator
from typing import Final

#: What the relay writes first, when the stream passes all bytes on as they are.
GREETING: Final = b"gsched-forward 1\n"
CONNECTIONS_MAX: Final = 64  # at once in one stream
WINDOW_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 16 * 1024  # of one record

_HEADER: Final = struct.Struct(">BIH")
_PORT: Final = struct.Struct(">H")
_COUNT: Final = struct.Struct(">I")


class RecordKind(enum.Enum):
    """What a record is."""

    OPEN = 1  # to the relay: connect to the port
    OPENED = 2
    FAILED = 3  # to the client, with the reason
    DATA = 4
    TAKEN = 5  # so many bytes more were written
    EOF = 6  # no more data in this direction
    CLOSE = 7  # the connection is gone


class RecordError(ValueError):
    """Bytes that no peer of this version sends."""


def record(part: RecordKind, number: int, content: bytes = b"") -> bytes:
    """Return one record of a connection."""
    return _HEADER.pack(part.value, number, len(content)) + content


def open_record(number: int, port: int) -> bytes:
    """Return the record that opens a connection to a port."""
    return record(RecordKind.OPEN, number, _PORT.pack(port))


def port_of(content: bytes) -> int:
    """Return the port of a `Part.OPEN` record.

    Raises:
        RecordError: it names none.
    """
    if len(content) != _PORT.size:
        raise RecordError("a port of another length")
    return int(_PORT.unpack(content)[0])


def taken_record(number: int, count: int) -> bytes:
    """Return the record that says that ``count`` bytes more were written."""
    return record(RecordKind.TAKEN, number, _COUNT.pack(count))


def count_of(content: bytes) -> int:
    """Return the number of bytes of a `Part.TAKEN` record.

    Raises:
        RecordError: it names none.
    """
    if len(content) != _COUNT.size:
        raise RecordError("a count of another length")
    return int(_COUNT.unpack(content)[0])


class Records:
    """Records out of a stream that comes in pieces of any size."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[RecordKind, int, bytes]]:
        """Yield the records that are complete now: kind, connection, content.

        Raises:
            RecordError: one is of an unknown kind, or too long.
        """
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            value, number, size = _HEADER.unpack_from(self._rest)
            try:
                part = RecordKind(value)
            except ValueError:
                raise RecordError(f"a record of an unknown kind, {value}") from None
            if size > PIECE_BYTES:
                raise RecordError(f"a record of {size} bytes")
            end = _HEADER.size + size
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield part, number, content
