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
from gsched.head_connection import (
    Alarm,
    Answer,
    HeadRequest,
    LostConnectionError,
    UnsentError,
    ask,
    connect,
    unreachable,
)

DEFAULT_TIMEOUT_S = 60.0  # silence after which an answer is given up; a plain query takes ms
QUIET_S = 5.0  # after so long the user hears that the head has not answered yet
CONNECT_PATIENCE_S = 1.0  # a head that restarts is away for about this long
SILENCE_S = 5.0  # of one of several heads that reads, before it is looked for again
LOOKS_S = (3.0, 6.0, 12.0, 24.0)  # of silence after which one of several is looked at
HEALTH_TIMEOUT_S = 3.0  # of one of several heads: it may be stopped, or its host be dead
LATE_S = 2.0  # what the answer to a request with a deadline may be late
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~,")

# A head that is starting: no socket yet, a socket nobody listens on, or a full backlog. One that is
# stopping, or whose address is about to move to another host.
_PASSING = frozenset(
    (
        *(errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN),
        *(errno.ECONNRESET, errno.EPIPE, errno.EHOSTUNREACH),
    )
)


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
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        until_s: float | None = None,
    ) -> Answer:
        """Send one request and return its answer, whatever its status.

        A request that cannot have been carried out, as no head got the whole of it, is sent again.

        Args:
            method: ``GET`` or ``POST``.
            target: path and query, percent-encoded.
            body: JSON, or nothing.
            timeout_s: of silence.
            until_s: when nothing is waited for any more, on the clock of `SystemClock.monotonic_s`;
                an answer that is on its way then may be LATE_S late. None: ``patience_s`` counts.

        Raises:
            HeadUnreachableError: nobody answers, even after ``patience_s``.
            LostConnectionError: the connection broke after the request had gone.
            NotPermittedError: the socket may not be opened.
            InternalError: the answer is not HTTP, or larger than MAX_ANSWER_BYTES.
        """
        request = HeadRequest(method, target, body, timeout_s)
        patience = self._patience(until_s)
        answer = self._exchange(request, patience)
        if answer.warning and self.on_warning is not None:
            self.on_warning(answer.warning)
        return answer

    def _exchange(self, request: HeadRequest, patience: "_Patience") -> Answer:
        """Send a request until a head has got the whole of it, what only reads also after that."""
        while True:
            try:
                if self._heads and request.method == "GET":
                    return self._read(request, patience)
                self._find_ruler(patience, reads=False)
                return self._ask_sent_on(request, patience)
            except UnsentError:
                if patience.is_over:
                    raise
            except LostConnectionError:
                if request.method != "GET" or not self._is_sent_on:
                    raise
            if self._is_sent_on:  # the head that ruled is gone: the first one may rule now
                self.address = self._stated
            patience.pause()

    def _patience(self, until_s: float | None = None) -> "_Patience":
        return _Patience(self.patience_s, until_s, self.note_wait)

    def _ask_sent_on(self, request: HeadRequest, patience: "_Patience") -> Answer:
        """Ask a head, and the one to which it sends the request on; wait until that one rules."""
        is_first = True
        while True:
            answer = self._ask(request, patience)
            if not (self.address.tls and answer.location.startswith("https://")):
                return answer
            if not is_first:
                if patience.is_over:
                    return answer
                patience.pause()
            is_first = False
            other = "/".join(answer.location.split("/", 3)[:3])
            self.address = parse_address(other, source=f"{self.address.text}, which stands by")

    def _read(self, request: HeadRequest, patience: "_Patience") -> Answer:
        """Ask one of several heads; once more if it stops or goes before it has answered."""
        self._find_ruler(patience, reads=True)
        try:
            return self._ask(request.within(SILENCE_S), patience)
        except HeadUnreachableError:
            again = self._patience(patience.until_s)
            self._find_ruler(again, reads=True)
            return self._ask(request, again)

    def _ask(self, request: HeadRequest, patience: "_Patience") -> Answer:
        connection = self._connect_patiently(request, patience)
        if patience.until_s is not None:
            request = request.within(patience.left_s + LATE_S)
        had_sent, self.has_sent = self.has_sent, True
        try:
            return ask(connection, self.address, request, alarms=self._alarms(request))
        except UnsentError:
            self.has_sent = had_sent
            raise

    def _find_ruler(self, patience: "_Patience", *, reads: bool) -> None:
        """Choose the head that rules where there are several; wait for one while none does.

        What only reads goes to one that stands by where no head rules.

        Raises:
            HeadUnreachableError: none of them answers.
        """
        if not self._heads:
            return
        from gsched.several_heads import find  # late: few clusters have two

        while True:
            found = find(self._heads, _ruler_by, reads=reads, may_prompt=_may_prompt)
            ruler, standby, errors = found
            if ruler is not None:
                self._heads.remove(ruler)
                self._heads.insert(0, ruler)
                self.address = ruler
                return
            if standby is not None and (reads or patience.is_over):
                self.address = standby
                return
            if patience.is_over:
                words = "; ".join(error.message for error in errors)
                raise type(errors[0])(words, hint=errors[0].hint) from errors[0]
            patience.pause()

    def _alarms(self, request: HeadRequest) -> list[Alarm]:
        """Return what is done while there is no answer.

        The user hears of it, but not where a request has a time limit of its own: the head may be
        silent for as long. Where another head may rule soon, this one is looked at.
        """
        alarms: list[Alarm] = []
        if request.timeout_s == DEFAULT_TIMEOUT_S:
            alarms.append((self.quiet_s, self._note_silence))
        if self._is_sent_on or (self._heads and request.method != "GET"):
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

    def _connect_patiently(self, request: HeadRequest, patience: "_Patience") -> _socket.socket:
        while True:
            try:
                limit_s = HEALTH_TIMEOUT_S if self._is_sent_on else request.timeout_s
                return connect(self.address, limit_s)
            except OSError as error:
                if self._is_sent_on:  # the head that ruled is gone: the first one may rule now
                    self.address = self._stated
                    continue
                if not self._may_pass(error) or patience.is_over:
                    raise unreachable(self.address, error) from error
            patience.pause()
            self._find_ruler(patience, reads=request.method == "GET")

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
        if error.errno in _PASSING or isinstance(error, TimeoutError):
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
        patience = self._patience()
        self._find_ruler(patience, reads=False)
        self.address.check_sessions()
        request = HeadRequest("POST", "", b"", DEFAULT_TIMEOUT_S)
        made = socket.socket(fileno=self._connect_patiently(request, patience).detach())
        made.settimeout(None)
        return made


