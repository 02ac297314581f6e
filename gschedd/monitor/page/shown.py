"""Which jobs a list shows, chosen by the database, and their rows, which the head gives."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web
from msgspec import Struct, structs

from gsched.cli.times import COMPUTING
from gsched.errors import GschedError, HeadUnreachableError
from gsched.model.ids import short_job_id
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobList, JobRow
from gschedd.monitor.model import ReadModel
from gschedd.monitor.viewers import Viewer

PAGE_ROWS: Final = 100
PAGES_MOST: Final = 100_000
#: How long rows are shown again, and how long where the head is busy, seconds.
FRESH_S: Final = 2.0
KEPT_S: Final = 15.0
#: How old predicted starts may get before new ones are requested, and how long they are shown.
STARTS_FRESH_S: Final = 15.0
STARTS_KEPT_S: Final = 120.0
#: How long a page waits for what it can do without; that comes with the next update.
PATIENCE_S: Final = 0.03
KEPT_MOST: Final = 5000
#: Viewers in private mode whose rows are kept.
VIEWERS_MOST: Final = 100
NOBODY: Final = "\0"  # a user whom no job has
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
#: ``inside`` of what stands in other lines of a list, and of one of what runs.
_LEFT_OUT: Final = {False: 1, True: 2}
#: Columns by which lists are sorted: of the head's table of jobs.
SORTS: Final = ("id", "name", "user", "queue", "state", "started_s")


def take_note(task: "asyncio.Task[Any]") -> None:
    """Note how a task has ended for which perhaps nobody waits any more."""
    if not task.cancelled():
        task.exception()


def is_computed(row: JobRow) -> bool:
    """Return whether the head is still computing when a job starts, or was not heard yet."""
    if row.state not in _WAITING:
        return False
    return row.start is None or row.start.unknown.startswith(COMPUTING)


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

        SQLite uses no index for a column with ``+``: most jobs fulfil such a condition, and an
        index that has the order of the list is better.
        Elements of an unfinished array are in the list where they run; else the array is.
        """
        terms = [f"+inside <> {_LEFT_OUT[self.state == 'running']}"]
        values: list[str] = []
        for column, value, operator in (
            ("user", self.user, "="),
            ("queue", self.queue, "="),
            ("name", self.name, "GLOB"),
        ):
            if value:
                terms.append(f"{column} {operator} ?")
                values.append(value)
        return " AND ".join(terms), values


class ShownJobs:
    """Reads lists of jobs. Rows are the same for every viewer: what one has read others see.

    In private mode each ordinary user has rows of their own.
    """

    def __init__(self, model: ReadModel, *, of_user: bool = False) -> None:
        self._model = model
        self._is_of_user = of_user
        self._rows: dict[int, tuple[float, JobRow]] = {}
        self._reading: dict[tuple[int, ...], asyncio.Task[None]] = {}
        self._warning = ""
        self._starts: dict[int, tuple[float, JobRow]] = {}
        self._away_until_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._of_user: dict[int, ShownJobs] = {}

    def _for(self, viewer: Viewer) -> "ShownJobs":
        """Return what keeps the rows that a viewer sees."""
        if self._is_of_user or not self._model.only(viewer):
            return self
        if viewer.uid not in self._of_user and len(self._of_user) >= VIEWERS_MOST:
            self._of_user.clear()
        return self._of_user.setdefault(viewer.uid, ShownJobs(self._model, of_user=True))

    async def list(self, wanted: JobFilter, viewer: Viewer) -> tuple[JobList, dict[str, int]]:
        """Return a page of a list with the jobs' reasons, and how many jobs there are by state."""
        only = self._model.only(viewer)
        if only:
            wanted = _private(wanted, only)
        known, counts = await self._model.unfinished.read(lambda db: choose(db, wanted))
        numbers = [row.id for row in known]
        own = [row for row in known if not only or row.user == only]
        return await self.rows(numbers, viewer, known=own), counts

    async def rows(
        self, numbers: Sequence[int], viewer: Viewer, *, known: Sequence[JobRow] = ()
    ) -> JobList:
        """Return the rows of jobs in this order; where the head does not answer, those known.

        Predicted starts are those of the last seconds.
        """
        kept_for = self._for(viewer)
        if kept_for is not self:
            return await kept_for.rows(numbers, viewer, known=known)
        model = self._model
        now_s = model.clock.monotonic_s()
        kept = ((number, self._rows.get(number, (-FRESH_S,))[0]) for number in numbers)
        changed = {row.id for row in known if not self._has_state(row)}
        old = tuple(
            number for number, kept_s in kept if now_s - kept_s >= FRESH_S or number in changed
        )
        try:
            if old:
                await self._refresh(old, viewer, {row.id: row.state for row in known})
        except (HeadUnreachableError, TimeoutError):
            return JobList(
                server=model.server,
                now_s=model.clock.wall_s(),
                jobs=tuple(known),
                warning="the head does not answer; its database has no reasons of jobs",
            )
        jobs = [self._rows[number][1] for number in numbers if number in self._rows]
        waiting = [row.id for row in jobs if row.state in _WAITING]
        await self._request_starts(waiting, viewer)
        return JobList(
            server=model.server,
            now_s=model.clock.wall_s(),
            jobs=tuple(map(self._with_start, jobs)),
            warning=self._warning,
        )

    async def request_start(self, row: JobRow, viewer: Viewer) -> None:
        """Request the predicted start of a job that waits, and wait for it for a moment only."""
        if row.state in _WAITING:
            await self._for(viewer)._request_starts([row.id], viewer)  # noqa: SLF001 # of this class

    def with_start(self, row: JobRow, viewer: Viewer) -> JobRow:
        """Return the row of a job with its predicted start, as lists have it."""
        return self._for(viewer)._with_start(row)  # noqa: SLF001 # of this class

    async def _refresh(
        self, old: tuple[int, ...], viewer: Viewer, states: Mapping[int, str]
    ) -> None:
        """Read rows again; rows of the last seconds will do where the head is busy.

        Args:
            states: of the jobs, as the database has them: a row of another state will not do.

        Raises:
            HeadUnreachableError: the head is not there.
            TimeoutError: it does not answer.
        """
        reading = self._reading.get(old)
        if reading is None:
            reading = self._reading[old] = asyncio.create_task(self._read_rows(old, viewer))
            reading.add_done_callback(lambda _: self._reading.pop(old))
            reading.add_done_callback(take_note)
        if all(self._will_do(number, states.get(number)) for number in old):
            done, _ = await asyncio.wait({reading}, timeout=PATIENCE_S)
            if not done:
                return
        await asyncio.shield(reading)

    def _has_state(self, known: JobRow) -> bool:
        """Return whether the row that is kept of a job, if there is one, has its present state."""
        _, row = self._rows.get(known.id, (0.0, known))
        return row.state == known.state

    def _will_do(self, number: int, state: str | None) -> bool:
        kept_s, row = self._rows.get(number, (0.0, None))
        if row is None or self._model.clock.monotonic_s() - kept_s > KEPT_S:
            return False
        return row.state == state

    async def _read_rows(self, numbers: Sequence[int], viewer: Viewer) -> None:
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
                found = await self._model.head.get(
                    "/v1/jobs", JobList, viewer=viewer, ids=_ids(numbers)
                )
        except TimeoutError:
            self._away_until_s = now_s + AWAY_PAUSE_S
            raise
        if len(self._rows) > KEPT_MOST:
            self._rows.clear()
        for number in numbers:
            self._rows.pop(number, None)
        self._rows.update((row.id, (now_s, row)) for row in found.jobs)
        self._warning = found.warning

    def _with_start(self, row: JobRow) -> JobRow:
        kept_s, kept = self._starts.get(row.id, (0.0, row))
        age_s = self._model.clock.monotonic_s() - kept_s
        if row.state not in _WAITING or kept is row or age_s > STARTS_KEPT_S:
            return row
        return structs.replace(row, start=kept.start, predicted_start_s=kept.predicted_start_s)

    async def _request_starts(self, numbers: Sequence[int], viewer: Viewer) -> None:
        """Request predicted starts that are too old, and wait for them for a moment only."""
        old = [each for each in numbers if self._is_start_old(each)]
        if not old:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._read_starts(old, viewer))
        await asyncio.wait({self._asking}, timeout=PATIENCE_S)

    def _is_start_old(self, number: int) -> bool:
        """Return whether a predicted start is to be requested again; soon where it is computed."""
        kept_s, row = self._starts.get(number, (-STARTS_FRESH_S, None))
        fresh_s = FRESH_S if row is not None and is_computed(row) else STARTS_FRESH_S
        return self._model.clock.monotonic_s() - kept_s >= fresh_s

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


