"""From committed events to deliveries that wait."""

import logging
import os
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gsched.config.notify import NotifyConfig
from gsched.errors import StorageError
from gsched.logs import Complaints
from gsched.model.ids import array_of
from gsched.model.wording import counted
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.notify.ledger import Ledger
from gschedd.notify.notices import (
    ABORT,
    BEGIN,
    FAIL,
    IDLE,
    MAIL,
    RECLAIM,
    WAYS,
    Address,
    NotableFact,
    Notice,
    addresses_of,
    notice_of,
)
from gschedd.notify.texts import json_of, mail_of
from gschedd.store.reader import Reader

log = logging.getLogger("gschedd.notify")

#: Events that are looked at in one transaction.
EVENTS_MOST: Final = 500
#: Of a head that was away for longer, events are too old to be told.
STALE_S: Final = 86400.0
_KINDS: Final = ("PartStarted", "JobEnded", "GpusIdleWarned", "GpusIdled", "JobPreempted")
_STATED: Final = (b"mail_points", b"mail_to", b"notify_url")


class NotifierSettings(Struct, frozen=True, kw_only=True):
    """What the site's configuration says, with what the head knows of itself."""

    config: NotifyConfig
    server: str
    sender: str


class Scanner:
    """Reads events in their order, each once."""

    def __init__(
        self, reader: Reader, ledger: Ledger, settings: NotifierSettings, complaints: Complaints
    ) -> None:
        self._reader = reader
        self._complaints = complaints
        self._dropped: Counter[tuple[int, str, str]] = Counter()  # of a step, by user, way, reason
        self._ledger = ledger
        self._settings = settings
        config = settings.config
        self._tails = Tails()
        self._all = config.hook_jobs == "all" or config.default_points not in {"n", "p", ""}

    def begin(self, before: int) -> None:
        """Begin after event ``before``, the last one when the head started, if none was ever read.

        Where events are gone, begin with those to come.
        """
        newest, cursor = self._reader.newest_event(), self._ledger.cursor
        if cursor is not None and cursor <= newest:
            return
        if cursor is not None:
            log.warning("events to %d are gone: notifications go on after %d", cursor, newest)
        with self._ledger.transaction():
            self._ledger.move_cursor(newest if cursor is not None else min(before, newest))

    def step(self, now_s: float) -> bool:
        """Put down what is to be told of the next events; return whether there may be more."""
        cursor, newest = self._ledger.cursor or 0, self._reader.newest_event()
        if cursor >= newest:
            return False
        last = min(newest, cursor + EVENTS_MOST)
        found = self._reader.events_between(cursor + 1, last, _KINDS)
        self._dropped.clear()
        with self._ledger.transaction():
            for seq, fact in found:
                assert isinstance(fact, NotableFact), "only these were requested"
                try:
                    self._tell(seq, fact, now_s)
                except StorageError as error:
                    self._ledger.count("dropped mail", error.message)
                    log.error("event %d is not told: %s", seq, error.message)
            self._ledger.move_cursor(last)
        for (uid, way, why), count in self._dropped.items():
            self._complaints.say(
                f"uid {uid}", f"{counted(count, 'notification')} by {WAYS[way]} dropped: {why}"
            )
        return last < newest

    def _tell(self, seq: int, fact: NotableFact, now_s: float) -> None:
        if isinstance(fact, f.GpusIdleWarned | f.GpusIdled):
            self._tell_of(fact.job, seq, fact, now_s)
            return
        ended = isinstance(fact, f.JobEnded)
        if not (self._all or self._reader.states_any(fact.job, _STATED)):
            return
        self._tell_of(fact.job, seq, fact, now_s)
        array = array_of(fact.job)
        if array and not ended:  # an array begins with the first of its elements
            self._tell_of(array, seq, fact, now_s)
        if ended:
            for key in (fact.job, -2 * fact.job, -2 * fact.job - 1):
                self._ledger.ended(key)

    def _tell_of(self, number: int, seq: int, fact: NotableFact, now_s: float) -> None:
        jobs = self._reader.jobs([number])
        if not jobs:
            return
        job, attempts = jobs[0], self._reader.attempts(fact.job)
        notice = notice_of(fact, seq, job, attempts, self._settings.server)
        if notice is None:
            return
        addresses = addresses_of(notice, job.spec, self._settings.config)
        if not addresses or not self._is_first(notice, number):
            return
        if now_s - fact.at_s > STALE_S:
            for address in addresses:
                self._ledger.count(f"dropped {address.way}", "older than a day")
            return
        for address in addresses:
            self._put(notice, address, job, now_s)

    def _is_first(self, notice: Notice, number: int) -> bool:
        """Return whether nobody was told of the like: of an array its first idle GPUs are."""
        if notice.event == BEGIN:
            return self._ledger.begins(number)
        array = array_of(number)
        if notice.event not in {IDLE, RECLAIM} or not array:
            return True
        return self._ledger.begins(-2 * array - (notice.event == RECLAIM))

    def _stderr_of(self, notice: Notice) -> Sequence[str]:
        """Return the last lines of the error output of a job that has failed."""
        most = self._settings.config.mail_stderr_lines
        if notice.event not in {ABORT, FAIL} or notice.is_array or not most:
            return ()
        return self._tails.read(notice.stderr_path, uid=notice.uid, most=most)

    def _put(self, notice: Notice, address: Address, job: Job, now_s: float) -> None:
        why, body = "", b""
        most = self._settings.config.mails_per_user_hour
        count = self._ledger.mails_in_hour(job.spec.owner.uid, now_s) if address.way == MAIL else 0
        if count > most:
            why = f"more than {most} mails in an hour about jobs of {notice.user}"
        elif address.way == MAIL:
            body = mail_of(
                notice,
                sender=self._settings.sender,
                recipients=address.target,
                last_of_hour=most if count == most else 0,
                as_pbs=self._settings.config.mail_subject == "pbs",
                stderr=self._stderr_of(notice),
            )
        else:
            body = json_of(notice)
        if not why and not self._ledger.put(address, body, now_s):
            why = "too many wait to be delivered"
        if why:
            self._ledger.count(f"dropped {address.way}", why)
            self._dropped[job.spec.owner.uid, address.way, why] += 1


