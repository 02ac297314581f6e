"""Which jobs a list shows, chosen by the database, and their rows, which the head gives."""

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.errors import GschedError, HeadUnreachableError
from gsched.model.ids import ELEMENT_BASE, INDICES, short_job_id
from gsched.model.states import JobState
from gsched.protocol.api import JobList, JobRow
from gschedd.monitor.model import ReadModel
from gschedd.monitor.viewers import Viewer

PAGE_ROWS: Final = 100
PAGES_MOST: Final = 100_000
#: How long rows and counts are shown again, seconds.
FRESH_S: Final = 2.0
#: A count of 100,000 jobs takes 50 ms of CPU time, so there is one in five seconds for a filter.
COUNTS_FRESH_S: Final = 5.0
#: How long counts are shown while new ones are made, seconds, and for how many filters.
COUNTS_KEPT_S: Final = 60.0
COUNTS_MOST: Final = 500
#: How old predicted starts may get before new ones are requested, and how long they are shown.
STARTS_FRESH_S: Final = 15.0
STARTS_KEPT_S: Final = 120.0
#: How long a page waits for predicted starts; later ones come with the next update.
PATIENCE_S: Final = 0.03
KEPT_MOST: Final = 5000
#: How long a page waits for the head; then it is left alone for a while, seconds.
AWAY_S: Final = 2.0
AWAY_PAUSE_S: Final = 10.0

_WAITING: Final = ("queued", "held", "waiting")
_RUNNING: Final = ("running", "migrating", "exiting")
STATES: Final = {
    "": ("all", ()),
    "waiting": ("waiting", ("queued", "waiting")),
    "held": ("held", ("held",)),
    "running": ("running", _RUNNING),
}
#: Columns by which lists are sorted: of the head's table of jobs.
SORTS: Final = ("id", "name", "user", "queue", "state", "started_s")


