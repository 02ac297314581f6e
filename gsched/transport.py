"""The only socket code: one HTTP/1.1 exchange with the head, over a Unix socket or TCP.

Written by hand on `socket`, because importing `http.client` costs a command 14 ms of start-up and
we need so little of it: one request for each connection, answers with a length, in chunks, or up to
the end of the connection, all of them bounded. A Unix socket needs only `_socket`, the part of
`socket` in C: the rest costs 3 ms, and commands load it when they use it (`gsched.cli`).
"""

import _socket
import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gsched.clock import SystemClock
from gsched.config.environment import (
    DEFAULT_SOCKET,
    environment,
)
from gsched.errors import (
    ConfigError,
    HeadUnreachableError,
    InternalError,
    NotPermittedError,
    UsageError,
)
from gsched.protocol.headers import STANDBY_HEADER, WARNING_HEADER
from gsched.unix_address import address_of

if TYPE_CHECKING:
    from gsched.ssh import SshHost

DEFAULT_TIMEOUT_S = 60.0  # silence after which an answer is given up; a plain query takes ms
QUIET_S = 5.0  # after so long the user hears that the head has not answered yet
CONNECT_PATIENCE_S = 1.0  # a head that restarts is away for about this long
SILENCE_S = 5.0  # of one of several heads that reads, before it is looked for again
LOOKS_S = (3.0, 6.0, 12.0, 24.0)  # of silence after which one of several is looked at
HEALTH_TIMEOUT_S = 3.0  # of one of several heads: it may be stopped, or its host be dead
MAX_HEADER_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 1024 * 1024 * 1024  # a list of a million jobs is about 300 MB
_READ_BYTES = 256 * 1024
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~,")

# A head that is starting: no socket yet, a socket nobody listens on, or a full backlog.
_PASSING = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN})


class LostConnectionError(HeadUnreachableError):
    """The connection broke after the request was sent: it may have been carried out, or not."""


class HeadAddress:
    """Where a head listens.

    Attributes:
        text: as the user wrote it, for messages.
        source: where it was found: ``--head``, ``$GSCHED_HEAD``, a file, or ``default``.
        path: of the Unix socket; empty for TCP.
        host, port: for TCP.
        ssh: the host that is reached through ssh; None: it is reached directly.
        tls: TCP with TLS, and a token of the user.
        heads: each address by itself where there are several heads, of which one rules.
    """

    __slots__ = ("heads", "host", "path", "port", "source", "ssh", "text", "tls")

    def __init__(  # noqa: PLR0913 # one of five ways
        self,
        text: str,
        *,
        source: str,
        path: str = "",
        host: str = "",
        port: int = 0,
        ssh: "SshHost | None" = None,
        tls: bool = False,
        heads: "tuple[HeadAddress, ...]" = (),
    ):
        self.text = text
        self.source = source
        self.path = path
        self.host = host
        self.port = port
        self.ssh = ssh
        self.heads = heads
        self.tls = tls

    def check_sessions(self) -> None:
        """Check that the head serves terminals there.

        Raises:
            UsageError: it, or one of several heads, is reached by HTTPS.
        """
        if self.tls or any(head.tls for head in self.heads):
            raise UsageError(
                f"there are no terminals by {self.text}",
                hint="use ssh://HOST, or run the command on a host of the cluster",
            )


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


def find_head(explicit: str = "") -> HeadAddress:
    """Return where the head is: ``explicit``, $GSCHED_HEAD, a configuration, or the default.

    The user's own configuration, ~/.config/gsched/gsched.toml, comes before that of the machine.

    Raises:
        ConfigError: the configuration cannot be read, or the address is none.
    """
    if explicit:
        return parse_address(explicit, source="--head")
    from_environment = environment("GSCHED_HEAD")
    if from_environment:
        return parse_address(from_environment, source="$GSCHED_HEAD")
    from gsched.config.load import load_config  # late: all tables, which few commands need

    own = os.path.expanduser("~/.config/gsched/gsched.toml")
    is_own = not environment("GSCHED_CONFIG") and os.path.exists(own)
    configured = load_config(own if is_own else None).head.socket
    source = "default" if configured == DEFAULT_SOCKET else "the configuration"
    return parse_address(configured, source=source)


