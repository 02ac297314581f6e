"""Accounting records as Torque writes them: ``accounting/YYYYMMDD`` in the state directory.

A record waits in the database from the transaction of its event until it is in its file. A file
may hold the beginning of what waits already, after a kill: only the rest is written then. So each
record is there once. When events are read again, what was recorded before is not recorded again.
"""

import contextlib
import grp
import logging
import os
import pwd
import sqlite3
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from gsched.files import flush_directory
from gsched.model.arrays import indices
from gsched.model.ids import element_number, format_array_id, format_job_id
from gsched.model.job import Outcome
from gsched.model.request import format_resources
from gsched.model.resources import Usage
from gsched.model.states import OutcomeKind, StopReason
from gsched.model.units import format_duration
from gsched.protocol.samples import UseSamples
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job
from gschedd.monitor.feed import Event
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.records import HeadRecords
from gschedd.monitor.store import MonitorTable

log = logging.getLogger("gschedd.monitor")

#: Records that are written to a file at once.
WRITTEN_AT_ONCE: Final = 10_000
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS accounting (
    id INTEGER PRIMARY KEY, day TEXT NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS accounting_begun (
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS accounting_files (day TEXT PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS accounting_last (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, at_s REAL NOT NULL);
"""
_FORM: Final = "%m/%d/%Y %H:%M:%S"
#: Bytes of a record at most.
LONGEST: Final = 1 << 20
#: A number that no event reaches.
EVERY_EVENT: Final = 2**62
_GOES_ON: Final = frozenset({OutcomeKind.MOVED, OutcomeKind.RERUN})


class Accounting:
    """Writes a record for each queued, started, ended, deleted, aborted or requeued job."""

    tables: Sequence[MonitorTable] = (
        MonitorTable(name="accounting", schema=_SCHEMA, derived=False),
    )
    kinds: Sequence[str] = ()

    def __init__(self, begin: MonitorBegin) -> None:
        self._server = begin.server
        self._directory = Path(begin.state_dir) / "accounting"
        self._ended: dict[int, int] = {}  # the newest attempts that the events being read end
        self._on = begin.history.accounting
        if self._on:
            self.kinds = (
                *("JobSubmitted", "ElementsMade", "PartStarted", "StopRequested"),
                *("AttemptEnded", "JobRequeued", "JobEnded"),
            )

    def note_events(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Take events in, within the transaction that moves the cursor."""
        if not events:
            return
        last = db.execute("SELECT seq, at_s FROM accounting_last").fetchone() or self._written()
        records = HeadRecords(db)
        found: list[tuple[str, bytes]] = []
        records.read(fact.job for _, fact in events if isinstance(fact, f.JobFact))
        self._ended.clear()
        for seq, fact in events:
            if seq <= last[0] and fact.at_s <= last[1]:
                continue  # it is recorded: events are read again
            day = time.strftime("%Y%m%d", time.localtime(fact.at_s))
            found += ((day, record) for record in self._of(records, fact))
            last = (seq, max(fact.at_s, last[1]))
        db.executemany("INSERT INTO accounting (day, record) VALUES (?, ?)", found)
        db.execute("INSERT OR REPLACE INTO accounting_last VALUES (1, ?, ?)", last)

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Write what waits to its files; the transaction forgets it then."""
        del samples
        if not self._on:
            return
        try:
            self.write(db)
        except OSError as error:
            log.error("accounting records wait: %s: %s", self._directory, error.strerror)

    def write(self, db: sqlite3.Connection) -> None:
        """Write all records that wait, within a transaction that forgets them.

        Raises:
            OSError: a file cannot be written: the records wait.
        """
        query = "SELECT id, day, record FROM accounting ORDER BY id LIMIT ?"
        while waiting := db.execute(query, (WRITTEN_AT_ONCE,)).fetchall():
            day = waiting[0][1]
            of_day = [record for _, other, record in waiting if other == day]
            ids = [number for number, other, _ in waiting if other == day]
            found = db.execute("SELECT size FROM accounting_files WHERE day = ?", (day,)).fetchone()
            size = self._append(day, b"".join(of_day), after=found[0] if found else 0)
            db.execute("INSERT OR REPLACE INTO accounting_files VALUES (?, ?)", (day, size))
            db.executemany("DELETE FROM accounting WHERE id = ?", ((number,) for number in ids))

    def _append(self, day: str, data: bytes, *, after: int) -> int:
        """Append to the file of a day what is not there behind its first bytes; return its size.

        An operator may have moved the file away, or written in it.
        """
        self._directory.mkdir(mode=0o755, exist_ok=True)
        path = self._directory / day
        is_new = not path.exists()
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size > after:
                file.seek(after)
                more = file.read(len(data) + 1)
                data = data.removeprefix(more)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            size = file.seek(0, os.SEEK_END)
        if is_new:
            flush_directory(str(self._directory))
        return size

    # --- records ---

    def _of(self, records: HeadRecords, fact: f.AnyFact) -> Iterator[bytes]:
        """Yield the records of an event."""
        match fact:
            case f.JobSubmitted(spec=spec):
                array = spec.array is not None
                yield _record(
                    fact.at_s, "Q", self._id(fact.job, array=array), f"queue={spec.queue}"
                )
            case f.ElementsMade():
                job = records.job(fact.job)
                queue = job.spec.queue if job is not None else ""
                for index in indices(fact.elements):
                    element = self._id(element_number(fact.job, index))
                    yield _record(fact.at_s, "Q", element, f"queue={queue}")
            case f.PartStarted():
                yield from self._started(records, fact.at_s, fact.job, fact.attempt)
            case f.StopRequested(reason=StopReason.DELETE):
                text = f"requestor={fact.by}@{self._server}"
                yield _record(fact.at_s, "D", self._id(fact.job), text)
            case f.AttemptEnded():
                yield from self._attempt_ended(records, fact)
            case f.JobRequeued():
                number = self._last_attempt(records, fact.job)
                yield from self._left(records, fact.at_s, fact.job, number)
            case f.JobEnded():
                yield from self._job_ended(records, fact)
            case _:
                pass

    def _started(
        self, records: HeadRecords, at_s: float, number: int, attempt: int
    ) -> Iterator[bytes]:
        """Yield the record of an attempt's start, once."""
        query = "INSERT OR IGNORE INTO accounting_begun VALUES (?, ?)"
        if records.db.execute(query, (number, attempt)).rowcount:
            job, tried = records.job(number), records.attempt(number, attempt)
            if job is not None and tried is not None:
                yield _record(at_s, "S", self._id(number), *self._facts(job, tried))

    def _attempt_ended(self, records: HeadRecords, fact: f.AttemptEnded) -> Iterator[bytes]:
        self._ended[fact.job] = fact.attempt
        attempt = records.attempt(fact.job, fact.attempt)
        if attempt is not None and attempt.started_s is not None:
            yield from self._started(records, fact.at_s, fact.job, fact.attempt)
        if fact.outcome.kind in _GOES_ON:
            yield from self._left(records, fact.at_s, fact.job, fact.attempt)

    def _left(
        self, records: HeadRecords, at_s: float, number: int, attempt: int
    ) -> Iterator[bytes]:
        """Yield the record of an attempt after which its job goes on, once, with what it used."""
        query = "DELETE FROM accounting_begun WHERE job = ? AND attempt = ?"
        if not records.db.execute(query, (number, attempt)).rowcount:
            return
        job, tried = records.job(number), records.attempt(number, attempt)
        if job is not None and tried is not None:
            used = _ending(tried.ended_s or at_s, tried.outcome, tried.usage)
            yield _record(at_s, "R", self._id(number), *self._facts(job, tried), *used)

    def _job_ended(self, records: HeadRecords, fact: f.JobEnded) -> Iterator[bytes]:
        job = records.job(fact.job)
        if job is None:
            return
        number = self._last_attempt(records, fact.job)
        query = "DELETE FROM accounting_begun WHERE job = ? AND attempt = ?"
        began = records.db.execute(query, (fact.job, number)).rowcount
        attempt = records.attempt(fact.job, number) if number else None
        name = self._id(fact.job, array=job.spec.array is not None)
        if began and attempt is not None:
            used = _ending(fact.ended_s, fact.outcome, attempt.usage)
            yield _record(fact.at_s, "E", name, *self._facts(job, attempt), *used)
        elif attempt is not None and attempt.stop is StopReason.DELETE:
            return  # its deletion is recorded
        elif fact.outcome.kind is OutcomeKind.CANCELLED and fact.by not in {"", "gsched"}:
            yield _record(fact.at_s, "D", name, f"requestor={fact.by}@{self._server}")
        elif job.spec.array is None:  # the elements of an array have records of their own
            yield _record(fact.at_s, "A", name, f"queue={job.spec.queue}")

    def _last_attempt(self, records: HeadRecords, job: int) -> int:
        """Return the newest attempt of a job that has ended so far; 0: none has."""
        if job in self._ended:
            return self._ended[job]
        query = "SELECT coalesce(max(attempt), 0) FROM usage WHERE job = ?"
        return int(records.db.execute(query, (job,)).fetchone()[0])

    def _id(self, number: int, *, array: bool = False) -> str:
        return (format_array_id if array else format_job_id)(number, self._server)

    def _facts(self, job: Job, attempt: Attempt) -> Iterator[str]:
        """Yield what is known of a job when it starts, in Torque's order."""
        spec = job.spec
        owner = spec.owner
        hosts = [f"{share.node}/{cpu}" for share in attempt.allocation for cpu in range(share.cpus)]
        gpus = [f"{s.node}-gpu/{held.index}" for s in attempt.allocation for held in s.gpus_held]
        yield f"user={owner.user}"
        yield f"group={_group(owner.user, owner.gid)}"
        if spec.account:
            yield f"account={_word(spec.account)}"
        yield f"jobname={_word(spec.name)}"
        yield f"queue={spec.queue}"
        for name, at_s in (
            ("ctime", job.submitted_s),
            ("qtime", job.submitted_s),
            ("etime", job.eligible_s),
            ("start", attempt.started_s or attempt.assigned_s),
        ):
            yield f"{name}={int(at_s)}"
        yield f"owner={owner.user}@{owner.host or self._server}"
        yield f"exec_host={'+'.join(hosts)}"
        if gpus:
            yield f"exec_gpus={'+'.join(gpus)}"
        yield from _requested(job, attempt)
        pids = (part.pid for part in attempt.parts.values() if part.pid)
        yield f"session={next(pids, 0)}"
        yield f"total_execution_slots={len(hosts)}"
        yield f"unique_node_count={len(attempt.parts)}"

    def _written(self) -> tuple[int, float]:
        """Return up to which event all is in the files, where the database does not know.

        That is when it was made anew: all events are read again then.
        """
        days = sorted(path for path in self._directory.glob("[0-9]" * 8))
        if not days or not days[-1].stat().st_size:
            return EVERY_EVENT, 0.0
        with days[-1].open("rb") as file:
            file.seek(-min(LONGEST, days[-1].stat().st_size), os.SEEK_END)
            last = file.read().decode("utf-8", "replace").splitlines()[-1]
        try:
            moment = time.strptime(last.partition(";")[0], _FORM)
        except ValueError:
            return EVERY_EVENT, 0.0
        last_s = time.mktime(moment)
        return EVERY_EVENT, last_s + 1.0


def _record(at_s: float, kind: str, job: str, *words: str) -> bytes:
    moment = time.strftime(_FORM, time.localtime(at_s))
    line = f"{moment};{kind};{job};{' '.join(words)}"
    return "".join(each if each.isprintable() else "?" for each in line).encode() + b"\n"


def _word(text: str) -> str:
    """Return a value without blanks, which would end it, and without separators of a record."""
    return "_".join(text.replace(";", " ").split()) or "-"


def _requested(job: Job, attempt: Attempt) -> Iterator[str]:
    request = job.spec.request
    yield f"Resource_List.ncpus={sum(share.cpus for share in attempt.allocation)}"
    if request.gpus:
        yield f"Resource_List.ngpus={request.gpus}"
    yield f"Resource_List.nodect={len(attempt.parts)}"
    for term in format_resources(request, job.spec.walltime_s).split(","):
        name, _, value = term.partition("=")
        if name not in {"ncpus", "ngpus", "nodect"} and value:
            yield f"Resource_List.{name}={_word(value)}"
        if name == "nodes":
            yield f"Resource_List.neednodes={_word(value)}"


def _ending(ended_s: float, outcome: Outcome | None, usage: Usage | None) -> Iterator[str]:
    used = usage or Usage()
    yield f"end={int(ended_s)}"
    if outcome is not None:
        yield f"Exit_status={outcome.pbs_status}"
    yield f"resources_used.cput={format_duration(used.cpu_s)}"
    yield f"resources_used.mem={-(-used.memory_peak_bytes // 1024)}kb"
    yield f"resources_used.vmem={-(-used.memory_peak_bytes // 1024)}kb"
    yield f"resources_used.walltime={format_duration(used.wall_s)}"


@lru_cache(10_000)
def _group(user: str, gid: int) -> str:
    """Return the name of a user's group, or its number where it has none."""
    with contextlib.suppress(KeyError):  # the account may be gone since the submission
        gid = pwd.getpwnam(user).pw_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
