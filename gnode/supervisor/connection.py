"""One connection of gnode to the launcher: JSON lines in both directions, never blocking."""

import json
import socket
import struct
import time

_READ_BYTES = 1 << 18
_LINE_BYTES_MAX = 1 << 16  # a request is some 40 bytes
_UNSENT_BYTES_MAX = 1 << 20  # who does not read this much is gone, and finds all in the spool


class ConnectionLostError(Exception):
    """The other side closed, or does not follow the protocol."""


class Connection:
    """Buffers around one accepted socket.

    Attributes:
        keeps: the other side makes exit records durable, and says of which attempts it has.
        unkept: those of which it was told and has not said so, with when (CLOCK_MONOTONIC).
        waits: it is waited for until the socket takes what is left to send.
    """

    __slots__ = ("_received", "_socket", "_unsent", "keeps", "unkept", "waits")

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._socket = accepted
        self._received = b""
        self._unsent = bytearray()
        self.keeps = False
        self.unkept: dict[str, float] = {}
        self.waits = False

    @property
    def has_unsent(self) -> bool:
        """Return whether something is left to send."""
        return bool(self._unsent)

    def peer_uid(self) -> int:
        """Return the uid that the kernel saw when the other side connected."""
        answer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("iII", answer)[1])

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; what is unsent is dropped."""
        self._socket.close()

    def requests(self) -> list[dict[str, object]]:
        """Return the requests that have come in whole.

        Raises:
            ConnectionLostError: the other side closed or sent something else.
        """
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        if not chunk:
            raise ConnectionLostError("closed")
        *lines, self._received = (self._received + chunk).split(b"\n")
        if len(self._received) > _LINE_BYTES_MAX:
            raise ConnectionLostError("a request is too long")
        try:
            found = [json.loads(line) for line in lines if line]
        except (ValueError, RecursionError) as error:
            raise ConnectionLostError(f"no JSON: {error}") from error
        if not all(isinstance(request, dict) for request in found):
            raise ConnectionLostError("a request is no JSON object")
        return found

    def put(self, message: dict[str, object]) -> None:
        """Queue a message for `flush`."""
        self._unsent += json.dumps(message).encode() + b"\n"

    def put_ended(self, name: str, pid: int, record: bytes, info: bytes) -> None:
        """Queue the message that an attempt has ended, with its records that are known."""
        known = b', "record": %s' % record if record else b""
        known += b', "info": %s' % info if info else b""
        if self.keeps:
            self.unkept[name] = time.monotonic()
            known += b', "unflushed": true'
        self._unsent += b'{"ended": "%s", "pid": %d%s}\n' % (name.encode(), pid, known)

    def flush(self) -> bool:
        """Send what the socket takes; return whether something is left.

        Raises:
            ConnectionLostError: the other side is gone or reads nothing.
        """
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > _UNSENT_BYTES_MAX:
                raise ConnectionLostError("the other side does not read") from None
        except OSError as error:
            raise ConnectionLostError(str(error)) from error
        return bool(self._unsent)