def parse_address(text: str, *, source: str) -> HeadAddress:
    """Return the address that ``text`` states: a path, or a URL of https, http or ssh.

    Several, with commas between, are those of all heads of a cluster.

    Raises:
        ConfigError: it is neither; ``source`` says who wrote it.
    """
    if "," in text:
        parts = [part.strip() for part in text.split(",")]
        heads = tuple(parse_address(part, source=source) for part in parts if part)
        if len(heads) > 1:
            return HeadAddress(text, source=source, heads=heads)
        text = next(filter(None, parts), text)
    bare = text.removeprefix("unix://").removeprefix("unix:")
    for scheme in ("http", "https"):
        if bare.startswith(f"{scheme}://"):
            return _tcp_address(text, scheme, bare.partition("://")[2].rstrip("/"), source)
    if bare.startswith("ssh://"):
        from gsched.ssh import SshHost  # late: few commands need it

        return HeadAddress(text, source=source, ssh=SshHost(bare, source=source))
    if "://" in bare:
        raise ConfigError(
            f"{source}: invalid head address {text!r}",
            hint="give the path of the head's socket, ssh://host or https://host:port",
        )
    return HeadAddress(text, source=source, path=os.path.abspath(bare))


def _tcp_address(text: str, scheme: str, authority: str, source: str) -> HeadAddress:
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "80" if scheme == "http" else "443"
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{source}: invalid head address {text!r}", hint=f"write {scheme}://host:port"
        )
    return HeadAddress(text, source=source, host=host, port=int(port), tls=scheme == "https")


def _is_host(text: str) -> bool:
    return bool(text) and text.isascii() and all(c.isalnum() or c in ".-_:" for c in text)


def quote(text: str) -> str:
    """Return ``text`` percent-encoded for a path or a query (`urllib.parse` costs 3 ms to load)."""
    data = text.encode(errors="surrogateescape")  # a file name may be no UTF-8
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in data)


def pause(seconds: float) -> None:
    """Let time pass before another try at a head that does not answer."""
    time.sleep(seconds)  # noqa: TID251 - a command has no event loop whose alarm it could use


