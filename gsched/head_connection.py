"""One connection to a head, and one HTTP/1.1 exchange over it, by Unix socket or TCP.

Written by hand on `socket`, because importing `http.client` costs a command 14 ms of start-up and
we need so little of it: one request for each connection, answers with a length, in chunks, or up to
the end of the connection, all of them bounded. A Unix socket needs only `_socket`, the part of
`socket` in C: the rest costs 3 ms, and commands load it when they use it (`gsched.cli`).
"""

import _socket
import errno
import socket
from collections.abc import Callable, Sequence

from gsched.errors import HeadUnreachableError, InternalError, NotPermittedError
from gsched.head_address import HeadAddress
from gsched.protocol.headers import STANDBY_HEADER, WARNING_HEADER
from gsched.unix_address import address_of

CONNECT_TIMEOUT_S = 10.0  # over TCP: the kernel of a host that has power answers at once
MAX_HEADER_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 1024 * 1024 * 1024  # a list of a million jobs is about 300 MB
_READ_BYTES = 256 * 1024

#: After how many seconds without an answer, and what is done then.
Alarm = tuple[float, Callable[[], None]]


class LostConnectionError(HeadUnreachableError):
    """The connection broke after the request was sent: it may have been carried out, or not."""


class UnsentError(HeadUnreachableError):
    """The connection broke before all of the request was sent: it cannot have been carried out."""


class HeadRequest:
    """One request.

    Attributes:
        method: of HTTP.
        target: path and query, percent-encoded.
        body: JSON, or nothing.
        timeout_s: of silence.
    """

    __slots__ = ("body", "method", "target", "timeout_s")

    def __init__(self, method: str, target: str, body: bytes, timeout_s: float):
        self.method = method
        self.target = target
        self.body = body
        self.timeout_s = timeout_s

    def within(self, limit_s: float) -> "HeadRequest":
        """Return this request with at most that time limit."""
        return HeadRequest(self.method, self.target, self.body, min(self.timeout_s, limit_s))


class Answer:
    """What came back: the HTTP status, the body, and when to try again (None: it does not say).

    A head that says when to try again has not begun with the request.

    Attributes:
        warning: why what is shown may be old, or not durable; else empty.
        ruler: the head that rules, where the one that has answered stands by; else empty.
        location: the URL of the request at the head that rules, if the one here stands by.
    """

    __slots__ = ("body", "location", "retry_after_s", "ruler", "status", "warning")

    def __init__(self, status: int, body: bytes | bytearray, headers: dict[str, str]):
        self.status = status
        self.body = body
        wait = headers.get("retry-after", "")
        self.retry_after_s = float(wait) if wait.isdigit() and len(wait) < 4 else None
        self.warning = headers.get(WARNING_HEADER.lower(), "")
        self.ruler = headers.get(STANDBY_HEADER.lower(), "")
        self.location = headers.get("location", "")


def connect(address: HeadAddress, timeout_s: float) -> _socket.socket:
    """Return a connection to a head.

    Raises:
        OSError: nobody answers; `unreachable` makes an error for users of it.
        HeadUnreachableError: ssh or TLS says why.
    """
    if address.ssh is not None:
        return address.ssh.connect(timeout_s)
    if not address.path:
        timeout_s = min(timeout_s, CONNECT_TIMEOUT_S)
    if address.tls:
        from gsched import https  # late: few commands need it

        return https.connect(address.host, address.port, timeout_s)
    if not address.path:
        return socket.create_connection((address.host, address.port), timeout=timeout_s)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        _connect_unix(connection, address.path)
    except BaseException:
        connection.close()
        raise
    return connection


def ask(
    connection: _socket.socket,
    address: HeadAddress,
    request: HeadRequest,
    *,
    alarms: Sequence[Alarm] = (),
) -> Answer:
    """Send a request over a connection, return its answer, and close the connection.

    Args:
        connection: as `connect` returns it.
        address: of the head at its other end.
        request: to be sent.
        alarms: what is done while the answer has not begun.

    Raises:
        UnsentError: the connection broke before all was sent.
        LostConnectionError: it broke later, or there was no answer.
        InternalError: the answer is not HTTP, or larger than MAX_ANSWER_BYTES.
    """
    try:
        connection.settimeout(request.timeout_s)
        try:
            connection.sendall(_request_bytes(address, request))
        except TimeoutError:
            raise
        except OSError as error:  # of TLS, which tells the kernel's error by others of its own, too
            return _refusal(connection, address, error)
        reader = _ReplyReader(connection)
        _await_first(connection, reader, request.timeout_s, alarms)
        return reader.answer()
    except TimeoutError as error:
        raise LostConnectionError(
            f"the head at {address.text} has not answered for {request.timeout_s:g} s",
            hint="it is busy or hangs: run `gsched doctor` on its host",
        ) from error
    except (OSError, EOFError) as error:
        raise LostConnectionError(
            f"lost the connection to the head at {address.text} before its answer was "
            f"complete ({_words(error)})",
            hint="it may have stopped: run `gsched doctor`",
        ) from error
    finally:
        connection.close()


def _refusal(connection: _socket.socket, address: HeadAddress, error: OSError) -> Answer:
    """Return the answer of a head that has refused a request before it had all of it.

    Raises:
        UnsentError: there is none.
    """
    try:
        return _ReplyReader(connection).answer()
    except (OSError, EOFError):
        raise UnsentError(
            f"the head at {address.text} closed the connection before it had the whole request "
            f"({_words(error)}): nothing was done",
            hint="it may be stopping: try again, or run `gsched doctor`",
        ) from error


