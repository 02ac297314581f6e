"""The queries' side of the HTTP API: routes that change nothing.

What is shown is durable: a query waits for the commit that is under way.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar, cast

from aiohttp import web
from msgspec import UNSET, Raw, structs

from gsched.clock import Clock
from gsched.errors import (
    InvalidRequestError,
    NotPermittedError,
    StorageError,
    UnknownJobError,
)
from gsched.model.ids import (
    INDICES,
    array_of,
    element_number,
    index_of,
    own_job_number,
    short_job_id,
)
from gsched.model.limits import (
    MAX_HISTORY_ROWS,
    MAX_STORIES,
)
from gsched.model.states import JobState, NodeState
from gsched.protocol import api, job_rows, node_rows
from gsched.protocol.stories import JobStories
from gschedd.core.head import Head
from gschedd.core.requests.authorize import Verb, check_shown, may
from gschedd.core.requests.projects import coordinates
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.core.views.arrays import unstarted_row
from gschedd.core.views.jobs import JobViews
from gschedd.core.views.lines import JobLines
from gschedd.core.views.nodes import node_row
from gschedd.engine.watches import Watch
from gschedd.http.answers import answer, answer_in_pieces, error_body
from gschedd.http.bodies import Bodies
from gschedd.http.callers import Callers
from gschedd.http.elements import Past, found_job, found_jobs, in_state, to_read, wanted_of
from gschedd.http.filters import COMMA, history_filter, own_history, read_number, states_of
from gschedd.http.lists import ROWS_PER_SLICE, Choice, Lists, first_of, in_slices, send
from gschedd.http.pace import Pace
from gschedd.http.shares import ShareQueries
from gschedd.http.shown import ShownHead, StartForecasts
from gschedd.http.stories import Recorded, all_at_one_moment, at_one_moment, present, recorded
from gschedd.plan.forecast import Forecast
from gschedd.store.reader import Entry, HistoryFilter, Reader
from gschedd.store.unstarted import Unstarted

T = TypeVar("T")

IDS_PER_READ = 100  # jobs read before another long read gets its turn
MAX_WAIT_S = 300.0


class Queries:
    """Handlers of all GET routes."""

    def __init__(  # noqa: PLR0913 - two readers, one for what takes long
        self,
        *,
        engine: ShownHead,
        callers: Callers,
        reader: Reader,
        long_reader: Reader,
        clock: Clock,
        bodies: Bodies,
        forecasts: StartForecasts,
        status: Callable[[], api.StatusReply],
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._reader = reader
        self._clock = clock
        self._bodies = bodies
        self._forecasts = forecasts
        self._status = status
        self._long_reader = long_reader
        self._lists = Lists(reader=long_reader, read=self._read_long)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._long_thread = ThreadPoolExecutor(1, thread_name_prefix="history")

    @property
    def _head(self) -> Head:
        return self._engine.head

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/health", self.health),
            web.get("/v1/status", self.status),
            web.get("/v1/jobs", self.jobs),
            web.get("/v1/jobs/{id}", self.story),
            web.get("/v1/stories", self.stories),
            web.get("/v1/jobs/{id}/wait", self.wait),
            web.get("/v1/nodes", self.nodes),
            web.get("/v1/history", self.history),
            *ShareQueries(self._engine, self._callers, self._clock).routes(),
        ]

    async def _read(self, work: Callable[[], T]) -> T:
        """Run a read of the database in the reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _read_long(self, work: Callable[[], T]) -> T:
        """Run a read that takes long in a thread of its own, so that no short one waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._long_thread, work)

    def _teller(self, viewer: Caller | None = None) -> JobViews:
        return JobViews(self._head, now_s=self._clock.wall_s(), viewer=viewer)

    async def health(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/health``."""
        self._callers.of(request)
        return answer(api.Health(ok=True))

    async def status(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/status``."""
        self._callers.of(request)
        return answer(self._status())

    # --- jobs ---

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/jobs``: unfinished jobs, or those named by ``ids``, in the order of ids."""
        caller = self._callers.of(request)
        query = request.query
        first_of(query)
        if "ids" in query:
            warning = await self._engine.shown()
            ids = [text for text in COMMA.split(query["ids"]) if text]
            forecast = query.get("forecast", "") == "1"
            return await self._jobs_by_id(ids, warning, caller, forecast=forecast)
        states = states_of(query.get("state", ""))
        choice = Choice(query, states, self._head.state, caller, self._lists.kept)
        chosen, columns = await choice.jobs(self._teller(caller))
        warning = await self._engine.shown()
        if len(chosen) <= ROWS_PER_SLICE and not columns:  # all of them are shown as they are now
            chosen = [
                job for job in chosen if job.id in self._head.state.jobs and choice.holds(job)
            ]
        if query.get("all", "") == "1" and (not states or JobState.DONE in states):
            return await self._all_jobs(request, chosen, warning, caller)
        is_long = len(chosen) > ROWS_PER_SLICE or bool(columns)
        return await self._send(
            request,
            in_slices(chosen),
            chosen,
            warning,
            caller,
            is_long=is_long,
            columns=columns,
            is_cut=choice.is_cut,
        )

    async def _all_jobs(
        self, request: web.Request, chosen: Sequence[Job], warning: str, caller: Caller
    ) -> web.StreamResponse:
        """Answer with jobs of the database, and the unfinished ones that were chosen."""
        limit = MAX_HISTORY_ROWS
        async with self._lists.turn(caller.uid, rows_max=limit):
            named = HistoryFilter(user=request.query.get("user", ""), limit=limit)
            wanted = own_history(named, caller)
            index = await self._read_long(lambda: self._long_reader.past_index(wanted))
            # arrays tell of their elements that were cancelled together
            arrays = {number for number, each in index.known.items() if isinstance(each, Unstarted)}
            known = [each for each in index.known.values() if isinstance(each, Job)]
            past = (number for number in index.numbers if number not in arrays)
            numbers = array("q", sorted({*past, *(job.id for job in chosen)}))
            live = [*known, *chosen]
            slices = self._lists.entries(numbers, {job.id: job for job in live}, array("q"))
            is_long = len(numbers) > ROWS_PER_SLICE
            return await self._send(request, slices, live, warning, caller, is_long=is_long)

    async def _send(  # noqa: PLR0913 - what a list is made of
        self,
        request: web.Request,
        slices: AsyncIterator[Sequence[Entry]],
        live: Sequence[Job],
        warning: str,
        caller: Caller,
        *,
        is_long: bool,
        columns: Sequence[bytes] = (),
        is_cut: bool = False,
    ) -> web.StreamResponse:
        """Answer with the jobs of some slices; ``live`` are those that need not be read."""
        starts: Mapping[int, Forecast] = {}
        if request.query.get("forecast", "") == "1":
            starts = await self._starts_of(live, caller.uid)
            await self._engine.shown()
        teller = self._teller(caller)
        lines = JobLines(teller, self._head.state, keeps=not caller.is_private)
        row = partial(_line, lines, teller, starts)

        now_s, server = self._clock.wall_s(), self._head.settings.server
        reply = job_rows.JobList(
            server=server, now_s=now_s, jobs=(), warning=warning, is_cut=is_cut or UNSET
        )
        return await send(request, lambda: reply, slices, row, is_long=is_long, columns=columns)

    async def _starts_of(self, jobs: Iterable[Job], uid: int) -> Mapping[int, Forecast]:
        """Return when those of some jobs start that wait."""
        teller = self._teller()
        waiting = [job.id for job in jobs if teller.lacks_start(job)]
        return await self._forecasts.starts_of(waiting, uid=uid)

    async def _jobs_by_id(
        self, texts: list[str], warning: str, caller: Caller, *, forecast: bool
    ) -> web.StreamResponse:
        texts, uid = list(dict.fromkeys(texts)), caller.uid
        if len(texts) <= IDS_PER_READ:
            live, wanted = self._wanted(texts)
            past = {**live, **await self._read_jobs(wanted)}
            starts: Mapping[int, Forecast] = {}
            if forecast:
                server, state = self._head.settings.server, self._head.state
                starts = await self._starts_of(
                    found_jobs(texts, state, past, server)[0].values(), uid
                )
                await self._engine.shown()
            return await self._chosen_rows(texts, past, warning, self._teller(caller), starts)
        async with self._bodies.brief(uid):
            live, wanted = self._wanted(texts)
        # Without a turn: others need not wait for the disk.
        past = {**live, **await self._read_jobs(wanted)}
        async with self._bodies.brief(uid) as pace:
            return await self._chosen_rows(texts, past, warning, self._teller(caller), {}, pace)

    async def _chosen_rows(
        self,
        texts: Sequence[str],
        past: Past,
        warning: str,
        teller: JobViews,
        starts: Mapping[int, Forecast],
        pace: Pace | None = None,
    ) -> web.Response:
        pace = pace or Pace()
        server, state = self._head.settings.server, self._head.state
        rows: list[job_rows.JobRow] = []
        errors: dict[str, api.ErrorBody] = {}
        for text in texts:
            await pace.keep()
            try:
                rows.append(_row(teller, starts, found_job(text, state, past, server)))
            except (UnknownJobError, StorageError) as error:
                errors[text] = error_body(error)
        return answer(
            job_rows.JobList(
                server=self._head.settings.server,
                now_s=self._clock.wall_s(),
                jobs=tuple(rows),
                errors=errors,
                warning=warning,
            )
        )

    def _wanted(self, texts: Sequence[str]) -> tuple[dict[int, Job], list[int]]:
        return wanted_of(texts, self._head.state, self._head.settings.server)

    async def _read_jobs(self, wanted: Sequence[int]) -> Past:
        """Return those jobs that the database knows, or why one cannot be read."""
        found: dict[int, Job | StorageError] = {}

        def read(part: Sequence[int]) -> None:
            for number in part:
                try:
                    job = self._long_reader.meant(number)
                    if job is not None:
                        found[number] = job
                except StorageError as error:
                    found[number] = error

        for begin in range(0, len(wanted), IDS_PER_READ):
            await self._read_long(partial(read, wanted[begin : begin + IDS_PER_READ]))
        return found

    def _all_meant(self, numbers: Sequence[int]) -> list[tuple[int, Job | None]]:
        return [(number, self._reader.meant(number)) for number in numbers]

    async def find(self, text: str) -> Job:
        """Return a job, done or not.

        Raises:
            UnknownJobError: the id is unknown.
        """
        server, state = self._head.settings.server, self._head.state
        number = own_job_number(text, server=server)
        live, wanted = in_state(number, state), to_read(number, state)
        read = await self._read(partial(self._all_meant, wanted)) if wanted else []
        past = {number: job for number, job in read if job is not None}
        return found_job(text, state, {**live, **past}, server)

    async def story(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/jobs/ID``."""
        caller = self._callers.of(request)
        await self._engine.shown()
        job = await self.find(request.match_info["id"])
        self._check_shown(caller, job)
        start: Forecast | None = None
        if self._teller().lacks_start(job):
            start = await self._forecasts.start_of(job.id, uid=caller.uid)
        return answer(await self._story(request.match_info["id"], caller, start))

    async def stories(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/stories?ids=ID,ID``: the details of many jobs, with one read for all.

        With ``past=0`` only what the head's state has: neither earlier attempts nor events.
        """
        caller = self._callers.of(request)
        texts = list(dict.fromkeys(t for t in COMMA.split(request.query.get("ids", "")) if t))
        if len(texts) > MAX_STORIES:
            raise InvalidRequestError(
                f"{len(texts)} jobs with all details: {MAX_STORIES} in one request are the limit",
                hint="ask for fewer at a time",
            )
        await self._engine.shown()
        live, wanted = self._wanted(texts)
        done = {**live, **await self._read_jobs(wanted)}
        find = partial(found_jobs, texts, self._head.state, done, self._head.settings.server)
        starts: Mapping[int, Forecast] = {}
        if request.query.get("forecast", "") == "1":
            starts = await self._starts_of(find()[0].values(), caller.uid)
        if request.query.get("past", "") == "0":
            await self._engine.shown()
            past = {job.id: present(job) for job in find()[0].values()}
        else:
            read = partial(_all_recorded, self._long_reader, caller)
            past = await all_at_one_moment(
                self._engine,
                lambda: find()[0],
                lambda jobs: self._read_long(partial(read, jobs)),
            )
        jobs, errors = find()
        for number, job in list(jobs.items()):
            try:
                self._check_shown(caller, job)
            except NotPermittedError as error:
                errors[short_job_id(number)] = error
                del jobs[number]
        found = [
            self._seen_by(caller, job, past.get(job.id, Recorded()), starts.get(job.id))
            for job in jobs.values()
        ]
        return answer(
            JobStories(
                server=self._head.settings.server,
                now_s=self._clock.wall_s(),
                jobs=tuple(found),
                errors={text: error_body(error) for text, error in errors.items()},
            )
        )

    def _check_shown(self, caller: Caller, job: Job) -> None:
        settings = self._head.settings
        is_coordinator = coordinates(caller.user, job.spec.account, settings)
        check_shown(caller, job, coordinates=is_coordinator)

    async def _story(
        self, text: str, caller: Caller, start: Forecast | None = None
    ) -> job_rows.JobStory:
        """Return all that is known of a job."""
        job, past = await at_one_moment(
            self._engine,
            lambda: self.find(text),
            lambda job: self._read(partial(_recorded, self._reader, caller, job)),
        )
        return self._seen_by(caller, job, past, start)

    def _seen_by(
        self,
        caller: Caller,
        job: Job,
        past: Recorded,
        start: Forecast | None,
    ) -> job_rows.JobStory:
        """Return all that is known; arguments may hold secrets and are the owner's business."""
        story = self._teller(caller).story(
            job,
            attempts=past.attempts,
            events=past.events,
            now_s=self._clock.wall_s(),
            start=start,
        )
        if may(caller, Verb.READ_DETAILS, job.spec.owner):
            return structs.replace(story, origin=dict(past.origin))
        return structs.replace(story, arguments=())

    async def wait(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/jobs/ID/wait``: answers when the job is done, or the time is over."""
        caller = self._callers.of(request)
        limit_s = min(read_number(request.query.get("timeout_s", "30"), "timeout_s"), MAX_WAIT_S)
        text, end_s = request.match_info["id"], self._clock.monotonic_s() + limit_s
        with ExitStack() as stack:
            watch: Watch | None = None
            while True:
                if watch is not None:
                    watch.ended.clear()
                await self._engine.settled()
                job = await self.find(text)
                self._check_shown(caller, job)
                left_s = end_s - self._clock.monotonic_s()
                if job.state is JobState.DONE or left_s <= 0:
                    break
                if watch is not None:
                    await self._engine.ended(watch, left_s)
                else:  # and look again: it may have ended before it was watched
                    watches = self._engine.watches.of(*{job.id, array_of(job.id)})
                    watch = stack.enter_context(watches)
        return answer(await self._story(text, caller))

    # --- nodes, history ---

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/nodes``."""
        self._callers.of(request)
        warning = await self._engine.shown()
        state, now_s = self._head.state, self._clock.wall_s()

        def reply(rows: Sequence[Raw]) -> node_rows.NodeList:
            return node_rows.NodeList(
                server=self._head.settings.server,
                now_s=now_s,
                nodes=cast("tuple[node_rows.NodeRow, ...]", tuple(rows)),
                warning=warning,
            )

        rows = (
            node_row(node, state, now_s)
            for name in sorted(state.nodes)
            if (node := state.nodes.get(name)) is not None  # it may be removed meanwhile
        )
        return await answer_in_pieces(rows, reply)

    async def history(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/history``."""
        caller = self._callers.of(request)
        wanted = own_history(
            history_filter(request.query, server=self._head.settings.server), caller
        )
        async with self._lists.turn(caller.uid, rows_max=wanted.limit):
            await self._engine.shown()
            if wanted.ids:
                past = await self._read_jobs(wanted.ids)
                jobs_meant = [(number, past.get(number)) for number in wanted.ids]
                ids = (job.id if isinstance(job, Job) else number for number, job in jobs_meant)
                wanted = structs.replace(wanted, ids=tuple(ids))
            index = await self._read_long(partial(self._long_reader.past_index, wanted))
            numbers, totals = index.numbers, index.totals
            now_s, damaged = self._clock.wall_s(), array("q", totals.damaged)

            def reply() -> job_rows.HistoryReply:
                return job_rows.HistoryReply(
                    server=self._head.settings.server,
                    now_s=now_s,
                    jobs=(),
                    total_jobs=totals.jobs,
                    total_cpu_s=totals.cpu_s,
                    total_wall_s=totals.wall_s,
                    total_gpu_s=totals.gpu_s,
                    total_failed=totals.failed,
                    total_cancelled=totals.cancelled,
                    more=totals.more,
                    damaged=tuple(damaged),
                )

            slices = self._lists.entries(numbers, index.known, damaged)
            row = partial(_row, self._teller(caller), {})
            return await send(request, reply, slices, row, is_long=len(numbers) > ROWS_PER_SLICE)

    async def was_there(self, number: int) -> bool:
        """Return whether the database knows the job."""
        return bool(await self._read(lambda: self._reader.jobs([number])))

    async def known_of(self, numbers: Collection[int]) -> Collection[int]:
        """Return those jobs that the database knows, done or not."""
        known: set[int] = set()
        wanted = sorted(numbers)
        for begin in range(0, len(wanted), IDS_PER_READ):
            part = wanted[begin : begin + IDS_PER_READ]
            known.update(await self._read(partial(self._reader.known, part)))
            short = [number for number in part if number not in known]
            meant = await self._read(partial(self._all_meant, short))
            known.update(number for number, job in meant if job is not None)
        return known

    async def ended_well(self, numbers: Collection[int]) -> Mapping[int, bool]:
        """Return of those jobs that the database knows as done whether they succeeded."""
        found: dict[int, bool] = {}
        wanted = sorted(numbers)
        for begin in range(0, len(wanted), IDS_PER_READ):
            part = wanted[begin : begin + IDS_PER_READ]
            for number, job in await self._read(partial(self._all_meant, part)):
                if job is not None and job.outcome is not None and job.state is JobState.DONE:
                    found[number] = found[job.id] = job.outcome.succeeded
        return found

    async def failed_elements(self, array: int) -> list[int]:
        """Return the indices of the elements of an array that have failed, ascending."""
        first, last = element_number(array, 0), element_number(array, INDICES - 1)
        found = await self._read_long(partial(self._long_reader.failed, first, last))
        return [index_of(number) for number in found]

    async def blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """Return scripts and environments by their digests.

        Raises:
            StorageError: one is not there, or damaged.
        """
        return {each: await self._read(partial(self._reader.blob, each)) for each in digests}

    async def jobs_of_keys(self, uid: int, keys: Sequence[str]) -> Mapping[str, int]:
        """Return the jobs of a user's client keys that the database knows."""
        found: dict[str, int] = {}
        for begin in range(0, len(keys), IDS_PER_READ):
            part = keys[begin : begin + IDS_PER_READ]
            found.update(await self._read(partial(self._reader.jobs_of_keys, uid, part)))
        return found

    def close(self) -> None:
        """Wait for the readers' threads and close their connections."""
        for thread in (self._thread, self._long_thread):
            thread.shutdown(wait=True)
        self._reader.close()
        self._long_reader.close()


def _line(
    lines: JobLines, teller: JobViews, starts: Mapping[int, Forecast], entry: Entry
) -> job_rows.JobRow | Raw:
    """Return the line of a job; of one that runs it may be encoded."""
    if isinstance(entry, Unstarted) or entry.id in starts:
        return _row(teller, starts, entry)
    return lines.line(entry)


def _row(teller: JobViews, starts: Mapping[int, Forecast], entry: Entry) -> job_rows.JobRow:
    if isinstance(entry, Unstarted):
        return unstarted_row(teller.row(entry.job), entry.elements)
    start = starts.get(entry.id)
    return teller.row(entry) if start is None else teller.row_with_start(entry, start)


def up_nodes(head: Head) -> int:
    """Return how many nodes are connected."""
    return sum(node.state is NodeState.UP for node in head.state.nodes.values())


def _recorded(reader: Reader, caller: Caller, job: Job) -> Recorded:
    """Return what the database has of a job, as far as the caller may know it."""
    return recorded(reader, job, with_origin=may(caller, Verb.READ_DETAILS, job.spec.owner))


def _all_recorded(reader: Reader, caller: Caller, jobs: Sequence[Job]) -> dict[int, Recorded]:
    return {job.id: _recorded(reader, caller, job) for job in jobs}
