"""Jobs, attempts and nodes as the head has them now, within a transaction of the monitor."""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from gschedd.core.state.records import Attempt, Job
from gschedd.store import rows
from gschedd.store.seals import DamagedRowError

_JOBS: Final = rows.SELECT_JOBS.replace(
    "FROM jobs LEFT JOIN specs ON", "FROM head.jobs AS jobs LEFT JOIN head.specs AS specs ON"
)
_ATTEMPTS: Final = rows.SELECT_ATTEMPTS.replace("FROM attempts", "FROM head.attempts")
#: Jobs that are read with one statement.
AT_ONCE: Final = 1000


class HeadRecords:
    """Reads records, each once; what is purged or damaged is None.

    Args:
        db: in a transaction, for which this object lives.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._specs = rows.SpecReader()
        self._jobs: dict[int, Job] = {}
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._read: set[int] = set()
        self._gpus: dict[str, dict[int, dict[str, Any]]] = {}

    def read(self, jobs: Iterable[int]) -> None:
        """Read jobs with all their attempts."""
        wanted = sorted(set(jobs) - self._read)
        self._read.update(wanted)
        for begin in range(0, len(wanted), AT_ONCE):
            part = wanted[begin : begin + AT_ONCE]
            marks = ", ".join("?" * len(part))
            for row in self.db.execute(f"{_JOBS}WHERE jobs.id IN ({marks})", part):
                with suppress(DamagedRowError):
                    self._jobs[row[0]] = rows.read_job(row, self._specs)
            for row in self.db.execute(f"{_ATTEMPTS}WHERE job IN ({marks})", part):
                with suppress(DamagedRowError):
                    self._attempts[row[0], row[1]] = rows.read_attempt(row)

    def job(self, number: int) -> Job | None:
        """Return a job without its attempts."""
        if number not in self._read:
            self.read([number])
        return self._jobs.get(number)

    def attempt(self, job: int, number: int) -> Attempt | None:
        """Return an attempt of a job."""
        if job not in self._read:
            self.read([job])
        return self._attempts.get((job, number))

    def gpus_on(self, node: str) -> dict[int, dict[str, Any]]:
        """Return the GPUs of a node by index."""
        if node not in self._gpus:
            query = "SELECT data FROM head.nodes WHERE name = ?"
            row = self.db.execute(query, (node,)).fetchone()
            inventory = msgspec.json.decode(row[0])["inventory"] if row is not None else {}
            self._gpus[node] = {gpu["index"]: gpu for gpu in inventory.get("gpus", ())}
        return self._gpus[node]