def page_number(request: web.Request) -> int:
    """Return which page of a list an address names."""
    text = request.query.get("number", "1")
    return int(text) if text.isdecimal() and 0 < int(text[:9]) <= PAGES_MOST else 1


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which unfinished jobs a list has.

    Attributes:
        name: a pattern, as ``train*``.
        state: a key of `STATES`.
        sort: one of `SORTS`, with ``-`` before it for the reverse order.
        number: of the page, from 1 on.
    """

    user: str = ""
    queue: str = ""
    name: str = ""
    state: str = ""
    sort: str = ""
    number: int = 1

    def query(self) -> tuple[str, list[str]]:
        """Return the condition of the jobs and its values; all that a user wrote is bound.

        Elements of an unfinished array are in the list where they run; else the array is.
        """
        terms = ["state <> 'done'"]
        values: list[str] = []
        for column, value, operator in (
            ("user", self.user, "="),
            ("queue", self.queue, "="),
            ("name", self.name, "GLOB"),
        ):
            if value:
                terms.append(f"{column} {operator} ?")
                values.append(value)
        if self.state != "running":
            terms.append(
                f"(id < {ELEMENT_BASE} OR NOT EXISTS (SELECT 1 FROM head.jobs AS a WHERE "  # noqa: S608 # numbers
                f"a.id = (jobs.id - {ELEMENT_BASE}) / {INDICES} AND a.state <> 'done'))"
            )
        return " AND ".join(terms), values


class ShownJobs:
    """Reads lists of jobs; what many request within seconds is read once."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._counts: dict[tuple[str, ...], tuple[float, dict[str, int]]] = {}
        self._counting: dict[tuple[str, ...], asyncio.Task[dict[str, int]]] = {}
        self._lists: dict[tuple[int, ...], tuple[float, JobList]] = {}
        self._starts: dict[int, tuple[float, JobRow]] = {}
        self._away_until_s = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def list(self, wanted: JobFilter, viewer: Viewer) -> tuple[JobList, dict[str, int]]:
        """Return a page of a list with the jobs' reasons, and how many jobs there are by state."""
        counts = await self._counted(wanted)
        known = await self._model.database.read(lambda db: _choose(db, wanted))
        return await self.rows([row.id for row in known], viewer, known=known), counts

    async def _counted(self, wanted: JobFilter) -> dict[str, int]:
        """Return how many jobs there are by state; old counts while new ones are made."""
        where, values = wanted.query()
        key = (where, *values)
        now_s = self._model.clock.monotonic_s()
        counted_s, counts = self._counts.get(key, (0.0, None))
        if counts is not None and now_s - counted_s < COUNTS_FRESH_S:
            return counts
        task = self._counting.get(key)
        if task is None:
            task = self._counting[key] = asyncio.create_task(self._count(key))
            task.add_done_callback(lambda _: self._counting.pop(key, None))
        if counts is not None and now_s - counted_s < COUNTS_KEPT_S:
            return counts
        return await task

    async def _count(self, key: tuple[str, ...]) -> dict[str, int]:
        where, *values = key
        query = f"SELECT state, count(*) FROM head.jobs WHERE {where} GROUP BY state"  # noqa: S608 # bound
        counts: dict[str, int] = await self._model.database.read(
            lambda db: dict(db.execute(query, values).fetchall())
        )
        if len(self._counts) > COUNTS_MOST:
            self._counts.clear()
        self._counts[key] = (self._model.clock.monotonic_s(), counts)
        return counts

    async def rows(
        self, numbers: Sequence[int], viewer: Viewer, *, known: Sequence[JobRow] = ()
    ) -> JobList:
        """Return the rows of jobs in this order; where the head does not answer, those known.

        Predicted starts are those of the last seconds.
        """
        model = self._model
        now_s = model.clock.monotonic_s()
        key = (viewer.uid, *numbers)
        kept_s, found = self._lists.get(key, (-FRESH_S, None))
        if found is None or now_s - kept_s >= FRESH_S:
            if not numbers:
                return JobList(server=model.server, now_s=model.clock.wall_s(), jobs=())
            try:
                found = await self._read_rows(numbers, viewer)
            except (HeadUnreachableError, TimeoutError):
                return JobList(
                    server=model.server,
                    now_s=model.clock.wall_s(),
                    jobs=tuple(known),
                    warning="the head does not answer; its database has no reasons of jobs",
                )
            self._lists = {k: v for k, v in self._lists.items() if now_s - v[0] < FRESH_S}
            self._lists[key] = (now_s, found)
        waiting = [row.id for row in found.jobs if row.state in _WAITING]
        await self._request_starts(waiting, viewer)
        places = {number: at for at, number in enumerate(numbers)}
        jobs = sorted(map(self._with_start, found.jobs), key=lambda row: places.get(row.id, 0))
        return structs.replace(found, jobs=tuple(jobs))

    async def _read_rows(self, numbers: Sequence[int], viewer: Viewer) -> JobList:
        """Read rows from the head; one that has just not answered is left alone for a while.

        Raises:
            HeadUnreachableError: it is not there.
            TimeoutError: it does not answer.
        """
        now_s = self._model.clock.monotonic_s()
        if now_s < self._away_until_s:
            raise TimeoutError
        try:
            async with asyncio.timeout(AWAY_S):
                return await self._model.head.get(
                    "/v1/jobs", JobList, viewer=viewer, ids=_ids(numbers)
                )
        except TimeoutError:
            self._away_until_s = now_s + AWAY_PAUSE_S
            raise

    def _with_start(self, row: JobRow) -> JobRow:
        kept_s, kept = self._starts.get(row.id, (0.0, row))
        age_s = self._model.clock.monotonic_s() - kept_s
        if row.state not in _WAITING or kept is row or age_s > STARTS_KEPT_S:
            return row
        return structs.replace(row, start=kept.start, predicted_start_s=kept.predicted_start_s)

    async def _request_starts(self, numbers: Sequence[int], viewer: Viewer) -> None:
        """Request predicted starts that are too old, and wait for them for a moment only."""
        now_s = self._model.clock.monotonic_s()
        old = [
            each
            for each in numbers
            if now_s - self._starts.get(each, (-STARTS_FRESH_S, None))[0] >= STARTS_FRESH_S
        ]
        if not old:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._read_starts(old, viewer))
        await asyncio.wait({self._asking}, timeout=PATIENCE_S)

    async def _read_starts(self, numbers: Sequence[int], viewer: Viewer) -> None:
        try:
            found = await self._model.head.get(
                "/v1/jobs", JobList, viewer=viewer, ids=_ids(numbers), forecast="1"
            )
        except GschedError:
            return  # the lists tell that the head does not answer
        now_s = self._model.clock.monotonic_s()
        if len(self._starts) > KEPT_MOST:
            self._starts.clear()
        self._starts.update((row.id, (now_s, row)) for row in found.jobs)


def _ids(numbers: Sequence[int]) -> str:
    return ",".join(map(short_job_id, numbers))


def _choose(db: sqlite3.Connection, wanted: JobFilter) -> list[JobRow]:
    """Return the jobs of a page, with what their table has."""
    where, values = wanted.query()
    states = STATES[wanted.state][1]
    if states:
        where += f" AND state IN ({', '.join('?' * len(states))})"
        values += states
    column = wanted.sort.removeprefix("-") or "id"
    order = " DESC" if wanted.sort.startswith("-") else ""
    found = db.execute(
        "SELECT id, name, user, queue, state, submitted_s, started_s FROM head.jobs "  # noqa: S608 # bound
        f"WHERE {where} ORDER BY {column}{order}, id{order} LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, PAGE_ROWS * (wanted.number - 1)),
    )
    return [_recorded(row) for row in found]


def _recorded(row: sqlite3.Row) -> JobRow:
    """Return a row with what the table of jobs has."""
    number, name, user, queue, state, submitted_s, started_s = row
    return JobRow(
        id=number,
        name=name,
        user=user,
        queue=queue,
        state=state,
        letter=JobState(state).letter,
        submitted_s=submitted_s,
        started_s=started_s,
        cpus=0,
        places=0,
    )
