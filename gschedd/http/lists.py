"""Lists of jobs of any length: read from the database, put into words and sent slice by slice.

Whoever asks for 100,000 past jobs costs the head their numbers and one slice of their rows, as many
times as there are turns at such lists. What a slice was made of is free when it is sent.
"""

import logging
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    MutableSequence,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Final, TypeAlias

import msgspec
from aiohttp import web

from gsched.errors import GschedError
from gsched.model.ids import array_of
from gsched.model.limits import MAX_LISTS, MAX_USER_LISTS
from gsched.model.states import JobState
from gsched.protocol import job_rows
from gschedd.core.requests.authorize import Verb, hides, may
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.core.state.state import State
from gschedd.core.views.arrays import shown_state
from gschedd.core.views.jobs import JobViews
from gschedd.http.pace import Pace, Turns
from gschedd.store.reader import Entry, PastJobs, Reader

log = logging.getLogger("gschedd.http")

ROWS_PER_SLICE: Final = 250  # rows that are encoded and sent together
COLUMNS_LEAST: Final = 3  # jobs of one request that are not worth a row for each
JOBS_PER_LOOK: Final = 1000  # jobs that are compared with a filter before others get their turn
_BLOCK: Final = 8192  # numbers of a set
_NO_ROWS: Final = b'"jobs":[]'
_encoder = msgspec.json.Encoder()

ReadPast: TypeAlias = Callable[[Callable[[], PastJobs]], Awaitable[PastJobs]]
Row: TypeAlias = Callable[[Entry], job_rows.JobRow]


class Lists:
    """Long lists of jobs.

    Args:
        reader: of the database.
        read: runs a read in the reader's thread.
    """

    def __init__(self, *, reader: Reader, read: ReadPast) -> None:
        self._reader = reader
        self._read = read
        self._turns = Turns(MAX_LISTS, of_user=MAX_USER_LISTS)

    def turn(self, uid: int, *, rows_max: int) -> AbstractAsyncContextManager[object]:
        """Wait for a turn at a list of past jobs; a short one needs none."""
        return nullcontext() if rows_max <= ROWS_PER_SLICE else self._turns.turn(uid)

    async def entries(
        self, numbers: Sequence[int], known: Mapping[int, Entry], damaged: MutableSequence[int]
    ) -> AsyncIterator[list[Entry]]:
        """Yield the entries of these numbers in their order, slice by slice.

        Args:
            numbers: of jobs, or of the first of some elements.
            known: those of them that need not be read.
            damaged: takes those that cannot be read.
        """
        for begin in range(0, len(numbers), ROWS_PER_SLICE):
            part = numbers[begin : begin + ROWS_PER_SLICE]
            wanted = [number for number in part if number not in known]
            past = PastJobs({}, [])
            if wanted:
                past = await self._read(partial(self._reader.past_jobs, wanted))
                damaged.extend(past.damaged)
            found = (known.get(number) or past.jobs.get(number) for number in part)
            yield [each for each in found if each is not None]


async def in_slices(jobs: Sequence[Job]) -> AsyncIterator[Sequence[Job]]:
    """Yield jobs slice by slice."""
    for begin in range(0, len(jobs), ROWS_PER_SLICE):
        yield jobs[begin : begin + ROWS_PER_SLICE]