class Transport:
    """Carries requests to one head; holds nothing open in between.

    Args:
        address: of the head.
        patience_s: how long to keep trying to connect while the head may be starting; a socket in
            a directory that does not exist was never a head's.

    Attributes:
        on_wait: called with ``patience_s`` once, if the head has not answered for
            CONNECT_PATIENCE_S; None: nobody waits for it.
        on_silence: called once with how long there was no answer, and with the time limit, seconds,
            where a request without a limit of its own waits; None: nobody waits for it.
        quiet_s: after how long that is.
        looks_s: after how long a silent one of several heads is looked at, when it is to act.
        on_warning: called with each warning about what an answer shows.
        has_sent: a request has gone, at least in part, so that the head may have acted on it.
    """

    def __init__(self, address: HeadAddress, *, patience_s: float = CONNECT_PATIENCE_S):
        self.address = address
        self.patience_s = patience_s
        self.on_wait: Callable[[float], None] | None = None
        self.on_silence: Callable[[float, float], None] | None = None
        self.on_warning: Callable[[str], None] | None = None
        self.quiet_s = QUIET_S
        self.looks_s: tuple[float, ...] = LOOKS_S
        self.has_sent = False
        self._heads = list(address.heads)
        self._stated = address

    def exchange(
        self, method: str, target: str, body: bytes = b"", *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Answer:
        """Send one request and return its answer, whatever its status.

        Args:
            method: ``GET`` or ``POST``.
            target: path and query, percent-encoded.
            body: JSON, or nothing.
            timeout_s: of silence.

        Raises:
            HeadUnreachableError: nobody answers, even after ``patience_s``.
            LostConnectionError: the connection broke after the request had gone.
            NotPermittedError: the socket may not be opened.
            InternalError: the answer is not HTTP, or larger than MAX_ANSWER_BYTES.
        """
        if self._heads and method == "GET":
            answer = self._read(target, timeout_s)
        else:
            self._find_ruler(reads=False)
            answer = self._ask_sent_on(method, target, body, timeout_s)
        if answer.warning and self.on_warning is not None:
            self.on_warning(answer.warning)
        return answer

    def _ask_sent_on(self, method: str, target: str, body: bytes, timeout_s: float) -> Answer:
        """Ask a head, and the one to which it sends the request on; wait until that one rules."""
        clock = SystemClock()
        begin_s, pause_s = clock.monotonic_s(), 0.0
        while True:
            answer = self._ask(method, target, body, timeout_s)
            if not (self.address.tls and answer.location.startswith("https://")):
                return answer
            waited_s = clock.monotonic_s() - begin_s
            if pause_s and waited_s >= self.patience_s:
                return answer
            if waited_s >= CONNECT_PATIENCE_S:
                self.note_wait()
            other = "/".join(answer.location.split("/", 3)[:3])
            self.address = parse_address(other, source=f"{self.address.text}, which stands by")
            pause(pause_s)
            pause_s = min(max(pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    def _read(self, target: str, timeout_s: float) -> Answer:
        """Ask one of several heads; once more if it stops or goes before it has answered."""
        self._find_ruler(reads=True)
        try:
            return self._ask("GET", target, b"", min(timeout_s, SILENCE_S))
        except HeadUnreachableError:
            self._find_ruler(reads=True)
            return self._ask("GET", target, b"", timeout_s)

    def _ask(self, method: str, target: str, body: bytes, timeout_s: float) -> Answer:
        connection = self._connect_patiently(timeout_s)
        self.has_sent = True
        return self._over(connection, method, target, body, timeout_s)

    def _find_ruler(self, *, reads: bool) -> None:
        """Choose the head that rules where there are several; wait for one while none does.

        What only reads goes to one that stands by where no head rules.

        Raises:
            HeadUnreachableError: none of them answers.
        """
        if not self._heads:
            return
        from gsched.several_heads import find  # late: few clusters have two

        clock = SystemClock()
        begin_s, pause_s = clock.monotonic_s(), _FIRST_PAUSE_S
        while True:
            found = find(self._heads, self._ruler_by, reads=reads, may_prompt=_may_prompt)
            ruler, standby, errors = found
            if ruler is not None:
                self._heads.remove(ruler)
                self._heads.insert(0, ruler)
                self.address = ruler
                return
            waited_s = clock.monotonic_s() - begin_s
            if standby is not None and (reads or waited_s >= self.patience_s):
                self.address = standby
                return
            if waited_s >= self.patience_s:
                words = "; ".join(error.message for error in errors)
                raise type(errors[0])(words, hint=errors[0].hint) from errors[0]
            if waited_s >= CONNECT_PATIENCE_S:
                self.note_wait()
            pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _ruler_by(self, head: HeadAddress) -> str:
        """Return the head that rules as one of them knows it; empty if it rules itself."""
        one = Transport(head)
        try:
            connection = one._connect(HEALTH_TIMEOUT_S)
        except OSError as error:
            raise _unreachable(head, error) from error
        return one._over(connection, "GET", "/v1/health", b"", HEALTH_TIMEOUT_S).ruler

    def _over(
        self, connection: _socket.socket, method: str, target: str, body: bytes, timeout_s: float
    ) -> Answer:
        """Send a request over a connection, return its answer, and close it."""
        try:
            try:
                connection.sendall(_request_bytes(self.address, method, target, body))
            except (BrokenPipeError, ConnectionResetError):
                return _ReplyReader(connection).answer()  # it was refused before all of it was sent
            reader = _ReplyReader(connection)
            if timeout_s == DEFAULT_TIMEOUT_S:
                self._await_first(connection, reader, looks=bool(self._heads) and method != "GET")
            return reader.answer()
        except TimeoutError as error:
            raise LostConnectionError(
                f"the head at {self.address.text} has not answered for {timeout_s:g} s",
                hint="it is busy or hangs: run `gsched doctor` on its host",
            ) from error
        except (OSError, EOFError) as error:
            raise LostConnectionError(
                f"lost the connection to the head at {self.address.text} before its answer was "
                f"complete ({_words(error)})",
                hint="it may have stopped: run `gsched doctor`",
            ) from error
        finally:
            connection.close()

    def _await_first(
        self, connection: _socket.socket, reader: "_ReplyReader", *, looks: bool
    ) -> None:
        """Wait for the beginning of an answer; let the user know once that it takes long.

        Args:
            looks: whether the head still answers anybody: another one may rule soon.

        Raises:
            LostConnectionError: it does not.
        """
        moments_s = {DEFAULT_TIMEOUT_S, *(self.looks_s if looks else ())}
        if self.on_silence is not None:
            moments_s.add(self.quiet_s)
        waited_s = 0.0
        for moment_s in sorted(moments_s):
            connection.settimeout(moment_s - waited_s)
            try:
                reader.more()
                break
            except TimeoutError:
                if moment_s == DEFAULT_TIMEOUT_S:
                    raise
            waited_s = moment_s
            if moment_s == self.quiet_s and self.on_silence is not None:
                self.on_silence(self.quiet_s, DEFAULT_TIMEOUT_S)
                self.on_silence = None
            if looks and moment_s in self.looks_s:
                self._check_alive()
        connection.settimeout(DEFAULT_TIMEOUT_S)

    def _check_alive(self) -> None:
        try:
            self._ruler_by(self.address)
        except HeadUnreachableError:
            raise LostConnectionError(
                f"the head at {self.address.text} has stopped before its answer",
                hint="see whether the request was carried out, then repeat it",
            ) from None

    def _connect_patiently(self, timeout_s: float) -> _socket.socket:
        clock = SystemClock()
        begin_s = clock.monotonic_s()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._connect(timeout_s)
            except OSError as error:
                if self._is_sent_on:  # the head that ruled is gone: the first one may rule now
                    self.address = self._stated
                    continue
                waited_s = clock.monotonic_s() - begin_s
                if not self._may_pass(error) or waited_s >= self.patience_s:
                    raise _unreachable(self.address, error) from error
            if waited_s >= CONNECT_PATIENCE_S:
                self.note_wait()
            pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    @property
    def _is_sent_on(self) -> bool:
        """Return whether the only head that was stated has sent a request to another one."""
        return not self._heads and self.address is not self._stated

    def note_wait(self) -> None:
        """Let the user know, once, that the head is waited for."""
        if self.on_wait is not None:
            self.on_wait(self.patience_s)
            self.on_wait = None

    def _may_pass(self, error: OSError) -> bool:
        """Return whether a connection may be had in a moment, as a head may be starting.

        A socket that nobody but its owner may write to was bound by a head that has yet to open it
        to all.
        """
        if error.errno == errno.ENOENT and self.address.path:
            return os.path.isdir(os.path.dirname(self.address.path))
        if error.errno in _PASSING:
            return True
        if error.errno != errno.EACCES or not self.address.path:
            return False
        try:
            return not os.stat(self.address.path).st_mode & stat.S_IWOTH
        except OSError:
            return False  # its directory is closed to this user

    def connection(self) -> "socket.socket":
        """Return a connection to the head that waits for ever.

        Raises:
            HeadUnreachableError, NotPermittedError: as `exchange`.
            UsageError: as `HeadAddress.check_sessions`.
        """
        self._find_ruler(reads=False)
        self.address.check_sessions()
        made = socket.socket(fileno=self._connect_patiently(DEFAULT_TIMEOUT_S).detach())
        made.settimeout(None)
        return made

    def _connect(self, timeout_s: float) -> _socket.socket:
        address = self.address
        if address.ssh is not None:
            return address.ssh.connect(timeout_s)
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


def _connect_unix(connection: _socket.socket, path: str) -> None:
    with address_of(path) as address:
        connection.connect(address)


def _request_bytes(address: HeadAddress, method: str, target: str, body: bytes) -> bytes:
    name = f"[{address.host}]" if ":" in address.host else address.host
    host = f"{name}:{address.port}" if name else "gschedd"
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Accept: application/json\r\nUser-Agent: gsched\r\n"
    )
    if address.tls:
        from gsched.https import token  # late: few commands need it

        head += f"Authorization: Bearer {token()}\r\n"
    if body or method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"\r\n" + body


def _may_prompt(head: HeadAddress) -> bool:
    return head.ssh is not None


def _unreachable(address: HeadAddress, error: OSError) -> HeadUnreachableError | NotPermittedError:
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