def _await_first(
    connection: _socket.socket, reader: "_ReplyReader", timeout_s: float, alarms: Sequence[Alarm]
) -> None:
    """Wait for the beginning of an answer.

    Raises:
        TimeoutError: there is none in time.
    """
    waited_s = 0.0
    due = (each for each in alarms if each[0] < timeout_s)
    for moment_s, ring in sorted(due, key=lambda alarm: alarm[0]):
        connection.settimeout(moment_s - waited_s)
        try:
            reader.more()
        except TimeoutError:
            waited_s = moment_s
            ring()
        else:
            break
    else:
        connection.settimeout(timeout_s - waited_s)
        reader.more()
    connection.settimeout(timeout_s)


def _connect_unix(connection: _socket.socket, path: str) -> None:
    with address_of(path) as address:
        connection.connect(address)


def _request_bytes(address: HeadAddress, request: HeadRequest) -> bytes:
    name = f"[{address.host}]" if ":" in address.host else address.host
    host = f"{name}:{address.port}" if name else "gschedd"
    head = (
        f"{request.method} {request.target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Accept: application/json\r\nUser-Agent: gsched\r\n"
    )
    if address.tls:
        from gsched.https import token  # late: few commands need it

        head += f"Authorization: Bearer {token()}\r\n"
    if request.body or request.method == "POST":
        length = len(request.body)
        head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    return head.encode("ascii") + b"\r\n" + request.body


def unreachable(address: HeadAddress, error: OSError) -> HeadUnreachableError | NotPermittedError:
    """Return the error for users where `connect` has failed."""
    where = f"{address.text} (from {address.source})"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return NotPermittedError(
            f"no permission to open the head's socket {where}: {_words(error)}",
            hint="ask the operators for access, or set $GSCHED_HEAD to your own head",
        )
    return HeadUnreachableError(
        f"no head answers at {where}: {_words(error)}",
        hint="is gschedd running? `gsched doctor` checks it; --head or $GSCHED_HEAD select another "
        "head; `gsched up` starts a cluster of your own",
    )


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


class _ReplyReader:
    """Reads one HTTP answer from a connection."""

    def __init__(self, connection: _socket.socket):
        self._connection = connection
        self._held = bytearray()

    def answer(self) -> Answer:
        while True:
            status, headers = self._header()
            if status >= 200:  # 1xx come before the real one
                break
        return Answer(status, self._body(status, headers), headers)

    def _body(self, status: int, headers: dict[str, str]) -> bytes | bytearray:
        if headers.get("transfer-encoding", "").lower().endswith("chunked"):
            return self._chunks()
        if status in {204, 304}:
            return b""
        length = headers.get("content-length")
        if length is None:
            return self._until_end()
        if not length.isdigit() or int(length) > MAX_ANSWER_BYTES:
            raise InternalError(f"the head announced an answer of {length!r} bytes")
        return self._exactly(int(length))

    def _header(self) -> tuple[int, dict[str, str]]:
        lines = self._through(b"\r\n\r\n").decode("latin-1").split("\r\n")
        protocol, _, rest = lines[0].partition(" ")
        if not protocol.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise InternalError(
                f"the server there does not speak HTTP: it answered {lines[0][:60]!r}",
                hint="is it the socket of gschedd?",
            )
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(rest[:3]), headers

    def more(self) -> None:
        """Read what comes next."""
        data = self._connection.recv(_READ_BYTES)
        if not data:
            raise EOFError("it was closed")
        self._held += data

    def _through(self, mark: bytes) -> bytearray:
        """Return what comes before ``mark``, and drop the mark."""
        while (end := self._held.find(mark)) < 0:
            if len(self._held) > MAX_HEADER_BYTES:
                raise InternalError("the header of the head's answer is too long")
            self.more()
        before = self._held[:end]
        del self._held[: end + len(mark)]
        return before

    def _exactly(self, count: int) -> bytearray:
        if len(self._held) >= count:
            taken = self._held[:count]
            del self._held[:count]
            return taken
        body = bytearray(count)
        at = len(self._held)
        body[:at] = self._held
        self._held.clear()
        with memoryview(body) as view:
            while at < count:
                read = self._connection.recv_into(view[at:])
                if not read:
                    raise EOFError("it was closed")
                at += read
        return body

    def _until_end(self) -> bytearray:
        while data := self._connection.recv(_READ_BYTES):
            self._held += data
            self._bound(len(self._held))
        return self._held

    def _chunks(self) -> bytearray:
        body = bytearray()
        while True:
            text = self._through(b"\r\n").split(b";")[0].strip()
            try:
                count = int(text, 16)
            except ValueError:
                raise InternalError(f"the head sent a chunk of {bytes(text)!r} bytes") from None
            self._bound(len(body) + count)
            if count == 0:
                while self._through(b"\r\n"):
                    pass
                return body
            body += self._exactly(count)
            self._through(b"\r\n")

    @staticmethod
    def _bound(count: int) -> None:
        if not 0 <= count <= MAX_ANSWER_BYTES:
            raise InternalError(f"the head's answer is larger than {MAX_ANSWER_BYTES} bytes")
