"""Lists of jobs of any length: read from the database, put into words and sent slice by slice.

Whoever asks for 100,000 past jobs costs the head their numbers and one slice of their rows, as many
times as there are turns at such lists. What a slice was made of is free when it is sent.
"""

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableSequence,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from gsched.errors import GschedError, InvalidRequestError
from gsched.model.ids import array_of
from gsched.model.job import Labels
from gsched.model.limits import MAX_LISTS, MAX_USER_LISTS, shown
from gsched.model.priorities import PriorityTerms
from gsched.model.states import JobState
from gsched.protocol import job_rows
from gschedd.core.requests.authorize import Verb, hides, may
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.core.state.state import State
from gschedd.core.state.transient import Lane, WaitingGroup
from gschedd.core.views.arrays import shown_state
from gschedd.core.views.jobs import JobViews
from gschedd.http.filters import read_number
from gschedd.http.kept_slices import KeptSlices, Slice
from gschedd.http.pace import Pace, Turns
from gschedd.plan.snapshot import JobClass, OrderKey
from gschedd.store.reader import Entry, PastJobs, Reader

log = logging.getLogger("gschedd.http")

ROWS_PER_SLICE: Final = 250  # rows that are encoded and sent together
COLUMNS_LEAST: Final = 3  # jobs of one request that are not worth a row for each
JOBS_PER_LOOK: Final = 1000  # jobs that are compared with a filter before others get their turn
LONG_LIST: Final = 20_000  # jobs; of so many unfinished ones a first page can be had by itself
APART_SHARE: Final = 4  # of so many jobs one that does not wait: not all are looked at for these
OWN_SHARE: Final = 16  # of so many jobs one of a user: its place is looked for, not all places
_BLOCK: Final = 1 << 16  # numbers of a set
_NO_ROWS: Final = b'"jobs":[]'
_encoder = msgspec.json.Encoder()

T = TypeVar("T")
ReadPast: TypeAlias = Callable[[Callable[[], PastJobs]], Awaitable[PastJobs]]
Row: TypeAlias = Callable[[Entry], job_rows.JobRow | msgspec.Raw]


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
        self.kept = KeptSlices()

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

    def add(self, numbers: Iterable[int]) -> set[int]:
        """Add numbers, and return those of them that were there."""
        ascending = sorted(numbers)
        known: set[int] = set()
        begin = 0
        while begin < len(ascending):
            block = ascending[begin] // _BLOCK
            end = bisect_left(ascending, (block + 1) * _BLOCK, begin)
            run, there = ascending[begin:end], self._blocks[block]
            if not there.isdisjoint(run):
                known |= there.intersection(run)
            there.update(run)
            begin = end
        return known


def first_of(query: Mapping[str, str]) -> int:
    """Return how many jobs of a long list are wanted; 0: all.

    Raises:
        InvalidRequestError: more than there can be, or a list that has no first page.
    """
    if not (text := query.get("first", "")):
        return 0
    first = read_number(text, "first")
    if not 1 <= first <= ROWS_PER_SLICE or first != int(first):
        raise InvalidRequestError(
            f"first={shown(text)} is not a whole number from 1 to {ROWS_PER_SLICE}",
            hint="leave it out to have all jobs",
        )
    if "ids" in query or not _is_usual(query):
        raise InvalidRequestError(
            "first goes with neither ids, elements, all nor forecast",
            hint="leave it out to have all jobs",
        )
    return int(first)


def _is_usual(query: Mapping[str, str]) -> bool:
    return not any(query.get(name) == "1" for name in ("elements", "all", "forecast"))


