"""Jobs and attempts as the head has them now, within a transaction of the monitor."""

import sqlite3
from typing import Final

from gschedd.core.state.records import Attempt, Job
from gschedd.store import rows
from gschedd.store.seals import DamagedRowError

_JOB: Final = (
    rows.SELECT_JOBS.replace(
        "FROM jobs LEFT JOIN specs ON", "FROM head.jobs AS jobs LEFT JOIN head.specs AS specs ON"
    )
    + "WHERE jobs.id = ?"
)
_ATTEMPT: Final = (
    rows.SELECT_ATTEMPTS.replace("FROM attempts", "FROM head.attempts")
    + "WHERE job = ? AND attempt = ?"
)


class HeadRecords:
    """Reads records; what is purged or damaged is None."""

    def __init__(self) -> None:
        self._specs = rows.SpecReader()

    def job(self, db: sqlite3.Connection, number: int) -> Job | None:
        """Return a job without its attempts."""
        row = db.execute(_JOB, (number,)).fetchone()
        try:
            return None if row is None else rows.read_job(row, self._specs)
        except DamagedRowError:
            return None

    def attempt(self, db: sqlite3.Connection, job: int, number: int) -> Attempt | None:
        """Return an attempt of a job."""
        row = db.execute(_ATTEMPT, (job, number)).fetchone()
        try:
            return None if row is None else rows.read_attempt(row)
        except DamagedRowError:
            return None
