"""The store on SQLite: one writer, group commit, fail stop.

All methods block; the daemon calls the writer from one thread and the reader from another.
"""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from gsched.errors import ConfigError, StorageError, TryAgainError
from gsched.failpoint import failpoint
from gschedd.core.apply.nodes import SAFE_ID_JUMP
from gschedd.core.recovery.lineage import Epoch
from gschedd.core.state import facts as f
from gschedd.core.state.state import State
from gschedd.core.state.step import Run
from gschedd.store import history, rows
from gschedd.store.inserts import Insert
from gschedd.store.journal import HeadLease
from gschedd.store.lineage import HeadStart, Opened, add_epoch, new_epoch_id, read_epochs
from gschedd.store.loading import load
from gschedd.store.mark import FileIdentity, Mark, MarkFile, identity_of
from gschedd.store.purge import (
    CODE_IN_USE,
    DAY_S,
    REPEATED,
    UNREADABLE,
    Keep,
    Kept,
    Purged,
    compact,
    next_user,
    purge_some,
    purge_user,
)
from gschedd.store.queues import notes_in
from gschedd.store.recording import RecordingConnection
from gschedd.store.schema import SCHEMA_VERSION, check_version, create, take_over
from gschedd.store.seals import Damaged, sealed, text_of
from gschedd.store.standby import LEASE, POSITION, publish, reached

T = TypeVar("T")

BUSY_TIMEOUT_S: Final = 5.0
DATABASE: Final = "gsched.db"
#: Larger databases are not read whole at every start: the daily check of rows finds damage there.
FULL_CHECK_MAX_BYTES: Final = 128 * 1024 * 1024
QUICK_CHECK_MAX_BYTES: Final = 512 * 1024 * 1024

#: How far the time by which rows are old goes on at a time; it is requested daily, so a head that
#: was away catches up by a day each day.
PURGE_STEP_S: Final = 2 * DAY_S
_REPEATED: Final = frozenset(getattr(f, name) for name in REPEATED)
_BLOBS: Final = Insert("blobs", ("digest", "data", "uid", "bytes"), keep=True)
_EVENTS: Final = Insert("events", ("seq", "at_s", "kind", "job", "node", "data", "seal"))
_JOBS: Final = Insert(
    "jobs", (*rows.JOB_COLUMNS, "seal"), key=("id",), constant=("uid", "client_key")
)
_SPECS: Final = Insert("specs", ("job", "spec", "seal"), key=("job",))
_ATTEMPTS: Final = Insert(
    "attempts", ("job", "attempt", "state", "data", "seal"), key=("job", "attempt")
)
_NODES: Final = Insert("nodes", ("name", "data", "seal"), key=("name",))
_USAGE: Final = Insert("usage", ("project", "user", "data", "seal"), key=("project", "user"))
_RESERVATIONS: Final = Insert("reservations", ("name", "data", "seal"), key=("name",))
_HISTORY: Final = Insert("history", (*history.COLUMNS, "seal"))


class DiskFullError(TryAgainError):
    """The database's disk is full; nothing of the batch is durable."""


