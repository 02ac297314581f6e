"""The audit log: who has requested what from where, and what became of it."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from io import TextIOWrapper
from itertools import islice
from logging.handlers import WatchedFileHandler
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from gsched.clock import Clock, SystemClock
from gsched.config.tables import HeadConfig
from gsched.errors import ConfigError
from gsched.logs import Complaints
from gsched.protocol.api import ErrorBody
from gschedd.core.state.settings import Caller

_complaints: Final = Complaints(logging.getLogger("gschedd.http"), SystemClock())

FILE: Final = "audit.log"
MODE: Final = 0o600
#: Objects that a record names; it tells how many more there are.
OBJECTS_MAX: Final = 100
#: Records a minute of requests of one user that change nothing; another tells how many more came.
REFUSED_MAX: Final = 60
PERIOD_S: Final = 60.0

_CALLER: Final = "audit_caller"
_NOTES: Final = "audit_notes"
_encode: Final = msgspec.json.Encoder().encode


def audit_path(config: HeadConfig) -> str:
    """Return the path of the audit log."""
    return config.audit_file or os.path.join(config.state_dir, FILE)


class Notes(Struct):
    """What a handler tells of a request.

    Attributes:
        verb: what is requested.
        done: objects to which it was done.
        refused: codes of errors, by object.
    """

    verb: str = ""
    done: list[str] = []
    refused: dict[str, str] = {}


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log.

    Attributes:
        time: local time with its offset from UTC.
        user, uid: who has requested it, as the kernel names them.
        host: the node or login host whose kernel it was; empty: the head's machine.
        token, address: of a program over HTTPS, whose token names the user.
        request: method and path.
        status: of the answer in HTTP.
        verb, done, refused: as in `Notes`.
        more: objects that are not named here.
        left_out: requests of this user in a minute that changed nothing and have no record.
    """

    time: str
    uid: int
    user: str = ""
    host: str = ""
    token: str = ""
    address: str = ""
    request: str = ""
    status: int = 0
    verb: str = ""
    done: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    more: int = 0
    left_out: int = 0


def note_caller(request: web.Request, caller: Caller) -> None:
    """Note who has sent a request."""
    request[_CALLER] = caller


def note_verb(request: web.Request, verb: str, *objects: str) -> None:
    """Note what is requested, and to which objects; a request to read is recorded then, too."""
    request[_NOTES] = Notes(verb, list(objects))


def note_results(
    request: web.Request, verb: str, results: Iterable[tuple[str, ErrorBody | None]]
) -> None:
    """Note what was requested and what became of it, by object."""
    notes = request[_NOTES] = Notes(verb)
    for name, error in results:
        if error is None:
            notes.done.append(name)
        else:
            notes.refused[name] = error.code


class AuditLog:
    """Writes a record of each request that changes something, or that was not permitted.

    The file is opened again once it was renamed or removed.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._begun_s = 0.0
        self._refused: Counter[int] = Counter()
        try:
            self._file = _AuditFile(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"audit_file {path}: {error.strerror}",
                hint="make its directory, for the user of gschedd; see gsched.toml(5)",
            ) from error

    def middleware(self) -> Middleware:
        """Return the middleware that serves a request and records it."""

        @web.middleware
        async def middleware(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            response = await handler(request)
            caller: Caller | None = request.get(_CALLER)
            status = response.status
            is_refused = status == 403 if request.method == "GET" else status >= 400
            if caller is not None and (_NOTES in request or is_refused):
                self._record(request, caller, status)
            return response

        return middleware

    def _record(self, request: web.Request, caller: Caller, status: int) -> None:
        notes: Notes = request.get(_NOTES) or Notes()
        if (status >= 400 or not notes.done) and self._is_left_out(caller.uid):
            return
        done = tuple(notes.done[:OBJECTS_MAX])
        refused = dict(islice(notes.refused.items(), OBJECTS_MAX - len(done)))
        self._write(
            AuditRecord(
                time=self._time(),
                user=caller.user,
                uid=caller.uid,
                host=caller.host,
                token=caller.token,
                address=(request.remote or "") if caller.token else "",
                request=f"{request.method} {request.path}",
                status=status,
                verb=notes.verb,
                done=done,
                refused=refused,
                more=len(notes.done) + len(notes.refused) - len(done) - len(refused),
            )
        )

    def _is_left_out(self, uid: int) -> bool:
        """Count a request that changed nothing; return whether this user has had too many."""
        now_s = self._clock.monotonic_s()
        if now_s - self._begun_s >= PERIOD_S:
            for each, count in self._refused.items():
                if count > REFUSED_MAX:
                    self._write(
                        AuditRecord(time=self._time(), uid=each, left_out=count - REFUSED_MAX)
                    )
            self._begun_s = now_s
            self._refused.clear()
        self._refused[uid] += 1
        return self._refused[uid] > REFUSED_MAX

    def _time(self) -> str:
        now = datetime.fromtimestamp(self._clock.wall_s()).astimezone()
        return now.isoformat("T", "milliseconds")

    def _write(self, record: AuditRecord) -> None:
        self._file.handle(logging.makeLogRecord({"msg": _encode(record).decode()}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _AuditFile(WatchedFileHandler):
    def _open(self) -> TextIOWrapper:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return open(os.open(self.baseFilename, how, MODE), "a", encoding=self.encoding)

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802 # the base class's name
        """Tell the head's own log, which may be on another disk."""
        _complaints.say("audit log", f"a record is not written: {sys.exc_info()[1]}")
