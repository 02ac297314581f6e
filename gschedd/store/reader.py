"""Reading the store: past jobs, their stories, scripts; from its own connection and thread."""

import hashlib
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, TypeVar, cast
from urllib.parse import quote

from msgspec import Struct, structs

from gsched.errors import StorageError
from gsched.model.arrays import count
from gsched.model.ids import ELEMENT_BASE, array_of, short_job_id
from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from gschedd.core.state.elements import named_element
from gschedd.core.state.records import Attempt, Job, Node
from gschedd.store import rows
from gschedd.store.history import Scored, Spreads, node_spreads, scored
from gschedd.store.purge import TEXT_BYTES
from gschedd.store.scrub import Place, check_slice
from gschedd.store.seals import Damaged, DamagedRowError, SqlValue, text_of
from gschedd.store.unstarted import STARTED, Dropped, Ranges, Unstarted, dropped_between

#: An entry of the history.
Entry = Job | Unstarted
T = TypeVar("T")

_PAST_AT_ONCE: Final = 250  # jobs of a list that are read with one query


class HistoryFilter(Struct, frozen=True, kw_only=True):
    """Which past jobs are wanted; empty strings and None ask for all.

    Attributes:
        elements: first and last numbers, of elements of arrays that are wanted beside ``ids``.
    """

    ids: tuple[int, ...] = ()
    elements: tuple[tuple[int, int], ...] = ()
    user: str = ""
    queue: str = ""
    name: str = ""
    outcome: str = ""
    failed: bool = False
    since_s: float | None = None
    until_s: float | None = None
    limit: int = 1000


class HistoryTotals(Struct, frozen=True, kw_only=True):
    """Sums over all past jobs that match a filter.

    Attributes:
        jobs: also elements of arrays that were cancelled before they became jobs.
        failed: jobs that did not succeed, without those that were cancelled.
        cancelled: jobs that were cancelled.
        more: the limit has cut the list.
        damaged: those of the listed jobs whose records cannot be read.
    """

    jobs: int
    cpu_s: float
    wall_s: float
    gpu_s: float
    failed: int
    cancelled: int
    more: bool = False
    damaged: tuple[int, ...] = ()


class PastJobs(NamedTuple):
    """Jobs by number, and those whose records cannot be read."""

    jobs: dict[int, Job]
    damaged: list[int]


class PastIndex(NamedTuple):
    """Which entries a list of the history has.

    Attributes:
        numbers: of jobs, newest first; of elements that were cancelled together, of the first one.
        known: those entries that are read already, by these numbers.
        totals: over all that match; its ``damaged`` lacks jobs that are not read yet.
    """

    numbers: Sequence[int]
    known: Mapping[int, Entry]
    totals: HistoryTotals