class _Numbers:
    """Numbers of jobs, in sets of which none is so large that it takes a turn to make room in it.

    A set that grows to a million numbers takes 20 ms once, these at most 1 ms.
    """

    def __init__(self) -> None:
        self._blocks: defaultdict[int, set[int]] = defaultdict(set)
        self.count = 0

    def add(self, numbers: Sequence[int]) -> None:
        """Add numbers that are not there."""
        for number in numbers:
            self._blocks[number // _BLOCK].add(number)
        self.count += len(numbers)

    def has(self, number: int) -> bool:
        """Return whether a number is there."""
        return number in self._blocks.get(number // _BLOCK, ())


class Choice:
    """The unfinished jobs that a list shows, by the filters of ``GET /v1/jobs``.

    Args:
        query: user, states, and whether elements of arrays are listed.
        states: of the query, read; empty: all.
        state: of the head.
        caller: to whom the list goes: in private mode it has no columns.
    """

    def __init__(
        self,
        query: Mapping[str, str],
        states: Collection[JobState],
        state: State,
        caller: Caller,
    ) -> None:
        self._caller = caller
        self._user = query.get("user", "")
        self._elements = query.get("elements", "") == "1"
        others = (query.get(name, "") for name in ("elements", "all", "forecast"))
        is_whole = not caller.is_private or may(caller, Verb.READ_JOB)
        columns = query.get("columns", "")
        self._has_all = columns == "all"
        self._in_columns = columns in ("1", "all") and "1" not in others and is_whole
        self._states = states
        self._state = state

    def holds(self, job: Job) -> bool:
        """Return whether the list shows a job."""
        state = self._state
        return (
            (self._elements or not state.arrays or array_of(job.id) not in state.arrays)
            and (not self._user or self._is_of_user(job))
            and (not self._states or shown_state(job, state) in self._states)
        )

    def _is_of_user(self, job: Job) -> bool:
        owner = job.spec.owner
        return owner.user == self._user and not hides(self._caller, owner)

    async def jobs(self, teller: JobViews) -> tuple[list[Job], list[bytes]]:
        """Return the jobs, and those that the list can have in columns, encoded.

        What was chosen first may have changed at the end. A job whose request is altered meanwhile
        may be missing. Without columns the jobs are in the order of their ids.
        """
        pace = Pace()
        state = self._state
        every = state.jobs_of.get(self._user, {}) if self._user else state.jobs
        if not self._in_columns or len(every) <= ROWS_PER_SLICE:
            return await self._unshown(list(every.values()), _Numbers(), pace), []
        apart = list(state.apart.values())
        shown = _Numbers()
        columns: list[bytes] = []
        async for part, left in self._columns(teller, shown, pace):
            if part is not None:
                shown.add(part.ids)
                columns.append(_encoder.encode(part))
            apart += left
        chosen = await self._unshown(apart, shown, pace)
        # jobs that left their groups before these were read
        chosen += await self._unshown(list(state.apart.values()), shown, pace)
        return chosen, columns

    async def _unshown(self, jobs: Sequence[Job], shown: _Numbers, pace: Pace) -> list[Job]:
        """Return the jobs that pass the filters and were not shown yet; note them as shown."""
        chosen: list[Job] = []
        for begin in range(0, len(jobs), JOBS_PER_LOOK):
            part = jobs[begin : begin + JOBS_PER_LOOK]
            fresh = [job for job in part if not shown.has(job.id)]
            shown.add([job.id for job in fresh])
            chosen += [job for job in fresh if self.holds(job)]
            await pace.keep()
        return chosen

    async def _columns(
        self, teller: JobViews, shown: _Numbers, pace: Pace
    ) -> AsyncIterator[tuple[job_rows.JobColumns | None, list[Job]]]:
        """Yield waiting jobs in columns, piece by piece, and those that need rows."""
        if self._states and JobState.QUEUED not in self._states:
            return
        mine = self._state.jobs_of.get(self._user, {}) if self._user else None
        for group in list(self._state.groups.values()):
            for lane in list(group.lanes):
                order = list(group.lanes.get(lane, ()))
                is_large = len(order) >= COLUMNS_LEAST
                in_columns = is_large and teller.has_columns(group.job_class, lane)
                for begin in range(0, len(order), JOBS_PER_LOOK):
                    part = enumerate(order[begin : begin + JOBS_PER_LOOK], begin)
                    if mine is None:
                        places = [
                            (place, number) for place, (_, number) in part if not shown.has(number)
                        ]
                    else:
                        places = [
                            (place, number)
                            for place, (_, number) in part
                            if number in mine and not shown.has(number)
                        ]
                    if in_columns:
                        yield teller.columns(
                            group.job_class, places, first=order[0][1], whole=self._has_all
                        )
                    else:
                        jobs = (self._state.jobs.get(number) for _, number in places)
                        yield None, [job for job in jobs if job is not None]
                    await pace.keep()


async def send(
    request: web.Request,
    reply: Callable[[], job_rows.JobList | job_rows.HistoryReply],
    slices: AsyncIterator[Sequence[Entry]],
    row: Row,
    *,
    is_long: bool,
    columns: Sequence[bytes] = (),
) -> web.StreamResponse:
    """Answer with a list; a long one leaves slice by slice, so that nobody else waits for it.

    Args:
        request: that is answered.
        reply: returns the answer without its jobs; what stands in it before them does not change.
        slices: of its jobs.
        row: returns the row of a job.
        is_long: there may be more than one slice.
        columns: jobs in columns, encoded.
    """
    pace = Pace()
    if not is_long:
        rows = [row(job) async for jobs in slices for job in jobs]
        return web.Response(body=_body(reply(), _rows(rows)), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        before, _ = _around(reply())
        await response.write(before)
        is_first = True
        async for jobs in slices:
            pace.begin()  # what was waited for, the disk and the reader, is not the head's work
            rows = []
            for job in jobs:
                rows.append(row(job))
                await pace.keep()
            if rows:
                data = (b"" if is_first else b",") + _rows(rows)
                is_first = False
                await pace.keep()
                pace.stop()
                await response.write(data)
        _, after = _around(reply())
        for number, part in enumerate(columns):
            await response.write((b"," if number else b'],"columns":[') + part)
        await response.write(after)
        await response.write_eof()
    except GschedError as error:  # too late for a refusal: half of the list has left
        log.error("a list of jobs ends in the middle: %s", error)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(str(error)) from error
    return response


def _rows(rows: Sequence[job_rows.JobRow]) -> bytes:
    """Return rows without the brackets around them."""
    return _encoder.encode(rows)[1:-1]


def _around(reply: job_rows.JobList | job_rows.HistoryReply) -> tuple[bytes, bytes]:
    """Return what stands before and after the rows of a list."""
    before, mark, after = _encoder.encode(reply).partition(_NO_ROWS)
    assert mark, "a list has its jobs, and here it has none yet"
    return before + _NO_ROWS[:-1], b"]" + after


def _body(reply: job_rows.JobList | job_rows.HistoryReply, rows: bytes) -> bytes:
    before, after = _around(reply)
    return before + rows + after