class Choice:
    """The unfinished jobs that a list shows, by the filters of ``GET /v1/jobs``.

    Args:
        query: user, states, and whether elements of arrays are listed.
        states: of the query, read; empty: all.
        state: of the head.
        caller: to whom the list goes: in private mode it has no columns.
        kept: what of the columns stays encoded.

    Attributes:
        is_cut: the list has only its first page, of ``first`` jobs.
    """

    def __init__(
        self,
        query: Mapping[str, str],
        states: Collection[JobState],
        state: State,
        caller: Caller,
        kept: KeptSlices,
    ) -> None:
        self._caller = caller
        self._kept = kept
        self._user = query.get("user", "")
        self._elements = query.get("elements", "") == "1"
        is_usual = _is_usual(query)
        is_whole = not caller.is_private or may(caller, Verb.READ_JOB)
        columns = query.get("columns", "")
        self._has_all = columns == "all"
        self._in_columns = columns in ("1", "all") and is_usual and is_whole
        self._first = first_of(query)
        self.is_cut = False
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
        pace, shown = Pace(), _Numbers()
        every, apart = self._every, self._state.apart
        if self._first and len(every) > LONG_LIST:
            return await self._first_page(list(every.values()), pace), []
        shows_waiting = not self._states or JobState.QUEUED in self._states
        if not shows_waiting and len(apart) * APART_SHARE <= len(every):
            some = sorted(apart.values(), key=attrgetter("id"))
            return await self._unshown(some, shown, pace), []
        if not self._in_columns or not shows_waiting or len(every) <= ROWS_PER_SLICE:
            return await self._unshown(list(every.values()), shown, pace), []
        chosen = await self._unshown(await self._apart(pace), shown, pace)
        columns: list[bytes] = []
        async for part, left in self._columns(teller, shown, pace):
            if part:
                columns.append(part)
            chosen += [job for job in left if self.holds(job)]
            await pace.keep()
        # jobs that left their groups before these were read
        chosen += await self._unshown(await self._apart(pace), shown, pace)
        if not columns:  # else whoever reads them sorts all
            chosen.sort(key=attrgetter("id"))
        return chosen, columns

    @property
    def _every(self) -> Mapping[int, Job]:
        """Return the unfinished jobs, of one user where one is wanted."""
        state = self._state
        return state.jobs_of.get(self._user, {}) if self._user else state.jobs

    async def _first_page(self, jobs: Sequence[Job], pace: Pace) -> list[Job]:
        """Return the first jobs that pass the filters; of new ones ids are the highest."""
        chosen: list[Job] = []
        async for part in _parts(jobs, pace):
            chosen += [job for job in part if self.holds(job)]
            if len(chosen) > self._first:
                self.is_cut = True
                break
        return chosen[: self._first]

    async def _apart(self, pace: Pace) -> list[Job]:
        """Return those of them that are in no group."""
        apart, every = self._state.apart, self._every
        if len(apart) <= len(every):
            return list(apart.values())
        found: list[Job] = []
        async for part in _parts(list(every.values()), pace):
            found += [job for job in part if job.id in apart]
        return found

    async def _unshown(self, jobs: Sequence[Job], shown: _Numbers, pace: Pace) -> list[Job]:
        """Return the jobs that pass the filters and were not shown yet; note them as shown."""
        chosen: list[Job] = []
        async for part in _parts(jobs, pace):
            known = shown.add([job.id for job in part])
            chosen += [job for job in part if job.id not in known and self.holds(job)]
        return chosen

    async def _columns(
        self, teller: JobViews, shown: _Numbers, pace: Pace
    ) -> AsyncIterator[tuple[bytes, list[Job]]]:
        """Yield waiting jobs in columns, encoded, piece by piece, and those that need rows."""
        mine = self._every if self._user else None
        self._kept.forget_others(self._state.groups)
        async for group, lane, keys in self._waiting(pace):
            job_class = group.job_class
            in_columns = len(keys) >= COLUMNS_LEAST and teller.has_columns(job_class, lane)
            if in_columns and mine is None and self._state.priorities is None:  # terms change
                where, slices = (job_class, lane, self._has_all), list[Slice]()
                for part, kept in self._kept.parts(where, keys):
                    yield self._slice(teller, shown, (group, lane), part, kept, slices)
                self._kept.keep(where, slices)
                continue
            async for some in _parts(keys, pace):
                part = some if mine is None else [key for key in some if key[1] in mine]
                part = _unknown(part, shown.add([number for _, number in part]))
                columns, left = self._part(teller, group, lane, part if in_columns else [])
                yield _encoded(columns), left if in_columns else self._present(part)

    def _slice(
        self,
        teller: JobViews,
        shown: _Numbers,
        of: tuple[WaitingGroup, Lane],
        part: Sequence[OrderKey],
        kept: Slice | None,
        slices: list[Slice],
    ) -> tuple[bytes, list[Job]]:
        """Return jobs of a lane in columns, encoded, and those that need rows.

        Args:
            part: their places, as they were.
            kept: the same jobs as they were encoded before; None: they were not.
            slices: takes them if they can be kept.
        """
        group, lane = of
        order, job_class = group.lanes.get(lane, []), group.job_class
        begin, count = bisect_left(order, part[0]), len(part)
        known = shown.add(kept.numbers if kept is not None else [number for _, number in part])
        if kept is not None and not known and kept.is_at(order, begin):
            planned = teller.planned(job_class)
            if not planned or planned not in kept.numbers:
                slices.append(kept)
                row, in_order = teller.row_of_class(job_class, self._state.jobs[kept.numbers[0]])
                ahead = list(range(begin, begin + count)) if in_order else []
                return _together(_Now(row=row, ahead=ahead, first=order[0][1]), kept.data), []
        columns, left = self._part(teller, group, lane, _unknown(part, known))
        if columns is None or left or known or len(columns.ids) != count:
            return _encoded(columns), left
        data = _same_of(columns)
        if [number for _, number in order[begin : begin + count]] == columns.ids:
            slices.append(Slice(order[begin : begin + count], columns.ids, data))
        return _together(_now_of(columns), data), left

    def _part(
        self, teller: JobViews, group: WaitingGroup, lane: Lane, part: Sequence[OrderKey]
    ) -> tuple[job_rows.JobColumns | None, list[Job]]:
        """Return jobs of a lane in columns, and those of them that need rows."""
        order = group.lanes.get(lane, [])
        here, ahead = _places(order, part)
        columns, left = None, list[Job]()
        if here:
            first, whole = order[0][1], self._has_all
            columns, left = teller.columns(group.job_class, here, ahead, first=first, whole=whole)
        if len(here) < len(part):
            there = set(here)
            left += self._present([key for key in part if key[1] not in there])
        return columns, left

    def _present(self, places: Sequence[OrderKey]) -> list[Job]:
        """Return the jobs that had these places, as far as they are unfinished, by id."""
        jobs = self._state.jobs
        return [jobs[number] for number in sorted(key[1] for key in places) if number in jobs]

    async def _waiting(
        self, pace: Pace
    ) -> AsyncIterator[tuple[WaitingGroup, Lane, list[OrderKey]]]:
        """Yield the places of waiting jobs lane by lane; with a user of few jobs of these alone."""
        state, every = self._state, self._every
        if len(every) * OWN_SHARE > len(state.jobs):
            for group in list(state.groups.values()):
                for lane in list(group.lanes):
                    yield group, lane, list(group.lanes.get(lane, ()))
            return
        found: defaultdict[tuple[JobClass, Lane], list[OrderKey]] = defaultdict(list)
        async for part in _parts(list(every.values()), pace):
            for job in part:
                if job.state is JobState.QUEUED and job.id not in state.apart:
                    found[state.class_of(job), state.lane_of(job)].append(state.place_of(job))
        for (job_class, lane), keys in found.items():
            if job_class in state.groups:
                yield state.groups[job_class], lane, sorted(keys)


