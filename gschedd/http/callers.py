"""Who is calling: from the kernel (SO_PEERCRED), never from a message."""

import logging
import pwd
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError

from aiohttp import web

from gsched.clock import Clock
from gsched.errors import NotPermittedError
from gschedd.core.settings import Caller, Settings

log = logging.getLogger("gschedd.http")

_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)
MAX_NAMES = 10_000
KEPT_S = 30.0  # a uid may be given to another user, but hardly sooner after the first is deleted
KEPT_UNKNOWN_S = 2.0  # a name service may say "not found" for a moment
PATIENCE_S = 2.0  # the head does nothing else while it waits for a name service


class UserNames:
    """The names of users, asked for again and again: a number may get another owner."""

    def __init__(self, clock: Clock, look_up: Callable[[int], str] | None = None) -> None:
        self._clock = clock
        self._look_up = look_up or user_name
        self._known: dict[int, tuple[float, str]] = {}
        self._asking: Future[str] | None = None

    def name(self, uid: int) -> str:
        """Return the name of a user, or the number as text if it has none.

        While the name service hangs, the last answer holds.
        """
        until_s, name = self._known.get(uid, (0.0, str(uid)))
        now_s = self._clock.monotonic_s()
        if now_s < until_s:
            return name
        if self._asking is not None and not self._asking.done():
            return name  # it hangs
        self._asking = self._ask(uid)
        try:
            name = self._asking.result(PATIENCE_S)
        except NotYetError:
            return name
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        kept_s = KEPT_UNKNOWN_S if name == str(uid) else KEPT_S
        self._known[uid] = (now_s + kept_s, name)
        return name

    def _ask(self, uid: int) -> Future[str]:
        """Look a name up in a thread that keeps nobody from ending the head if it hangs."""
        answer: Future[str] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._look_up(uid))
            except Exception as error:  # noqa: BLE001 - or no name is asked for again
                log.warning("cannot look up the name of uid %d: %r", uid, error)
                answer.set_result(str(uid))

        threading.Thread(target=ask, name="names", daemon=True).start()
        return answer


class Callers:
    """Turns connections into callers."""

    def __init__(self, *, settings: Settings, names: UserNames) -> None:
        self._settings = settings
        self._names = names

    def of(self, request: web.Request) -> Caller:
        """Return who is at the other end of a request's Unix socket.

        Raises:
            NotPermittedError: the kernel does not say (not a Unix socket).
        """
        transport = request.transport
        peer = None if transport is None else transport.get_extra_info("socket")
        if peer is None or peer.family != socket.AF_UNIX:
            raise NotPermittedError("commands are taken on the Unix socket only")
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, uid, gid = _UCRED.unpack(raw)
        return self.caller(uid, gid)

    def caller(self, uid: int, gid: int) -> Caller:
        """Return the caller with these ids."""
        name = self._names.name(uid)
        settings = self._settings
        is_operator = (
            uid in settings.operator_uids and settings.operator_names.get(uid, name) == name
        )
        return Caller(user=name, uid=uid, gid=gid, operator=is_operator)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number as text if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