class Reader:
    """The reader's side: a connection that cannot write; sees what is committed, never waits."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        self._db.text_factory = text_of
        self._specs = rows.SpecReader()

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Let all reads of the block see one state of the database."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """Return jobs by id, done or not, as they are in the database; unknown ids are left out.

        Raises:
            StorageError: the record of one of them is damaged.
        """
        found: list[Job] = []
        for number in ids:
            row = self._db.execute(rows.SELECT_JOBS + "WHERE jobs.id = ?", (number,)).fetchone()
            if row is not None:
                try:
                    found.append(self._job(row))
                except DamagedRowError as error:
                    raise StorageError(
                        f"the record of job {short_job_id(number)} in the head's database is "
                        "damaged: "
                        f"{error.damaged.reason}",
                        hint="an operator finds more with gsched doctor; a backup may have it",
                    ) from error
        return found

    def meant(self, number: int) -> Job | None:
        """Return the job that a number means: that job, or the element whose short number it is.

        Of an element that never became a job the array is returned.

        Raises:
            StorageError: its record is damaged.
        """
        found = self.jobs([number])
        if found or number >= ELEMENT_BASE:
            return found[0] if found else None
        query = "SELECT MAX(id) FROM jobs WHERE id < ?"
        before = self._db.execute(query, (number,)).fetchone()[0]
        try:
            array = next(iter(self.jobs([before])), None) if before is not None else None
        except StorageError:
            return None  # whether it is an array nobody knows
        named = named_element(array, number) if array is not None else None
        if named is None:
            return None
        return next(iter(self.jobs([named])), array)

    def known(self, ids: Sequence[int]) -> list[int]:
        """Return those of some ids that are of jobs, done or not, damaged or whole."""
        query = f"SELECT id FROM jobs WHERE id IN ({', '.join('?' * len(ids))})"  # noqa: S608 # bound
        return [row[0] for row in self._db.execute(query, list(ids))]

    def jobs_of_keys(self, uid: int, keys: Sequence[str]) -> dict[str, int]:
        """Return the jobs that a user's client keys have made, by key."""
        query = "SELECT id FROM jobs WHERE uid = ? AND client_key = ?"
        found = ((key, self._db.execute(query, (uid, key)).fetchone()) for key in keys)
        return {key: row[0] for key, row in found if row is not None}

    def _job(self, row: rows.Row) -> Job:
        job = rows.read_job(row, self._specs)
        attempts = self.attempts(job.id)
        job.attempt = attempts[-1] if attempts else None
        return job

    def failed(self, first: int, last: int) -> list[int]:
        """Return the jobs with numbers from ``first`` to ``last`` that have failed, ascending.

        Those that somebody deleted have not.
        """
        query = (
            "SELECT id FROM jobs WHERE id BETWEEN ? AND ? AND state = 'done' AND failed = 1 "
            "AND outcome != 'cancelled' ORDER BY id"
        )
        return [row[0] for row in self._db.execute(query, (first, last))]

    def nodes(self) -> list[Node]:
        """Return every node that has ever registered, by name."""
        return [
            rows.read_node(row) for row in self._db.execute(rows.SELECT_NODES + "ORDER BY name")
        ]

    def attempts(self, job: int) -> list[Attempt]:
        """Return all attempts of a job, oldest first; damaged ones are left out."""
        query = rows.SELECT_ATTEMPTS + "WHERE job = ? ORDER BY attempt"
        return list(rows.whole(rows.read_attempt, self._db.execute(query, (job,))))

    def events(self, job: int) -> list[tuple[int, f.AnyFact]]:
        """Return what happened to a job: (sequence number, fact), oldest first.

        Damaged rows are left out.
        """
        query = rows.SELECT_EVENTS + "WHERE job = ? ORDER BY seq"

        def read(row: rows.Row) -> tuple[int, f.AnyFact]:
            return cast("int", row[0]), rows.read_event(row)

        return list(rows.whole(read, self._db.execute(query, (job,))))

    def newest_event(self) -> int:
        """Return the number of the newest event, 0 if there is none."""
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def event_time_s(self, seq: int) -> float | None:
        """Return when an event happened, seconds since the epoch; None: there is none any more."""
        row = self._db.execute("SELECT at_s FROM events WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else float(row[0])

    def events_between(
        self, first: int, last: int, kinds: Sequence[str]
    ) -> list[tuple[int, f.AnyFact]]:
        """Return the events of some kinds, oldest first, with their numbers; damaged ones are not.

        Args:
            first: number of the first event that is looked at.
            last: of the last one.
        """
        marks = ", ".join("?" * len(kinds))
        query = f"{rows.SELECT_EVENTS}WHERE seq BETWEEN ? AND ? AND kind IN ({marks}) ORDER BY seq"

        def read(row: rows.Row) -> tuple[int, f.AnyFact]:
            return cast("int", row[0]), rows.read_event(row)

        return list(rows.whole(read, self._db.execute(query, (first, last, *kinds))))

    def states_any(self, job: int, fields: Sequence[bytes]) -> bool:
        """Return whether a job's statement has one of some fields, without reading it."""
        row = self._db.execute("SELECT spec FROM specs WHERE job = ?", (job,)).fetchone()
        return row is not None and any(b'"%b":' % name in bytes(row[0]) for name in fields)

    def all_facts(self) -> list[f.AnyFact]:
        """Return every fact there is, oldest first."""
        query = rows.SELECT_EVENTS + "ORDER BY seq"
        return [rows.read_event(row) for row in self._db.execute(query)]

    def blob(self, digest: str) -> bytes:
        """Return a script or environment by its digest.

        Raises:
            StorageError: it is not there, or not what was stored: the database is damaged.
        """
        query = "SELECT data FROM blobs WHERE digest = ?"
        row = self._db.execute(query, (digest,)).fetchone()
        if row is None:
            raise StorageError(f"the database holds no script or environment {digest}")
        data = row[0]
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"the script or environment {digest} in the database is damaged")
        return data

    def text_bytes(self, uid: int) -> int:
        """Return how many bytes scripts and environments have that jobs of a user brought."""
        return int(self._db.execute(TEXT_BYTES, (uid,)).fetchone()[0])

    def history(self, wanted: HistoryFilter) -> tuple[list[Entry], HistoryTotals]:
        """Return past jobs, newest first, and totals over all that match (the limit aside).

        Elements of an array that were cancelled together before any of them started are one entry.
        Jobs with damaged records are left out of the list and named with the totals.
        """
        index = self.past_index(wanted)
        entries: list[Entry] = []
        damaged = [*index.totals.damaged]
        for begin in range(0, len(index.numbers), _PAST_AT_ONCE):
            part = index.numbers[begin : begin + _PAST_AT_ONCE]
            past = self.past_jobs([number for number in part if number not in index.known])
            damaged.extend(past.damaged)
            found = (index.known.get(number) or past.jobs.get(number) for number in part)
            entries.extend(each for each in found if each is not None)
        return entries, structs.replace(index.totals, damaged=tuple(damaged))

    def past_index(self, wanted: HistoryFilter) -> PastIndex:
        """Return which entries the history has, newest first, and totals over all that match."""
        where, values = _conditions(wanted)
        totals = self._db.execute(
            "SELECT count(failed), coalesce(sum(cpu_s), 0), coalesce(sum(wall_s), 0), "  # noqa: S608 # bound
            "coalesce(sum(gpu_s), 0), "
            "coalesce(sum(failed AND outcome != 'cancelled'), 0), "
            "coalesce(sum(outcome = 'cancelled' AND failed IS NOT NULL), 0) FROM jobs" + where,
            values,
        ).fetchone()
        most = wanted.limit + 1
        dropped = self._dropped(wanted)
        unseen = sum(count(each.elements) for each in dropped)
        damaged: list[Damaged] = []
        ranges = Ranges(self._db, self._job, damaged).newest(where, values, dropped, most)
        known = {each.job.id: each.job if each.count == 1 else each for each in ranges}
        query = (
            f"SELECT ended_s, id FROM jobs{where}{STARTED} ORDER BY ended_s DESC, id DESC LIMIT ?"  # noqa: S608 # bound
        )
        jobs = self._db.execute(query, (*values, most))
        others = sorted(((each.job.ended_s or 0.0, each.job.id) for each in ranges), reverse=True)
        merged = merge(((row[0], row[1]) for row in jobs), others, reverse=True)
        numbers = array("q", (number for _, number in islice(merged, most)))
        more = len(numbers) > wanted.limit
        found = HistoryTotals(
            jobs=totals[0] + unseen,
            cpu_s=totals[1],
            wall_s=totals[2],
            gpu_s=totals[3],
            failed=totals[4],
            cancelled=totals[5] + unseen,
            more=more,
            damaged=tuple(each.job for each in damaged),
        )
        return PastIndex(numbers=numbers[: wanted.limit], known=known, totals=found)

    def _dropped(self, wanted: HistoryFilter) -> list[Dropped]:
        """Return the elements of arrays that match and were cancelled before they became jobs."""
        if wanted.failed or wanted.outcome not in {"", OutcomeKind.CANCELLED}:
            return []
        named = None
        if wanted.ids:
            own = ((number, number) for number in wanted.ids if array_of(number))
            named = [*wanted.elements, *own]
        where, values = _of_whom(wanted)
        array = "".join(f" AND {term}" for term in where)
        return list(dropped_between(self._db, wanted.since_s, wanted.until_s, array, values, named))

    def past_jobs(self, numbers: Sequence[int]) -> PastJobs:
        """Return jobs by number, some hundreds at a time; unknown ones are left out."""
        query = f"{rows.SELECT_JOBS}WHERE jobs.id IN ({', '.join('?' * len(numbers))})"
        damaged: list[Damaged] = []
        found = rows.whole(self._job, self._db.execute(query, list(numbers)), damaged)
        jobs = {job.id: job for job in found}
        return PastJobs(jobs, [each.job for each in damaged])

    def check(self, place: Place) -> tuple[list[Damaged], Place | None]:
        """Compare a slice of all rows with their checksums; see `check_slice`."""
        return check_slice(self._db, place)

    def scored(self, wanted: HistoryFilter) -> tuple[list[Scored], int, Spreads]:
        """Return predicted against measured: newest rows, how many there are, and their errors.

        Of jobs that are named also those are in it that are not done, with what has ended of them.
        """
        where, values = _conditions(wanted, done_only=not wanted.ids)
        return scored(self._db, where, values, wanted.limit)

    def node_spreads(self, names: Sequence[str]) -> dict[str, Spreads]:
        """Return how far the newest predictions for each node were off."""
        return {name: node_spreads(self._db, name) for name in names}

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def _conditions(wanted: HistoryFilter, *, done_only: bool = True) -> tuple[str, list[SqlValue]]:
    """Return the WHERE clause and its values; every value of a user's is bound, never pasted."""
    terms = ["jobs.state = 'done'"] if done_only else []
    values: list[SqlValue] = []

    def term(text: str, *given: SqlValue) -> None:
        terms.append(text)
        values.extend(given)

    if wanted.ids:
        named = f"jobs.id IN ({', '.join('?' * len(wanted.ids))})"
        spans = [" OR jobs.id BETWEEN ? AND ?" for _ in wanted.elements]
        bounds = (number for pair in wanted.elements for number in pair)
        term(f"({named}{''.join(spans)})", *wanted.ids, *bounds)
    whose, given = _of_whom(wanted)
    for text, value in zip(whose, given, strict=True):
        term(text, value)
    if wanted.outcome:
        term("jobs.outcome = ?", wanted.outcome)
    if wanted.failed:
        term("jobs.failed = 1 AND jobs.outcome != 'cancelled'")
    if wanted.since_s is not None:
        term("jobs.ended_s >= ?", wanted.since_s)
    if wanted.until_s is not None:
        term("jobs.ended_s < ?", wanted.until_s)
    return " WHERE " + " AND ".join(terms), values


def _of_whom(wanted: HistoryFilter) -> tuple[list[str], list[SqlValue]]:
    """Return conditions that hold for an array and its elements alike, with a value each."""
    found = [
        (text, value)
        for text, value in (
            ("jobs.user = ?", wanted.user),
            ("jobs.queue = ?", wanted.queue),
            ("jobs.name GLOB ?", wanted.name),
        )
        if value
    ]
    return [text for text, _ in found], [value for _, value in found]