class _Now(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changes of jobs in columns while they wait (`gsched.protocol.job_rows.JobColumns`)."""

    row: job_rows.JobRow
    ahead: list[int] = []
    first: int = 0
    terms: list[PriorityTerms] = []


class _Same(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What does not."""

    ids: list[int]
    names: list[str]
    users: list[str] = []
    submitted_s: list[float] = []
    priorities: list[int] = []
    labels: list[Labels] = []


_SAME: Final = _Same.__struct_fields__


def _now_of(columns: job_rows.JobColumns) -> _Now:
    return _Now(row=columns.row, ahead=columns.ahead, first=columns.first, terms=columns.terms)


def _same_of(columns: job_rows.JobColumns) -> bytes:
    """Return what does not change of jobs in columns, encoded."""
    return _encoder.encode(_Same(**{name: getattr(columns, name) for name in _SAME}))


def _together(now: _Now, same: bytes) -> bytes:
    """Return jobs in columns, encoded."""
    return b"%b,%b" % (_encoder.encode(now)[:-1], same[1:])


def _encoded(columns: job_rows.JobColumns | None) -> bytes:
    """Return jobs in columns, encoded; nothing if there are none."""
    return b"" if columns is None else _encoder.encode(columns)


def _unknown(places: Sequence[OrderKey], known: Collection[int]) -> Sequence[OrderKey]:
    """Return the places of the other jobs."""
    return [key for key in places if key[1] not in known] if known else places


async def _parts(items: Sequence[T], pace: Pace) -> AsyncIterator[Sequence[T]]:
    """Yield some of the items after the other, so that others get their turn."""
    for begin in range(0, len(items), JOBS_PER_LOOK):
        yield items[begin : begin + JOBS_PER_LOOK]
        await pace.keep()


def _places(order: list[OrderKey], keys: Sequence[OrderKey]) -> tuple[list[int], Sequence[int]]:
    """Return the jobs that are in an order still, and how many jobs are ahead of each."""
    if not keys:
        return [], []
    first = bisect_left(order, keys[0])
    if order[first : first + len(keys)] == keys:
        return [number for _, number in keys], range(first, first + len(keys))
    here, ahead = list[int](), list[int]()
    for key in keys:
        place = bisect_left(order, key)
        if order[place : place + 1] == [key]:
            here.append(key[1])
            ahead.append(place)
    return here, ahead


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
                if pace.is_due:
                    await pace.rest()
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


def _rows(rows: Sequence[job_rows.JobRow | msgspec.Raw]) -> bytes:
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
