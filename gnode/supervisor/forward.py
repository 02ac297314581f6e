"""The relay of forwarded ports in a job: `gshell -L`, as a process of the job's owner.

It is what a keeper's terminal runs instead of a shell (`gnode.supervisor.shells`), so it belongs to
the attempt in every respect, and reaches what a process of the job reaches: ports of the loopback
addresses of its node. It ends with the session.
"""

import contextlib
import errno
import os
import select
import socket
import tty
from typing import Final

from gsched.forwarding import (
    CONNECTIONS_MAX,
    GREETING,
    PIECE_BYTES,
    WINDOW_BYTES,
    RecordError,
    RecordKind,
    Records,
    count_of,
    port_of,
    record,
    taken_record,
)

_STDIN, _STDOUT = 0, 1
_UNSENT_MOST: Final = 256 * 1024  # towards the client; then nothing more is read
_ADDRESSES: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class _Connection:
    """One connection to a port of this node."""

    __slots__ = (
        *("addresses", "channel", "ends", "has_ended", "is_open", "port", "unsent", "window"),
    )

    def __init__(self, port: int) -> None:
        self.port = port
        self.addresses = list(_ADDRESSES)  # still to be tried
        self.channel: socket.socket | None = None
        self.is_open = False
        self.unsent = bytearray()  # to the port
        self.window = WINDOW_BYTES  # what the client takes
        self.ends = False  # the client sends no more
        self.has_ended = False  # the port sends no more


class _Relay:
    def __init__(self) -> None:
        self._records = Records()
        self._connections: dict[int, _Connection] = {}
        self._out = bytearray()

    def run(self) -> None:
        """Carry connections until the client is gone."""
        while self._step():
            pass

    def _step(self) -> bool:
        poll = select.poll()
        poll.register(_STDIN, select.POLLIN | (select.POLLOUT if self._out else 0))
        numbers: dict[int, int] = {}
        for number, each in self._connections.items():
            wanted = self._wanted(each)
            if each.channel is not None and wanted:  # else its end would be told again and again
                poll.register(each.channel, wanted)
                numbers[each.channel.fileno()] = number
        for fd, events in poll.poll():
            if fd == _STDIN:
                if events & select.POLLOUT:
                    self._flush()
                if events & ~select.POLLOUT and not self._read():
                    return False
            elif numbers[fd] in self._connections:
                self._serve(numbers[fd], self._connections[numbers[fd]], events)
        return True

    def _wanted(self, each: _Connection) -> int:
        if not each.is_open:
            return select.POLLOUT
        reads = not each.has_ended and each.window > 0 and len(self._out) < _UNSENT_MOST
        return (select.POLLIN if reads else 0) | (select.POLLOUT if each.unsent else 0)

    # --- the client ---

    def _read(self) -> bool:
        """Take what the client sends; return False if it is gone."""
        try:
            data = os.read(_STDIN, PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the terminal is closed
            return False
        if not data:
            return False
        for part, number, content in self._records.feed(data):
            self._heed(part, number, content)
        return True

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            del self._out[: os.write(_STDOUT, self._out)]

    def _heed(self, part: RecordKind, number: int, content: bytes) -> None:
        if part is RecordKind.OPEN:
            self._open(number, port_of(content))
            return
        each = self._connections.get(number)
        if each is None:  # it has just been closed here
            return
        match part:
            case RecordKind.DATA:
                each.unsent += content
                if len(each.unsent) > WINDOW_BYTES:
                    raise RecordError("more than the window")
            case RecordKind.TAKEN:
                each.window += count_of(content)
            case RecordKind.EOF:
                each.ends = True
                self._finish(number, each)
            case RecordKind.CLOSE:
                self._drop(number)
            case _:
                raise RecordError(f"{part} from a client")

    # --- ports ---

    def _open(self, number: int, port: int) -> None:
        if number in self._connections:
            raise RecordError("a connection that is there")
        if len(self._connections) >= CONNECTIONS_MAX:
            self._out += record(
                RecordKind.FAILED, number, b"%d connections are open, the limit" % CONNECTIONS_MAX
            )
            return
        self._connections[number] = _Connection(port)
        self._try_next(number, self._connections[number], errno.ECONNREFUSED)

    def _try_next(self, number: int, each: _Connection, error: int) -> None:
        """Connect to the next address; without any, the connection fails for ``error``."""
        if each.channel is not None:
            each.channel.close()
            each.channel = None
        while each.addresses:
            family, address = each.addresses.pop(0)
            try:
                channel = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as failure:
                error = failure.errno or error
                continue
            found = channel.connect_ex((address, each.port))
            if found in {0, errno.EINPROGRESS}:
                each.channel = channel
                return
            channel.close()
        del self._connections[number]
        self._out += record(RecordKind.FAILED, number, os.strerror(error).lower().encode())

    def _serve(self, number: int, each: _Connection, events: int) -> None:
        assert each.channel is not None, "it is polled"
        if not each.is_open:
            error = each.channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._try_next(number, each, error)
                return
            each.is_open = True
            self._out += record(RecordKind.OPENED, number)
            self._finish(number, each)
            return
        try:
            if events & select.POLLOUT and each.unsent:
                sent = each.channel.send(each.unsent)
                del each.unsent[:sent]
                self._out += taken_record(number, sent)
            if events & ~select.POLLOUT and not each.has_ended and each.window > 0:
                self._take(number, each, each.channel)
            elif events & (select.POLLHUP | select.POLLERR):
                self._lose(number)
                return
        except BlockingIOError:
            return
        except OSError:
            self._lose(number)
            return
        self._finish(number, each)

    def _take(self, number: int, each: _Connection, channel: socket.socket) -> None:
        data = channel.recv(min(PIECE_BYTES, each.window))
        if data:
            each.window -= len(data)
            self._out += record(RecordKind.DATA, number, data)
        else:
            each.has_ended = True
            self._out += record(RecordKind.EOF, number)

    def _finish(self, number: int, each: _Connection) -> None:
        """End what has ended, once all is written."""
        if not each.is_open or each.unsent or not each.ends or each.channel is None:
            return
        if each.has_ended:
            self._drop(number)
            return
        try:
            each.channel.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose(number)

    def _lose(self, number: int) -> None:
        self._out += record(RecordKind.CLOSE, number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        each = self._connections.pop(number)
        if each.channel is not None:
            each.channel.close()


def serve() -> int:
    """Relay connections between the terminal of this process and ports; return an exit code."""
    tty.setraw(_STDIN)
    os.write(_STDOUT, GREETING)
    os.set_blocking(_STDIN, False)
    try:
        _Relay().run()
    except RecordError:
        return 1
    return 0