class _Patience:
    """How long a request is tried again while its head may be starting; with longer pauses.

    Args:
        patience_s: from now on.
        until_s: when it ends in any case; None: never.
        note_wait: called after CONNECT_PATIENCE_S.
    """

    __slots__ = ("_begin_s", "_clock", "_end_s", "_note_wait", "_pause_s", "until_s")

    def __init__(self, patience_s: float, until_s: float | None, note_wait: Callable[[], None]):
        self._clock = SystemClock()
        self._begin_s = self._clock.monotonic_s()
        self._end_s = self._begin_s + patience_s
        self._note_wait = note_wait
        self._pause_s = _FIRST_PAUSE_S
        self.until_s = until_s
        if until_s is not None:
            self._end_s = min(self._end_s, until_s)

    @property
    def is_over(self) -> bool:
        """Return whether nothing is tried again."""
        return self._clock.monotonic_s() >= self._end_s

    @property
    def left_s(self) -> float:
        """Return the time until ``until_s``."""
        assert self.until_s is not None, "there is a limit"
        return max(0.0, self.until_s - self._clock.monotonic_s())

    def pause(self) -> None:
        """Let some time pass before the next try."""
        if self._clock.monotonic_s() - self._begin_s >= CONNECT_PATIENCE_S:
            self._note_wait()
        pause(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


def _may_prompt(head: HeadAddress) -> bool:
    return head.ssh is not None


def _ruler_by(head: HeadAddress) -> str:
    """Return the head that rules as one of them knows it; empty if it rules itself."""
    try:
        connection = connect(head, HEALTH_TIMEOUT_S)
    except OSError as error:
        raise unreachable(head, error) from error
    return ask(connection, head, HeadRequest("GET", "/v1/health", b"", HEALTH_TIMEOUT_S)).ruler
