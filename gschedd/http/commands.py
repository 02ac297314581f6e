"""The commands' side of the HTTP API: routes that change something."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from aiohttp import web

from gsched.clock import Clock
from gsched.errors import (
    BadStateError,
    GschedError,
    InvalidRequestError,
    TryAgainError,
    UnknownJobError,
    UnknownNodeError,
)
from gsched.failpoint import failpoint
from gsched.model import limits
from gsched.model.ids import array_of, format_array_id, format_job_id, own_job, short_job_id
from gsched.model.limits import MAX_JOBS_PER_REQUEST
from gsched.model.states import STATED_HOLDS
from gsched.protocol import actions as a
from gsched.protocol import api, recover, submissions
from gschedd.core.forecast.deadline import guarantee_of
from gschedd.core.head import Head
from gschedd.core.requests import commands as c
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.submit import Submission, after, known_submission, prepare
from gschedd.core.state.settings import Caller
from gschedd.core.state.step import Step
from gschedd.engine.inbox import Action
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.http.action_words import action_result, action_words, ended_by, node_words
from gschedd.http.answers import answer, error_body
from gschedd.http.audit import note_results, note_verb
from gschedd.http.bodies import SMALL_BYTES, Bodies, read_body, read_submission
from gschedd.http.callers import Callers
from gschedd.http.code import CodeSnapshots
from gschedd.http.contents import Content, TextQuota, brings_same, content_of, submit_command
from gschedd.http.elements import meant
from gschedd.http.forecasts import Forecasts, with_outlook, with_start
from gschedd.http.launches import BlobCache
from gschedd.http.members import Members
from gschedd.http.pace import Pace
from gschedd.http.past import past_of
from gschedd.http.queries import Queries
from gschedd.http.reservations import Reservations
from gschedd.http.safemode import SafeMode
from gschedd.plan.forecast import Forecast
from gschedd.store.sqlite import Store

_TEXTS: Final = {kind: limits.texts_of(kind) for kind in (*a.JOB_ACTIONS, *a.NODE_ACTIONS.values())}

Item = TypeVar("Item")

SLICE: Final = 50  # jobs of a request that are worked on before others get their turn
FEW: Final = 10  # jobs of a request; one with more takes its user's turn
PLAN_WAIT_S = 5.0  # for the cycle after a submission: an answer without a plan is better than none


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What commands work with.

    Attributes:
        queries: what the database knows of jobs, done or not.
        members: which hosts have joined.
        safe_mode: what operators see and do where the database may be an old copy.
        forecasts: what would become of jobs.
        expect_client: takes interactive jobs, whose clients are about to wait for them.
        code: the code snapshots of jobs.
        texts: how much of scripts and environments each user may have.
    """

    engine: Engine
    callers: Callers
    bodies: Bodies
    blobs: BlobCache
    space: DiskSpace
    store: Store
    clock: Clock
    queries: Queries
    members: Members
    safe_mode: SafeMode
    forecasts: Forecasts
    expect_client: Callable[[int], None]
    code: CodeSnapshots
    texts: TextQuota


_Received = tuple[c.Submit, Content]