def _private(wanted: JobFilter, only: str) -> JobFilter:
    """Return which jobs a user gets who sees no names of others: a filter must not tell them."""
    if wanted.name or wanted.user:
        others = wanted.user not in {"", only}
        wanted = structs.replace(wanted, user=NOBODY if others else only)
    is_telling = wanted.sort.removeprefix("-") in {"name", "user"} and not wanted.user
    return structs.replace(wanted, sort="") if is_telling else wanted


def _ids(numbers: Sequence[int]) -> str:
    return ",".join(map(short_job_id, numbers))


def choose(db: sqlite3.Connection, wanted: JobFilter) -> tuple[list[JobRow], dict[str, int]]:
    """Return the jobs of a page, with what the database has of them, and all by state."""
    counts = _count(db, wanted)
    where, values = wanted.query()
    states = STATES[wanted.state][1]
    if states:
        plus = "+" if wanted.state == "waiting" else ""
        where += f" AND {plus}state IN ({', '.join('?' * len(states))})"
        values += states
    column = wanted.sort.removeprefix("-") or "id"
    order = " DESC" if wanted.sort.startswith("-") else ""
    found = db.execute(
        "SELECT id, name, user, queue, state, submitted_s, started_s FROM unfinished "  # noqa: S608 # bound
        f"WHERE {where} ORDER BY {column}{order}, id{order} LIMIT ? OFFSET ?",
        (*values, PAGE_ROWS, PAGE_ROWS * (wanted.number - 1)),
    )
    return [_recorded(row) for row in found], counts


def _count(db: sqlite3.Connection, wanted: JobFilter) -> dict[str, int]:
    """Return how many lines each list of `STATES` has; in one of what runs elements are lines."""
    # names are not counted as they come
    counted = "count(*) FROM unfinished" if wanted.name else "sum(jobs) FROM counts"
    where, values = structs.replace(wanted, state="").query()
    query = f"SELECT state, {counted} WHERE {where} GROUP BY +state"
    by_state: dict[str, int] = dict(db.execute(query, values))
    where, values = structs.replace(wanted, state="running").query()
    query = f"SELECT {counted} WHERE {where} AND state IN ({', '.join('?' * len(_RUNNING))})"
    (running,) = db.execute(query, (*values, *_RUNNING)).fetchone()
    found = {
        key: sum(jobs for state, jobs in by_state.items() if not states or state in states)
        for key, (_, states) in STATES.items()
    }
    return found | {"running": running or 0}


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
