"""A database beside this head that follows the replicated log, until this head rules."""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import msgspec

from gsched.clock import Clock
from gsched.errors import ConfigError, StorageError
from gsched.failpoint import failpoint
from gsched.files import flush_directory
from gschedd.store.journal import HeadLease, LogRecord, ReplicatedLog, Ruler, StoreBase
from gschedd.store.schema import SCHEMA_VERSION

log = logging.getLogger("gschedd.store")

PART_BYTES: Final = 4 * 1024 * 1024
#: Keys of the table ``meta``: the newest record of the log that the database has, and its lease.
POSITION: Final = "log_position"
LEASE: Final = "log_lease"


#: Looks at a database that has what the log has, of the head that rules, or has ruled last.
Check = Callable[[sqlite3.Connection, Ruler], object]


class Follower:
    """Keeps the database beside this head equal to the replicated log.

    Args:
        path: of the database; it may not be there yet.
        replicated: the log, open.
        clock: for the age of what this head has.
        check: raises what keeps this head from ruling; it is called before this head takes the
            lease, and when records have come.

    Attributes:
        position: the newest record that the database has.
        copies: how often the database was replaced by a base.
        ruler: who rules, or has ruled last.
        looked_s: when nothing was missing last, in the clock's monotonic time.
        has_lease: this head rules, or is about to: it has taken the lease.
    """

    def __init__(
        self,
        path: str,
        replicated: ReplicatedLog,
        clock: Clock,
        check: Check = lambda *_: None,
    ) -> None:
        self._path = path
        self._log = replicated
        self._clock = clock
        self._check_ruler = check
        self.position = self.copies = 0
        self._is_apart = self.has_lease = False
        self.ruler = Ruler("", 0, 0.0)
        self.looked_s = clock.monotonic_s()

    def catch_up(self, before: Ruler | None = None) -> int:
        """Take in the records that are missing; return the position that is reached.

        Args:
            before: who has ruled before this head took the lease; None: it has not taken it.

        Raises:
            ConfigError: the database is not of this log, or has records that the log lacks; or what
                ``check`` raises.
        """
        self._check()
        if not os.path.exists(self._path):
            return 0  # nothing was written yet: the head that rules first makes it
        with closing(self._connect()) as db:
            while self._take(db):
                pass
            self._check_ruler(db, before or self.ruler)
        return self.position

    def rule(self, pause: Callable[[], object]) -> HeadLease:
        """Follow until this head has the lease; return it with all records taken in.

        Args:
            pause: waits a moment.
        """
        holder = ""
        while True:
            position = self.catch_up()
            before = self.ruler = self._log.ruler()
            number = self._log.acquire()
            if number:
                self.has_lease = True
                try:
                    position = self.catch_up(msgspec.structs.replace(before, left_s=0.0))
                except BaseException:
                    self._log.release(number)
                    raise
                log.info("this head rules: lease %d, at record %d", number, position)
                failpoint("head.replicated.after_lease")
                return HeadLease(self._log, number)
            if self.ruler.holder != holder:
                log.info("standing by at record %d: %s rules", position, self.ruler.holder)
            holder = self.ruler.holder
            self._follow(pause)

    def _follow(self, pause: Callable[[], object]) -> None:
        """Take in records, with one query each time, until the lease is free or a look is due."""
        holder = self.ruler.holder
        if not os.path.exists(self._path):
            pause()
            return
        with closing(self._connect()) as db:
            while self.ruler.holder == holder and self.ruler.left_s > 0.0:
                if self._take(db):
                    self._check_ruler(db, self.ruler)
                else:
                    pause()
                if self._is_apart:
                    return

    def _take(self, db: sqlite3.Connection) -> bool:
        """Take in the next records; return whether there were any."""
        self.position, lease = reached(db)
        looked_s = self._clock.monotonic_s()
        seen = self._log.view(self.position)
        self.ruler = seen.ruler
        at = None if seen.base is None else seen.base.position
        self._is_apart = at is None or at > self.position
        self._is_apart |= at != self.position and seen.lease != lease
        if self._is_apart:
            return False
        for record in seen.records:
            if record.position != self.position + 1:
                raise StorageError(
                    f"record {self.position + 1} of the replicated log is missing",
                    hint=f"move {self._path} away: this head then copies the whole store",
                )
            replay(db, record)
            self.position = record.position
        if not seen.records:
            self.looked_s = looked_s
        return bool(seen.records)

    def _check(self) -> None:
        """Copy the whole store where the database is not there, or has taken another way."""
        if not os.path.exists(self._path):
            base = self._log.base()
            if base is not None:
                self._copy(base)
            return
        with closing(self._connect()) as db:
            position, lease = reached(db)
            schema = db.execute("PRAGMA user_version").fetchone()[0]
        if position < 0:
            raise ConfigError(
                f"{self._path} is there, and it is not of the store in [store] url",
                hint="copy it with gsched store copy, or move it away to use what the store has",
            )
        newest, seen = self._log.newest(), self._log.view(position)
        base = seen.base
        if base is None or position > newest:
            raise ConfigError(
                f"the store in [store] url ends at record {newest}, and {self._path} at "
                f"{position}: the server has lost records",
                hint="gsched store copy writes this database there; a server that must lose none "
                "needs a synchronous replica",
            )
        is_known = position == base.position or seen.lease == lease
        is_older = base.position > position or (base.schema != schema and base.position == position)
        if is_older or not is_known:
            self._copy(base)

    def _copy(self, base: StoreBase) -> None:
        if base.schema > SCHEMA_VERSION:
            raise ConfigError(
                f"the store has schema {base.schema}, this gsched knows up to {SCHEMA_VERSION}",
                hint="install the version of gsched that the ruling head has",
            )
        log.info("copying the whole store at record %d to %s", base.position, self._path)
        incoming = f"{self._path}.incoming"
        fd = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.writelines(self._log.read_base(base))
            file.flush()
            os.fsync(file.fileno())
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + suffix)
        if os.path.exists(self._path):
            os.replace(self._path, f"{self._path}.replaced")
        os.replace(incoming, self._path)
        self.copies += 1
        flush_directory(os.path.dirname(self._path))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        return db