class _Item:
    """One id of an action, as it was written, and what became of it.

    ``job`` is the number that it stands for; 0: it is no id of a job of this head.
    """

    __slots__ = ("command", "error", "job", "step", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.job = 0
        self.command: c.AnyCommand | None = None
        self.error: GschedError | None = None
        self.step = Step()


class Commands:
    """Handlers of all POST routes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._callers = parts.callers
        self._bodies = parts.bodies
        self._judging = asyncio.Lock()

    @property
    def _head(self) -> Head:
        return self._engine.head

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/v1/jobs", self.submit),
            web.post("/v1/jobs/actions", self.act),
            web.post("/v1/nodes/actions", self.act_on_nodes),
            web.post("/v1/recover", self.recover),
            web.get("/v1/recover", self.recovery),
            *Reservations(self._engine, self._callers, self._bodies, self._parts.clock).routes(),
        ]

    # --- submit ---

    async def submit(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs``: the ids are sent after the jobs are durable."""
        caller = self._callers.of(request)
        submission = await read_submission(request, self._bodies)
        if submission.dry_run:
            return await self._try_out(submission.jobs, caller)
        forecast = any(job.reject_if_late for job in submission.jobs)
        async with self._bodies.turn_if(
            is_large(request, len(submission.jobs)), caller.uid
        ) as pace:
            for job in submission.jobs:
                await self._parts.code.check(caller.uid, job.snapshot)
            known, pairs = await self._received(submission.jobs, caller, pace)
            steps = [] if forecast else await self._queue(pairs, known)
        if forecast:  # which may take long; others get the turn meanwhile
            steps = await self._queue_unless_late(pairs, known)
        for job, step in zip(submission.jobs, steps, strict=True):
            if job.interactive is not None and step.job:
                self._parts.expect_client(step.job)
        results = await self._results(steps, caller)
        named = (
            (short_job_id(each.id) if each.id else job.name, each.error)
            for job, each in zip(submission.jobs, results, strict=True)
        )
        note_results(request, "submit", named)
        response = answer(self._reply(results))
        await response.prepare(request)
        await response.write_eof()
        failpoint("head.submit.after_ack")
        return response

    async def _received(
        self, jobs: Sequence[submissions.SubmitJob], caller: Caller, pace: Pace
    ) -> tuple[Mapping[str, int], Sequence[_Received]]:
        """Return which jobs are known, and all of them with what they bring."""
        self._parts.space.check()
        known = await self._known(jobs, caller, pace)
        texts = [text for job in jobs for text in job.depends]
        past = await past_of(texts, self._head.state, self._parts.queries.ended_well)
        loop = asyncio.get_running_loop()
        contents: list[Content] = []
        pace.begin()
        for number, job in enumerate(jobs):
            if number and brings_same(job, jobs[number - 1]):
                contents.append(contents[-1])
            elif len(job.script) + len(job.lines) > SMALL_BYTES:
                contents.append(await loop.run_in_executor(None, content_of, job))
            else:
                contents.append(content_of(job))
            await pace.keep()
        new = (each for job, each in zip(jobs, contents, strict=True) if job.key not in known)
        await self._parts.texts.admit(caller.uid, new)
        pairs = zip(jobs, contents, strict=True)
        return known, [(submit_command(job, each, caller, past), each) for job, each in pairs]

    async def _queue(self, pairs: Sequence[_Received], known: Mapping[str, int]) -> list[Step]:
        """Queue jobs, some at a time, so that nobody waits for all of a large request."""

        def queue(part: Sequence[_Received], now_s: float) -> list[Step]:
            steps: list[Step] = []
            before: tuple[c.Submit, Step] | None = None  # that was accepted
            for command, content in part:
                key = command.submitted.key
                if key in known:
                    steps.append(Step(job=known[key]))
                    continue
                step = self._submit(after(command, before), content, now_s)
                before = (command, step) if step.facts else before
                steps.append(step)
            return steps

        return await self._in_slices(pairs, partial(self._in_engine, queue))

    async def _queue_unless_late(
        self, pairs: Sequence[_Received], known: Mapping[str, int]
    ) -> list[Step]:
        """Queue jobs one by one, each judged with those before it: else all would be guaranteed.

        No other job is judged between the forecast for one and its submission, whoever has sent it.
        """

        async def queue(part: Sequence[_Received]) -> Sequence[Step]:
            ((command, content),) = part
            if command.submitted.key in known:
                return [Step(job=known[command.submitted.key])]
            if not command.submitted.reject_if_late:
                return await self._ask(partial(submit, command, content, None))
            async with self._judging:
                try:
                    outlook = await self._outlook(command)
                except GschedError as error:
                    return [Step(error=error)]
                return await self._ask(partial(submit, command, content, outlook))

        def submit(
            command: c.Submit, content: Content, outlook: Forecast | None, now_s: float
        ) -> list[Step]:
            return [self._submit(command, content, now_s, outlook)]

        return await self._in_slices(pairs, queue, size=1)

    async def _outlook(self, command: c.Submit) -> Forecast | None:
        """Return what is expected of a job, were it submitted now; None: it has been.

        Raises:
            GschedError: it would be refused in any case.
        """
        uid = command.caller.uid
        if known_submission(self._head.state, uid, command.submitted.key) is not None:
            return None
        return await self._parts.forecasts.outlook(self._prepared(command).spec, uid=uid)

    async def _ask(self, action: Action) -> Sequence[Step]:
        return await self._engine.ask(action, is_request=True)

    async def _in_engine(
        self, work: Callable[[Sequence[Item], float], list[Step]], part: Sequence[Item]
    ) -> Sequence[Step]:
        return await self._ask(partial(work, part))

    async def _in_slices(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Step]]],
        *,
        size: int = SLICE,
    ) -> list[Step]:
        """Have work done for all items, slice by slice: others get their turn between two.

        What was done for earlier slices is durable; if a later one cannot be, each item of the rest
        gets that as its error.
        """
        steps: list[Step] = []
        for begin in range(0, len(items), size):
            try:
                steps.extend(await work(items[begin : begin + size]))
            except TryAgainError as error:
                if not steps:
                    raise
                steps.extend(Step(error=error) for _ in items[begin:])
                break
        return steps

    async def _try_out(
        self, jobs: Sequence[submissions.SubmitJob], caller: Caller
    ) -> web.StreamResponse:
        """Answer a dry run: jobs one by one, as each asks the policy up to some hundred times."""
        pace = Pace()
        results: list[submissions.SubmitResult] = []
        for job in jobs:
            results.append(await self._dry_run(job, caller))
            await pace.rest()
        return answer(self._reply(results))

    async def _known(
        self, jobs: Sequence[submissions.SubmitJob], caller: Caller, pace: Pace
    ) -> Mapping[str, int]:
        """Return jobs of earlier tries, also those that memory has forgotten."""
        known: dict[str, int] = {}
        forgotten: list[str] = []
        for job in jobs:
            number = known_submission(self._head.state, caller.uid, job.key)
            if number is not None:
                known[job.key] = number
            elif job.key:
                forgotten.append(job.key)
            await pace.keep()
        if forgotten:
            known.update(await self._parts.queries.jobs_of_keys(caller.uid, forgotten))
        return known

    def _submit(
        self, command: c.Submit, content: Content, now_s: float, outlook: Forecast | None = None
    ) -> Step:
        """Queue one job; what it brings is kept only if it is taken."""
        step = self._head.command(command, now_s, outlook)
        if step.facts:
            for blob in content.blobs:
                if blob.digest:
                    self._engine.keep_blob(blob.digest, blob.data, command.caller.uid)
                    self._parts.blobs.put(blob.digest, blob.data)
        return step

    def _prepared(self, command: c.Submit) -> Submission:
        """Return what a job would be; raise why it would be refused."""
        return prepare(
            command,
            state=self._head.state,
            settings=self._head.settings,
            intern=lambda request: request,
            now_s=self._parts.clock.wall_s(),
        )

    async def _dry_run(
        self, job: submissions.SubmitJob, caller: Caller
    ) -> submissions.SubmitResult:
        try:
            known = known_submission(self._head.state, caller.uid, job.key)
            if known is not None:
                return submissions.SubmitResult(id=known)
            past = await past_of(job.depends, self._head.state, self._parts.queries.ended_well)
            command = c.Submit(caller=caller, submitted=job, digests=("", ""), past=past)
            submission = self._prepared(command)
            outlook = await self._parts.forecasts.outlook(submission.spec, uid=caller.uid)
            if job.reject_if_late:
                now_s = self._parts.clock.wall_s()
                guarantee_of(self._head.state.next_job, submission.spec, outlook, now_s=now_s)
        except GschedError as error:
            return submissions.SubmitResult(error=error_body(error))
        result = with_start(submissions.SubmitResult(warnings=submission.warnings), outlook)
        return with_outlook(result, submission.spec, outlook)

    async def _results(
        self, steps: Sequence[Step], caller: Caller
    ) -> list[submissions.SubmitResult]:
        """Return the answer for each job; for training jobs after the next cycle."""
        head = self._head
        if any(step.job in head.state.training_jobs for step in steps):
            await self._engine.planned(PLAN_WAIT_S)
        numbers = [step.job for step in steps if step.job in head.state.training_jobs]
        outlooks = await self._parts.forecasts.outlooks(numbers, uid=caller.uid)
        return [
            with_outlook(_result(step), head.state.training_jobs[step.job].spec, outlooks[step.job])
            if step.job in outlooks and step.job in head.state.training_jobs
            else _result(step)
            for step in steps
        ]

    def _reply(self, results: list[submissions.SubmitResult]) -> submissions.SubmitReply:
        return submissions.SubmitReply(server=self._head.settings.server, results=tuple(results))

    # --- actions on jobs ---

    async def act(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs/actions``: each id by itself, in order."""
        caller = self._callers.of(request)
        action = await read_body(request, self._bodies, a.JOB_ACTION)
        _check_action(action)
        await self._engine.settled()
        ids = await self._expand(action.ids, caller)
        past: Mapping[int, bool] = {}
        if isinstance(action, a.AlterJob) and action.alteration.depends:
            past = await past_of(
                action.alteration.depends, self._head.state, self._parts.queries.ended_well
            )
        async with self._bodies.turn_if(len(ids) > FEW, caller.uid) as pace:
            results = await self._act(action, ids, caller, pace, past=past)
        if not action.dry_run:
            done = ((each.id, each.error) for each in results)
            note_results(request, action.action, done)
        return answer(api.ActionReply(results=results))

    async def _act(
        self,
        action: a.AnyJobAction,
        ids: Sequence[str],
        caller: Caller,
        pace: Pace,
        *,
        past: Mapping[int, bool],
    ) -> tuple[api.ActionResult, ...]:
        items: list[_Item] = []
        for text in ids:
            items.append(self._parse(text, action, caller, past))
            await pace.keep()
        commands = [each.command for each in items if each.command is not None]
        steps = iter(await self._carry_out(commands, pace, dry_run=action.dry_run))
        for each in items:
            each.step = Step(error=each.error) if each.command is None else next(steps)
        ended = ended_by(action, (each.step for each in items))
        gone = await self._parts.queries.known_of(
            {each.job for each in items if isinstance(each.step.error, UnknownJobError)} - {0}
        )
        pace.begin()
        results: list[api.ActionResult] = []
        for each in items:
            failure = None if each.job in ended else self._explain(each, gone)
            words = action_words(action, each.step, each.job, ended, dry_run=action.dry_run)
            note = self._note(action, each.job) if failure is None else ""
            done = None if action.dry_run else each.step
            results.append(action_result(each.text, failure, words, note, done))
            await pace.keep()
        return tuple(results)

    async def _carry_out(
        self, commands: Sequence[c.AnyCommand], pace: Pace, *, dry_run: bool
    ) -> Sequence[Step]:
        head = self._head
        if not dry_run:

            def act(part: Sequence[c.AnyCommand], now_s: float) -> list[Step]:
                return [head.command(each, now_s) for each in part]

            return await self._in_slices(commands, partial(self._in_engine, act))
        steps: list[Step] = []
        now_s = self._parts.clock.wall_s()
        for command in commands:
            steps.append(head.preview(command, now_s))
            await pace.keep()
        return steps

    def _explain(self, item: "_Item", past: Collection[int]) -> GschedError | None:
        """Say of a job that is not among the unfinished whether it is done, or never was."""
        error = item.step.error
        if not isinstance(error, UnknownJobError) or item.job not in past:
            return error
        if item.job in self._head.state.jobs:
            return error  # an array without these elements
        server = self._head.settings.server
        whole = "[]" in item.text.partition(".")[0]
        name = (format_array_id if whole else format_job_id)(item.job, server)
        shown = f"{item.job}[]" if whole else short_job_id(item.job)
        return BadStateError(f"job {name} has already finished", hint=f"see ghist {shown}")

    def _note(self, action: a.AnyJobAction, number: int) -> str:
        """Return what the user should know of an action that was carried out, empty if nothing.

        A hold keeps a job from starting, so it does nothing to one that runs, as in PBS.
        """
        if not isinstance(action, a.HoldJob):
            return ""
        job = self._head.state.jobs.get(number)
        if job is None or job.attempt is None:
            return ""
        name = format_job_id(job.id, self._head.settings.server)
        return (
            f"job {name} is {job.state} and keeps running; the hold takes effect if it is requeued"
        )

    async def _expand(self, ids: tuple[str, ...], caller: Caller) -> list[str]:
        """Replace ``all`` by the ids of all of the caller's jobs."""
        server = self._head.settings.server
        pace = Pace()
        expanded: list[str] = []
        every = False
        for text in ids:
            if text.lower() != "all":
                expanded.append(text)
                continue
            if every:
                continue
            every = True
            for job in list(self._head.state.jobs.values()):
                if caller.owns(job.spec.owner) and array_of(job.id) not in self._head.state.jobs:
                    expanded.append(format_job_id(job.id, server))
                await pace.keep()
        return expanded

    def _parse(
        self, text: str, action: a.AnyJobAction, caller: Caller, past: Mapping[int, bool]
    ) -> "_Item":
        item = _Item(text)
        try:
            job = own_job(text, server=self._head.settings.server)
            item.job, elements = meant(job, self._head.state)
            item.command = c.ActOnJob(
                caller=caller, job=item.job, action=action, past=past, elements=elements
            )
        except GschedError as error:
            item.error = error.with_traceback(None)  # its frames are many objects
        return item

    # --- actions on nodes ---

    async def act_on_nodes(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/nodes/actions``."""
        caller = self._callers.of(request)
        action = await read_body(request, self._bodies, a.NODE_ACTION)
        limits.check_texts(action, _TEXTS[type(action)])
        limits.check_words(
            "nodes",
            action.nodes,
            most=limits.MAX_NODES_PER_REQUEST,
            longest=limits.MAX_WORD,
        )
        commands = [c.ActOnNode(caller=caller, node=node, action=action) for node in action.nodes]
        async with self._bodies.turn_if(len(commands) > FEW, caller.uid) as pace:
            steps = await self._carry_out(commands, pace, dry_run=False)
        if isinstance(action, a.RemoveNode):
            steps = [await self._released(*each) for each in zip(action.nodes, steps, strict=True)]
        now_s = self._parts.clock.wall_s()
        results = tuple(
            action_result(node, step.error, node_words(self._head.state, node, action, now_s))
            for node, step in zip(action.nodes, steps, strict=True)
        )
        note_results(request, action.action, ((each.id, each.error) for each in results))
        return answer(api.ActionReply(results=results))

    async def _released(self, node: str, step: Step) -> Step:
        """Free the name of a removed node; that of a node that has only joined is removed, too."""
        if isinstance(step.error, UnknownNodeError) and self._parts.members.has_joined(node):
            step = Step()
        if step.error is None:
            await self._parts.members.release("node", node)
        return step

    # --- safe mode ---

    async def recover(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/recover``: an operator has looked at what is missing and goes on."""
        caller = self._callers.of(request)
        wanted = await read_body(request, self._bodies, recover.RecoverRequest)
        note_verb(request, Verb.RECOVER.value)
        authorize(caller, Verb.RECOVER)
        head, safe_mode = self._head, self._parts.safe_mode
        if wanted.believe:
            safe_mode.believe(wanted.believe)
        if wanted.accept and head.safe_mode:
            await safe_mode.accept(without=wanted.without_nodes)
        return answer(api.Health(ok=not head.safe_mode))

    async def recovery(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/recover``: what nodes know that the database does not (operators only)."""
        authorize(self._callers.of(request), Verb.READ_RECOVERY)
        return answer(await self._parts.safe_mode.listing())


def _check_action(action: a.AnyJobAction) -> None:
    """Check the sizes of an action on jobs; its texts are kept once for each job.

    Raises:
        InvalidRequestError: one is too large.
    """
    if len(action.ids) > MAX_JOBS_PER_REQUEST:
        raise InvalidRequestError(
            f"{len(action.ids)} ids in one request", hint=f"send up to {MAX_JOBS_PER_REQUEST}"
        )
    limits.check_texts(action, _TEXTS[type(action)])
    limits.check_words("ids", action.ids, most=MAX_JOBS_PER_REQUEST, longest=limits.MAX_ID)
    if isinstance(action, a.MigrateJob):
        most = limits.MAX_NAMED_NODES
        limits.check_words("nodes", action.nodes, most=most, longest=limits.MAX_WORD)
    if isinstance(action, a.HoldJob | a.ReleaseJob):
        limits.check_words("holds", action.holds, most=len(STATED_HOLDS), longest=limits.MAX_WORD)


def is_large(request: web.Request, items: int) -> bool:
    """Return whether a request takes its user's turn at work that takes long."""
    return items > FEW or (request.content_length or 0) > SMALL_BYTES


def _result(step: Step) -> submissions.SubmitResult:
    if step.error is not None:
        return submissions.SubmitResult(error=error_body(step.error))
    return submissions.SubmitResult(id=step.job, warnings=step.warnings)
