"""Requests to a head: which of several heads gets one, and how long one is waited for."""

import _socket
import errno
import os
import socket
import stat
import time
from collections.abc import Callable

from gsched.clock import SystemClock
from gsched.errors import HeadUnreachableError
from gsched.head_address import HeadAddress, parse_address
from gsched.head_connection import Alarm, Answer, LostConnectionError, ask, connect, unreachable

DEFAULT_TIMEOUT_S = 60.0  # silence after which an answer is given up; a plain query takes ms
QUIET_S = 5.0  # after so long the user hears that the head has not answered yet
CONNECT_PATIENCE_S = 1.0  # a head that restarts is away for about this long
SILENCE_S = 5.0  # of one of several heads that reads, before it is looked for again
LOOKS_S = (3.0, 6.0, 12.0, 24.0)  # of silence after which one of several is looked at
HEALTH_TIMEOUT_S = 3.0  # of one of several heads: it may be stopped, or its host be dead
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~,")

# A head that is starting: no socket yet, a socket nobody listens on, or a full backlog.
_PASSING = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN})


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
        alarms = self._alarms(method, timeout_s)
        return ask(connection, self.address, method, target, body, timeout_s, alarms=alarms)

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
            found = find(self._heads, _ruler_by, reads=reads, may_prompt=_may_prompt)
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

    def _alarms(self, method: str, timeout_s: float) -> list[Alarm]:
        """Return what is done while there is no answer: the user is told, and the head looked at.

        Not of a request with a time limit of its own: the head may be silent for as long.
        """
        if timeout_s != DEFAULT_TIMEOUT_S:
            return []
        alarms: list[Alarm] = [(self.quiet_s, self._note_silence)]
        if self._heads and method != "GET":  # another one may rule soon
            alarms += [(look_s, self._check_alive) for look_s in self.looks_s]
        return alarms

    def _note_silence(self) -> None:
        """Let the user know, once, that it takes long."""
        if self.on_silence is not None:
            self.on_silence(self.quiet_s, DEFAULT_TIMEOUT_S)
            self.on_silence = None

    def _check_alive(self) -> None:
        try:
            _ruler_by(self.address)
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
                return connect(self.address, timeout_s)
            except OSError as error:
                if self._is_sent_on:  # the head that ruled is gone: the first one may rule now
                    self.address = self._stated
                    continue
                waited_s = clock.monotonic_s() - begin_s
                if not self._may_pass(error) or waited_s >= self.patience_s:
                    raise unreachable(self.address, error) from error
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


def _may_prompt(head: HeadAddress) -> bool:
    return head.ssh is not None


def _ruler_by(head: HeadAddress) -> str:
    """Return the head that rules as one of them knows it; empty if it rules itself."""
    try:
        connection = connect(head, HEALTH_TIMEOUT_S)
    except OSError as error:
        raise unreachable(head, error) from error
    return ask(connection, head, "GET", "/v1/health", b"", HEALTH_TIMEOUT_S).ruler