class Store:
    """The writer's side: owns the only connection that writes.

    Args:
        directory: of the database and its mark.
        lease: the lease of this head and the replicated log that takes in each transaction before
            the database does; None: there is none.
    """

    def __init__(self, directory: str, lease: HeadLease | None = None) -> None:
        self._lease = lease
        self._position = 0
        self._is_logged = False
        self.path = os.path.join(directory, DATABASE)
        self._mark_path = os.path.join(directory, "gsched.mark")
        self._seq = 0
        self._next_job = 1
        self._cluster = ""
        self._newest_s: float | None = None  # when the last event happened before this start
        self._lineage: tuple[Epoch, ...] = ()
        self._file = FileIdentity()
        self._start: HeadStart | None = None

    def open(self) -> Opened:
        """Open or create the database, migrate it, compare it with its mark, begin an epoch.

        Raises:
            ConfigError: a database of another version, or gone although it was there.
            StorageError: it cannot be read or written, or is damaged.
        """
        existed = os.path.exists(self.path)
        self._marks = MarkFile(self._mark_path)
        mark = self._marks.read()
        if not existed and mark is not None and mark.next_job > 1:
            raise ConfigError(
                f"{self.path} is gone, but jobs up to {mark.next_job - 1} have been in it",
                hint=f"put a backup back, or remove {self._mark_path} to begin with no jobs",
            )
        try:
            self._connect()
            self._migrate(existed=existed)
            return self._begin(mark, existed=existed)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        except UnicodeDecodeError as error:  # SQLite's words quote what it cannot read
            raise _storage_error(self.path, error) from error

    def _connect(self) -> None:
        _make_private(self.path)
        self._db = sqlite3.connect(
            self.path,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_S,
            factory=sqlite3.Connection if self._lease is None else RecordingConnection,
        )
        self._db.text_factory = text_of
        self._db.execute("PRAGMA journal_mode = WAL")
        # what the replicated log has is durable; after a loss of power it is taken from there
        durability = "FULL" if self._lease is None else "NORMAL"
        self._db.execute(f"PRAGMA synchronous = {durability}")
        self._db.execute("PRAGMA foreign_keys = ON")
        size_bytes = Path(self.path).stat().st_size
        if size_bytes <= QUICK_CHECK_MAX_BYTES:
            # only the full check compares indexes with rows, and what is live is found by an index
            how = "integrity_check" if size_bytes <= FULL_CHECK_MAX_BYTES else "quick_check"
            verdict = self._db.execute(f"PRAGMA {how}(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(str(verdict))

    def _migrate(self, *, existed: bool) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        check_version(self.path, version)
        self._position, _ = reached(self._db)
        if version == SCHEMA_VERSION:
            return
        if existed and version:
            backup = f"{self.path}.schema-{version}"
            Path(backup).unlink(missing_ok=True)
            _make_private(backup)  # SQLite takes an empty file as it is
            self._db.execute("VACUUM INTO ?", (backup,))
        self._db.execute("BEGIN IMMEDIATE")
        (take_over if version else create)(self._db)
        failpoint("head.migrate.before_commit")
        self._db.execute("COMMIT")
        if self._lease is not None:  # it was made, or has another schema
            self._position = max(self._position, 0) + 1
            publish(self._db, self.path, self._lease.log, self._lease.number, self._position)

    def _begin(self, mark: Mark | None, *, existed: bool) -> Opened:
        meta = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        self._cluster = meta.get("cluster") or (mark.cluster if mark else uuid.uuid4().hex)
        self._next_job = int(meta.get("next_job", "1"))
        newest = int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
        last = self._db.execute("SELECT at_s FROM events WHERE seq = ?", (newest,)).fetchone()
        self._newest_s = None if last is None else float(last[0])
        self._seq = max(newest, int(meta.get("seq", "0")))
        self._lineage = read_epochs(self._db)
        self._file = identity_of(self.path)
        number = int(meta.get("epoch", "0"))
        held = (self._seq, self._next_job)
        before = meta.get("behind", "")
        missing, copied = "", ""
        if mark is not None:
            missing = self._compare(mark)
            copied = self._compare_files(mark)
            number = max(number, mark.epoch)
        elif number and self._lease is None:
            copied = (
                f"there is no mark ({self._mark_path}) beside the database: a backup was put back, "
                "or the mark was removed"
            )
        if missing or copied:
            forgotten_from = int(meta.get("forgotten_from", "0")) or held[1]
        else:
            forgotten_from = int(meta.get("forgotten_from", "0"))
        is_copy = meta.get("is_copy", "1") == "1" and not missing
        behind = missing or before or copied
        self._start = HeadStart(
            epoch=self._new_epoch(number + 1, held=held),
            meta={
                "cluster": self._cluster,
                "next_job": str(self._next_job),
                "seq": str(self._seq),  # after a loss, numbers go on where the mark was
                "behind": behind,
                "is_copy": "1" if is_copy else "0",
                "forgotten_from": str(forgotten_from),
            },
        )
        try:
            with self._transaction():
                pass
            self._write_mark()
        except DiskFullError:
            if not existed:
                raise
        return Opened(
            cluster=self._cluster,
            lineage=self._lineage,
            behind=behind,
            is_copy=bool(behind) and is_copy,
            forgotten_from=forgotten_from,
            seq=self._seq,
        )

    @property
    def log_away(self) -> str:
        """Return why the replicated log does not answer a commit; empty: it does."""
        return self._lease.log.away if self._lease is not None else ""

    @property
    def is_begun(self) -> bool:
        """Return whether this start is durable: before that no node may hear of its epoch.

        With a full disk it is not; the first commit that finds room writes it.
        """
        return self._start is None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make all that is written inside durable together, after this start if it is not yet.

        Raises:
            TryAgainError, StorageError: as `commit`.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            if self._start is not None:
                add_epoch(self._db, self._start.epoch)
                self._set_meta(epoch=str(self._start.epoch.number), **self._start.meta)
            yield
            if self._lease is not None:
                self._replicate(self._lease)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._is_logged = False
        self._start = None

    def _replicate(self, lease: HeadLease) -> None:
        """Make the transaction durable in the replicated log.

        Raises:
            LeaseLostError: another head rules; nothing is durable.
        """
        position = self._position + 1
        self._set_meta(**{POSITION: str(position), LEASE: str(lease.number)})
        assert isinstance(self._db, RecordingConnection)
        lease.log.append(lease.number, position, self._db.recorded())
        self._position = position
        self._is_logged = True
        failpoint("head.replicated.before_commit")

    def _new_epoch(self, number: int, *, held: tuple[int, int], accepted: bool = False) -> Epoch:
        """Return another epoch, and take it as that of this head; the caller writes it."""
        epoch = Epoch(
            number=number,
            id=new_epoch_id(),
            prev_seq=held[0],
            prev_job=held[1],
            first_job=self._next_job,
            accepted=accepted,
        )
        self._lineage = (*self._lineage, epoch)
        return epoch

    def _compare(self, mark: Mark) -> str:
        """Return what is missing; ids that may have been given out will not come again."""
        if mark.cluster != self._cluster:
            return f"the mark belongs to cluster {mark.cluster}, the database to {self._cluster}"
        known = not mark.epoch_id or any(epoch.id == mark.epoch_id for epoch in self._lineage)
        if known and mark.seq <= self._seq and mark.next_job <= self._next_job:
            return ""
        missing = (
            f"the database ends at event {self._seq} and job {self._next_job - 1}, but it had come "
            f"to event {mark.seq} and job {mark.next_job - 1}: it was cut or is an old copy"
        )
        self._next_job = max(self._next_job, mark.next_job) + SAFE_ID_JUMP
        self._seq = max(self._seq, mark.seq)
        return missing

    def _compare_files(self, mark: Mark) -> str:
        """Return that the database is another file than the one that the mark was written for."""
        if self._lease is not None or not self._file.is_another(mark.file):
            return ""  # the replicated log tells what a copy lacks
        return (
            f"{self.path} is a copy: it is another file than the one that the head used last, so "
            "it may have been restored from a snapshot or a backup"
        )

    def _set_meta(self, **values: str) -> None:
        self._db.executemany("REPLACE INTO meta (key, value) VALUES (?, ?)", list(values.items()))

    def load(self, state: State) -> tuple[Damaged, ...]:
        """Fill an empty state with all that is not over.

        Returns:
            What could not be read. Damaged jobs are left out and stand in ``state.damaged``: their
            rows stay as they are, and what nodes run of them is left alone.
        """
        try:
            damaged = load(self._db, state)
        except sqlite3.Error as error:
            raise _storage_error(self.path, error) from error
        state.next_job = max(state.next_job, self._next_job)
        return tuple(damaged)

    def newest_runs(self, most: int) -> list[Run]:
        """Return the newest rows of the history, in the order in which they were learned.

        Damaged rows are left out.
        """
        try:
            return history.newest(self._db, most)
        except sqlite3.Error as error:
            raise _storage_error(self.path, error) from error

    def purge_time_s(self, now_s: float) -> float:
        """Return by which time rows are old: the clock, unless it is far ahead of the last time.

        A clock that is years ahead when the head starts would let everything be removed at once.
        So this time goes on from the last event that was there when the database was opened, by at
        most `PURGE_STEP_S` a call.

        Raises:
            TryAgainError, StorageError: as `commit`.
        """
        try:
            row = self._db.execute("SELECT value FROM meta WHERE key = 'purged_s'").fetchone()
            last_s = self._newest_s if row is None else float(row[0])
            if last_s is None:
                return now_s
            time_s = min(now_s, last_s + PURGE_STEP_S)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if time_s > last_s or row is None:
            with self._transaction():
                self._set_meta(purged_s=repr(max(time_s, last_s)))
        return time_s

    def purge(self, keep: Keep, now_s: float) -> Purged:
        """Remove a bounded number of the oldest rows that are not to be kept.

        Raises:
            TryAgainError: as `commit`; nothing was removed, and it may be tried later.
            StorageError: anything else; the caller must stop.
        """
        return self._purging(lambda: purge_some(self._db, keep, now_s))

    def next_user(self, after: int) -> Kept | None:
        """Return what the next user has; it raises what `purge` raises."""
        return self._purging(lambda: next_user(self._db, after))

    def purge_user(self, uid: int, count: int) -> int:
        """Remove a slice of a user's ``count`` oldest jobs; it raises what `purge` raises."""
        return self._purging(lambda: purge_user(self._db, uid, count))

    def _purging(self, work: Callable[[], T]) -> T:
        """Do work in a transaction that keeps the newest number, which rows may tell that go."""
        with self._transaction():
            self._set_meta(seq=str(self._seq))
            return work()

    def notes(self, kind: str) -> dict[str, str]:
        """Return what `save_note` has kept of a kind, by name."""
        try:
            return notes_in(self._db, kind)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def save_note(self, kind: str, name: str, text: str | None) -> None:
        """Keep a text beside the state, or delete it; it raises what `purge` raises."""
        with self._transaction():
            self._db.execute("DELETE FROM meta WHERE key = ?", (f"{kind} {name}",))
            if text is not None:
                self._set_meta(**{f"{kind} {name}": text})

    def code_in_use(self) -> set[tuple[int, str]] | None:
        """Return owner and digest of the code snapshots of all jobs that are kept.

        None: a job's spec is damaged, so nobody knows.
        """
        try:
            if self._db.execute(UNREADABLE).fetchone() is not None:
                return None
            return {(int(uid), str(digest)) for uid, digest in self._db.execute(CODE_IN_USE)}
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def commit(self, batch: rows.Batch) -> None:
        """Make a batch durable: one transaction, one flush.

        Raises:
            DiskFullError: there is no room; nothing was written.
            StorageError: anything else; the caller must stop, the next commit must not be tried.
        """
        with self._transaction():
            self._write(batch)
        self._seq += len(batch.facts)
        self._next_job = batch.next_job
        failpoint("head.mark.before_write")
        self._write_mark()

    def _failed(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if self._is_logged:  # it must not be in the log twice: a restart takes it from there
            return _storage_error(self.path, error)
        # SQLite has no room for its shared index: it says "I/O error", but it is a full disk.
        is_full = primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
        if is_full or primary == sqlite3.SQLITE_BUSY:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if is_full:
                return DiskFullError("the head's disk is full", hint="free space on it")
            return TryAgainError("another program holds the database", hint="close its shell")
        return _storage_error(self.path, error)

    def _write(self, batch: rows.Batch) -> None:
        db = self._db
        _BLOBS.run(db, [(name, text, uid, len(text)) for name, (uid, text) in batch.blobs.items()])
        numbered = enumerate(batch.facts, start=self._seq + 1)
        _EVENTS.run(db, [sealed(rows.event_row(number, fact)) for number, fact in numbered])
        compact(db, _repeated(batch.facts))
        _JOBS.run(db, [sealed(rows.job_row(job)) for job in batch.jobs])
        specs = [
            (fact.job, rows.spec_blob(fact.spec))
            for fact in batch.facts
            if isinstance(fact, f.JobSubmitted | f.JobAltered)
        ]
        specs.extend(rows.specs_made(batch))
        _SPECS.run(db, list(map(sealed, specs)))
        attempts = [rows.attempt_row(job, attempt) for job, attempt in batch.attempts]
        _ATTEMPTS.run(db, list(map(sealed, attempts)))
        for statement, row in rows.gpu_changes(batch.facts, batch.attempts):
            db.execute(statement, row)
        for fact in batch.facts:
            if isinstance(fact, f.JobDiscarded):
                for statement in rows.DISCARD:
                    db.execute(statement, (fact.job,))
        _NODES.run(db, [sealed(rows.node_row(node)) for node in batch.nodes])
        _USAGE.run(db, [sealed(rows.usage_row(usage)) for usage in batch.usage])
        kept = [each for each in batch.reservations.values() if each is not None]
        _RESERVATIONS.run(db, [sealed(rows.reservation_row(each)) for each in kept])
        gone = [(name,) for name, each in batch.reservations.items() if each is None]
        if gone:
            db.executemany("DELETE FROM reservations WHERE name = ?", gone)
        _HISTORY.run(db, [sealed(history.run_row(run)) for run in batch.runs])
        if batch.removed_nodes:
            db.executemany(
                "DELETE FROM nodes WHERE name = ?", [(name,) for name in batch.removed_nodes]
            )
        if batch.next_job != self._next_job:
            self._set_meta(next_job=str(batch.next_job))

    def _write_mark(self) -> None:
        self._marks.write(
            Mark(
                cluster=self._cluster,
                epoch=self._lineage[-1].number,
                seq=self._seq,
                next_job=self._next_job,
                epoch_id=self._lineage[-1].id,
                file=self._file,
            )
        )

    @property
    def reached(self) -> tuple[int, int]:
        """Return the newest event and the next job id that are durable."""
        return self._seq, self._next_job

    def note_loss(self, behind: str, *, forgotten_from: int) -> None:
        """Remember that the database is an old copy, until an operator has looked.

        Args:
            behind: in words, what shows it.
            forgotten_from: the id from which on it may lack jobs.
        """
        with self._transaction():
            self._set_meta(behind=behind, is_copy="0", forgotten_from=str(forgotten_from))

    def accept_loss(
        self, *, number: int = 0, seq: int = 0, next_job: int = 0, forgotten_from: int = 0
    ) -> Opened:
        """Begin an epoch beyond what is said here: an operator has looked, and accepts the loss.

        The database counts as an old copy until `end_loss`.

        Args:
            number: of the newest epoch that any witness knows.
            seq: of the newest event that any witness knows.
            next_job: the id from which on none has been given out; what is durable is kept.
            forgotten_from: the id from which on jobs may be missing.
        """
        held = (self._seq, forgotten_from or self._next_job)
        self._seq = max(self._seq, seq)
        self._next_job = max(self._next_job, next_job)
        newest = max(self._lineage[-1].number, number)
        epoch = self._new_epoch(newest + 1, held=held, accepted=True)
        with self._transaction():
            add_epoch(self._db, epoch)
            self._set_meta(
                epoch=str(epoch.number), next_job=str(self._next_job), seq=str(self._seq)
            )
        self._write_mark()
        return Opened(cluster=self._cluster, lineage=self._lineage, seq=self._seq)

    def end_loss(self) -> None:
        """End safe mode: all that was lost and is known somewhere is durable again."""
        with self._transaction():
            self._set_meta(behind="", is_copy="1", forgotten_from="0")

    def close(self) -> None:
        """Close the database; all that was committed is in the one file."""
        with contextlib.suppress(sqlite3.Error):  # a reader is open, or the disk has failed
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        self._marks.close()


def _make_private(path: str) -> None:
    """Make a file, if it is not there, that is its owner's alone from its first moment."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _repeated(facts: Iterable[f.AnyFact]) -> set[tuple[int, str]]:
    """Return the jobs and kinds of those facts that may be repeated without end."""
    found: set[tuple[int, str]] = set()
    for fact in facts:
        if type(fact) in _REPEATED and isinstance(fact, f.JobFact):
            found.add((fact.job, type(fact).__name__))
    return found


def _storage_error(path: str, error: sqlite3.Error | UnicodeDecodeError) -> StorageError:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    return StorageError(
        f"{path}: {name}: {error}",
        hint="look at the disk and its log; a damaged database is replaced by its last backup",
    )
