"""The unfinished jobs, for lists: an index in memory that follows the head's table of jobs.

The head's table has whole records, and those of jobs that have ended; a count or an order of
100,000 jobs takes 50 ms there. Here it takes less than one.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import quote

from gsched.model.ids import ELEMENT_BASE, INDICES
from gschedd.store.seals import text_of

T = TypeVar("T")

#: ``inside``: 1: an element of an unfinished array, which stands in lists for its elements; 2: an
#: array of which elements run, which stand for it in lists of what runs. Its state is that it runs.
_SCHEMA: Final = """
    CREATE TABLE unfinished (
        id INTEGER PRIMARY KEY, inside INTEGER NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
        queue TEXT NOT NULL, state TEXT NOT NULL, submitted_s REAL NOT NULL, started_s REAL,
        deadline_s REAL);
    CREATE INDEX by_name ON unfinished (name, id, inside);
    CREATE INDEX by_user ON unfinished (user, id, inside);
    CREATE INDEX by_queue ON unfinished (queue, id, inside);
    CREATE INDEX by_state ON unfinished (state, id, inside);
    CREATE INDEX by_start ON unfinished (started_s, id, inside);
    CREATE INDEX by_deadline ON unfinished (deadline_s) WHERE deadline_s > 0;
    CREATE TABLE counts (
        inside INTEGER, user TEXT, queue TEXT, state TEXT, jobs INTEGER NOT NULL,
        PRIMARY KEY (inside, user, queue, state)) WITHOUT ROWID;
    CREATE TRIGGER count_more AFTER INSERT ON unfinished BEGIN
        INSERT INTO counts VALUES (new.inside, new.user, new.queue, new.state, 1)
        ON CONFLICT DO UPDATE SET jobs = jobs + 1;
    END;
    CREATE TRIGGER count_less AFTER DELETE ON unfinished BEGIN
        UPDATE counts SET jobs = jobs - 1 WHERE inside = old.inside AND user = old.user
            AND queue = old.queue AND state = old.state;
    END;
    CREATE TABLE changed (id INTEGER PRIMARY KEY);
"""
_ELEMENTS: Final = (
    f"BETWEEN {ELEMENT_BASE} + {INDICES} * changed.id "
    f"AND {ELEMENT_BASE} + {INDICES} * changed.id + {INDICES - 1}"
)
_ALL: Final = """
    INSERT INTO changed SELECT id FROM head.jobs WHERE state <> 'done'
    UNION SELECT id FROM unfinished"""
#: Jobs of the events between two numbers, the elements of their arrays, the arrays of elements.
_CHANGED: Final = """
    INSERT OR IGNORE INTO changed
    SELECT job FROM head.events WHERE seq BETWEEN ? AND ? AND job IS NOT NULL"""
_CHANGED_ELEMENTS: Final = f"""
    INSERT OR IGNORE INTO changed
    SELECT jobs.id FROM changed CROSS JOIN head.jobs AS jobs INDEXED BY live_jobs
        ON jobs.id {_ELEMENTS} WHERE changed.id < {ELEMENT_BASE} AND jobs.state <> 'done'
    UNION SELECT unfinished.id FROM changed CROSS JOIN unfinished
        ON unfinished.id {_ELEMENTS} WHERE changed.id < {ELEMENT_BASE}"""  # noqa: S608 # numbers
_CHANGED_ARRAYS: Final = f"""
    INSERT OR IGNORE INTO changed
    SELECT (id - {ELEMENT_BASE}) / {INDICES} FROM changed WHERE id >= {ELEMENT_BASE}"""  # noqa: S608 # numbers
_REMOVE: Final = "DELETE FROM unfinished WHERE id IN (SELECT id FROM changed)"
#: Elements of the array run.
_RUNS: Final = f"""(jobs.id < {ELEMENT_BASE} AND jobs.state = 'queued' AND EXISTS (
    SELECT 1 FROM head.jobs AS elements INDEXED BY live_jobs
    WHERE elements.id BETWEEN {ELEMENT_BASE} + {INDICES} * jobs.id
        AND {ELEMENT_BASE} + {INDICES} * jobs.id + {INDICES - 1} AND elements.state <> 'done'
        AND elements.state IN ('running', 'migrating', 'exiting')))"""  # noqa: S608 # numbers
#: Most jobs have no deadline; a record that is damaged has none here.
_READ: Final = f"""
    INSERT INTO unfinished
    SELECT jobs.id,
        CASE WHEN {_RUNS} THEN 2 ELSE
            jobs.id >= {ELEMENT_BASE} AND EXISTS (SELECT 1 FROM head.jobs AS arrays WHERE
                arrays.id = (jobs.id - {ELEMENT_BASE}) / {INDICES} AND arrays.state <> 'done') END,
        jobs.name, jobs.user, jobs.queue, CASE WHEN {_RUNS} THEN 'running' ELSE jobs.state END,
        jobs.submitted_s, jobs.started_s,
        CASE WHEN instr(specs.spec, CAST('"deadline_s":0.0' AS BLOB)) THEN NULL
            WHEN json_valid(CAST(specs.spec AS TEXT))
            THEN json_extract(CAST(specs.spec AS TEXT), '$.deadline_s') END
    FROM changed CROSS JOIN head.jobs AS jobs ON jobs.id = changed.id
    LEFT JOIN head.specs AS specs ON specs.job = jobs.id WHERE jobs.state <> 'done'"""  # noqa: S608 # numbers


class UnfinishedJobs:
    """The table ``unfinished``, and ``counts`` of it, which show what the head has committed.

    Args:
        head: path of the head's database.
        events_most: where more than so many events are new, all jobs are read again.
    """

    def __init__(self, head: str, *, events_most: int = 50_000) -> None:
        self._head = head
        self._events_most = events_most
        self._newest: tuple[int, float] = (0, 0.0)
        self._db: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unfinished")

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a query returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, query)

    async def follow(self) -> None:
        """Take in what is new, so that the next query need not."""
        await self.read(lambda _: None)

    def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            self._db = sqlite3.connect(":memory:", uri=True, isolation_level=None)
            self._db.text_factory = text_of
            self._db.execute("ATTACH ? AS head", (f"file:{quote(self._head)}?mode=ro",))
            self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")
        try:
            newest = self._take_in(self._db)
            found = query(self._db)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        self._newest = newest
        return found

    def _take_in(self, db: sqlite3.Connection) -> tuple[int, float]:
        """Read the jobs of new events; return the newest event, and when that happened."""
        at = "SELECT seq, at_s FROM head.events "
        newest: tuple[int, float] = db.execute(at + "ORDER BY seq DESC LIMIT 1").fetchone() or (
            0,
            0.0,
        )
        if newest == self._newest:
            return newest
        seq = self._newest[0]
        known = db.execute(at + "WHERE seq = ?", (seq,)).fetchone()
        if known != self._newest or not seq < newest[0] <= seq + self._events_most:
            db.execute(_ALL)  # at the start, and where a backup was restored
        else:
            db.execute(_CHANGED, (seq + 1, newest[0]))
            db.execute(_CHANGED_ELEMENTS)
            db.execute(_CHANGED_ARRAYS)
        for statement in (_REMOVE, _READ, "DELETE FROM changed"):
            db.execute(statement)
        return newest

    def close(self) -> None:
        """Wait for the query under way."""
        self._thread.shutdown()