#: Bytes at the end of a file that are looked at.
_BYTES_MOST: Final = 16 * 1024
_PATIENCE_S: Final = 2.0


class Tails:
    """Reads ends of files that users have named, and depends on none of them.

    A file system that does not answer holds one thread for as long as that lasts; no other file is
    read meanwhile, and no mail waits.
    """

    def __init__(self) -> None:
        self._reading: threading.Thread | None = None

    def read(self, path: str, *, uid: int, most: int) -> Sequence[str]:
        """Return the last lines of a file, at most ``most``; none where it cannot be read.

        Args:
            path: as the job's owner has named it.
            uid: of the job's owner, to whom the file has to belong: root reads for nobody what
                that user could not read.
        """
        if not path or os.geteuid() not in {0, uid}:
            return ()
        if self._reading is not None and self._reading.is_alive():
            return ()
        found: list[str] = []

        def look() -> None:
            found.extend(tail(path, uid=uid, most=most))

        self._reading = threading.Thread(target=look, daemon=True)
        self._reading.start()
        self._reading.join(_PATIENCE_S)
        return () if self._reading.is_alive() else tuple(found)


def tail(path: str, *, uid: int, most: int) -> Sequence[str]:
    """Return the last lines of a regular file of this user; none of any other."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ()
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            return ()
        begin = max(0, status.st_size - _BYTES_MOST)
        data = os.pread(handle, _BYTES_MOST, begin)
    except OSError:
        return ()
    finally:
        os.close(handle)
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[1 if begin and len(lines) > 1 else 0 :][-most:]
