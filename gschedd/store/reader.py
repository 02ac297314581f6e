"""Reading the store: past jobs, their stories, scripts; from its own connection and thread."""

import sqlite3
from collections.abc import Sequence
from typing import cast
from urllib.parse import quote

from msgspec import Struct

from gsched.errors import StorageError
from gschedd.core import facts as f
from gschedd.core.state import Attempt, Job, Node
from gschedd.store import rows
from gschedd.store.history import Scored, Spreads, node_spreads, scored


class HistoryFilter(Struct, frozen=True, kw_only=True):
    """Which past jobs are wanted; empty strings and None ask for all."""

    ids: tuple[int, ...] = ()
    user: str = ""
    queue: str = ""
    name: str = ""
    outcome: str = ""
    failed: bool = False
    since_s: float | None = None
    until_s: float | None = None
    limit: int = 1000


class HistoryTotals(Struct, frozen=True, kw_only=True):
    """Sums over all past jobs that match a filter."""

    jobs: int
    cpu_s: float
    wall_s: float
    gpu_s: float
    failed: int


class Reader:
    """The reader's side: a connection that cannot write; sees what is committed, never waits."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        self._specs = rows.SpecReader()

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """Return jobs by id, done or not, as they are in the database; unknown ids are left out."""
        found: list[Job] = []
        for number in ids:
            row = self._db.execute(rows.SELECT_JOBS + "WHERE jobs.id = ?", (number,)).fetchone()
            if row is not None:
                found.append(self._job(row))
        return found

    def jobs_of_keys(self, uid: int, keys: Sequence[str]) -> dict[str, int]:
        """Return the jobs that a user's client keys have made, by key."""
        query = "SELECT id FROM jobs WHERE uid = ? AND client_key = ?"
        found = ((key, self._db.execute(query, (uid, key)).fetchone()) for key in keys)
        return {key: row[0] for key, row in found if row is not None}

    def _job(self, row: rows.Row) -> Job:
        job = rows.job_from_row(row, self._specs.read(cast("bytes", row[-1])))
        attempts = self.attempts(job.id)
        job.attempt = attempts[-1] if attempts else None
        return job

    def nodes(self) -> list[Node]:
        """Return every node that has ever registered, by name."""
        query = "SELECT data FROM nodes ORDER BY name"
        return [rows.node_from_data(data) for (data,) in self._db.execute(query)]

    def attempts(self, job: int) -> list[Attempt]:
        """Return all attempts of a job, oldest first."""
        query = "SELECT data FROM attempts WHERE job = ? ORDER BY attempt"
        return [rows.attempt_from_data(data) for (data,) in self._db.execute(query, (job,))]

    def events(self, job: int) -> list[tuple[int, f.AnyFact]]:
        """Return what happened to a job: (sequence number, fact), oldest first."""
        query = "SELECT seq, data FROM events WHERE job = ? ORDER BY seq"
        return [(seq, rows.fact_from_data(data)) for seq, data in self._db.execute(query, (job,))]

    def all_facts(self) -> list[f.AnyFact]:
        """Return every fact there is, oldest first."""
        query = "SELECT data FROM events ORDER BY seq"
        return [rows.fact_from_data(data) for (data,) in self._db.execute(query)]

    def blob(self, digest: str) -> bytes:
        """Return a script or environment by its digest.

        Raises:
            StorageError: it is not there: the database is damaged.
        """
        query = "SELECT data FROM blobs WHERE digest = ?"
        row = self._db.execute(query, (digest,)).fetchone()
        if row is None:
            raise StorageError(f"the database holds no script or environment {digest}")
        return cast("bytes", row[0])

    def history(self, wanted: HistoryFilter) -> tuple[list[Job], HistoryTotals]:
        """Return past jobs, newest first, and totals over all that match (the limit aside)."""
        where, values = _conditions(wanted)
        totals = self._db.execute(
            "SELECT count(*), coalesce(sum(cpu_s), 0), coalesce(sum(wall_s), 0), "  # noqa: S608 # bound
            "coalesce(sum(gpu_s), 0), coalesce(sum(failed), 0) FROM jobs" + where,
            values,
        ).fetchone()
        query = rows.SELECT_JOBS + where + " ORDER BY ended_s DESC, id DESC LIMIT ?"
        found = [self._job(row) for row in self._db.execute(query, (*values, wanted.limit))]
        return found, HistoryTotals(
            jobs=totals[0],
            cpu_s=totals[1],
            wall_s=totals[2],
            gpu_s=totals[3],
            failed=totals[4],
        )

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


def _conditions(
    wanted: HistoryFilter, *, done_only: bool = True
) -> tuple[str, list[rows.SqlValue]]:
    """Return the WHERE clause and its values; every value of a user's is bound, never pasted."""
    terms = ["jobs.state = 'done'"] if done_only else []
    values: list[rows.SqlValue] = []

    def term(text: str, *given: rows.SqlValue) -> None:
        terms.append(text)
        values.extend(given)

    if wanted.ids:
        term(f"jobs.id IN ({', '.join('?' * len(wanted.ids))})", *wanted.ids)
    for column in ("user", "queue", "outcome"):
        value = getattr(wanted, column)
        if value:
            term(f"jobs.{column} = ?", value)
    if wanted.name:
        term("jobs.name GLOB ?", wanted.name)
    if wanted.failed:
        term("jobs.failed = 1")
    if wanted.since_s is not None:
        term("jobs.ended_s >= ?", wanted.since_s)
    if wanted.until_s is not None:
        term("jobs.ended_s < ?", wanted.until_s)
    return " WHERE " + " AND ".join(terms), values