def reached(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the newest record that a database has, and its lease; -1: it is of no log."""
    try:
        found = dict(db.execute("SELECT key, value FROM meta WHERE key LIKE 'log_%'").fetchall())
    except sqlite3.OperationalError:  # there are no tables
        return -1, 0
    return int(found.get(POSITION, "-1")), int(found.get(LEASE, "0"))


def publish(
    db: sqlite3.Connection, path: str, replicated: ReplicatedLog, number: int, position: int
) -> None:
    """Write a whole database into the log, as a base at a position.

    Args:
        db: a connection to it, without a transaction.
        path: of its file.
        number: of the lease.
    """
    db.execute("BEGIN IMMEDIATE")
    db.executemany(
        "INSERT INTO meta (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        [(POSITION, str(position)), (LEASE, str(number))],
    )
    db.execute("COMMIT")
    copy = f"{path}.base"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(copy)
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db.execute("VACUUM INTO ?", (copy,))
    replicated.write_base(number, StoreBase(position, SCHEMA_VERSION), _parts(copy))
    os.unlink(copy)


def leave_log(db: sqlite3.Connection) -> None:
    """Make a database that of one machine alone: it also forgets which head has ruled."""
    db.execute("DELETE FROM meta WHERE key IN (?, ?) OR key GLOB 'ruling *'", (POSITION, LEASE))


def replay(db: sqlite3.Connection, record: LogRecord) -> None:
    """Make the changes of a record."""
    db.execute("BEGIN IMMEDIATE")
    for statement in record.statements:
        db.executemany(statement.sql, statement.runs)
    db.execute("COMMIT")


def _parts(path: str) -> Iterator[bytes]:
    """Yield a file in parts of a base."""
    with open(path, "rb") as file:
        while data := file.read(PART_BYTES):
            yield data
