"""The commands' side of the HTTP API: routes that change something."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from gsched.clock import Clock
from gsched.errors import (
    BadStateError,
    GschedError,
    InvalidRequestError,
    NotPermittedError,
    TryAgainError,
    UnknownJobError,
)
from gsched.failpoint import failpoint
from gsched.model.ids import format_job_id, own_job_number
from gsched.model.states import HoldKind
from gsched.protocol import api
from gschedd.core import commands as c
from gschedd.core import facts as f
from gschedd.core.explain import describe_place
from gschedd.core.foresight import promise_of
from gschedd.core.head import Head, Step
from gschedd.core.migrating import leaving_node
from gschedd.core.settings import Caller
from gschedd.core.submit import checked_holds, known_submission, prepare
from gschedd.engine.loop import Engine
from gschedd.engine.space import DiskSpace
from gschedd.http.answers import answer, error_body, read_body
from gschedd.http.callers import Callers
from gschedd.http.launches import BlobCache
from gschedd.http.outlooks import outlooks_of, with_outlook
from gschedd.store.sqlite import Store

_encoder = msgspec.json.Encoder(order="deterministic")

JOB_ACTIONS = ("delete", "hold", "release", "signal", "rerun", "migrate", "alter")
PLAN_WAIT_S = 5.0  # for the cycle after a submission: an answer without a plan is better than none
NODE_ACTIONS = ("drain", "resume", "confirm-dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What commands work with.

    Attributes:
        was_there: whether the database knows a job, done or not.
        jobs_of_keys: the jobs of a user's client keys that the database knows.
        on_accepted: called when an operator has ended safe mode.
    """

    engine: Engine
    callers: Callers
    blobs: BlobCache
    space: DiskSpace
    store: Store
    clock: Clock
    was_there: Callable[[int], Awaitable[bool]]
    jobs_of_keys: Callable[[int, Sequence[str]], Awaitable[Mapping[str, int]]]
    on_accepted: Callable[[], Awaitable[None]]


class Commands:
    """Handlers of all POST routes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._callers = parts.callers

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
        ]

    # --- submit ---

    async def submit(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs``: the ids are sent after the jobs are durable."""
        caller = self._callers.of(request)
        asked = await read_body(request, api.SubmitRequest)
        if not 1 <= len(asked.jobs) <= api.MAX_JOBS_PER_REQUEST:
            raise InvalidRequestError(
                f"{len(asked.jobs)} jobs in one request",
                hint=f"send 1 to {api.MAX_JOBS_PER_REQUEST}",
            )
        if asked.dry_run:
            return answer(self._reply([self._dry_run(job, caller) for job in asked.jobs]))
        if self._parts.space.is_low():
            raise TryAgainError("the head's disk is full: no new jobs are taken", hint="free space")
        known = await self._known(asked.jobs, caller)
        pairs = [(job, *_content(job)) for job in asked.jobs]

        def queue(now_s: float) -> list[Step]:
            return [
                Step(job=known[job.key])
                if job.key in known
                else self._submit(job, (script, environment), caller, now_s)
                for job, script, environment in pairs
            ]

        steps = await self._engine.ask(queue)
        response = answer(self._reply(await self._results(steps)))
        await response.prepare(request)
        await response.write_eof()
        failpoint("head.submit.after_ack")
        return response

    async def _known(self, jobs: Sequence[api.SubmitJob], caller: Caller) -> Mapping[str, int]:
        """Return jobs of earlier tries that memory has forgotten and the database has not."""
        keys = [
            job.key
            for job in jobs
            if job.key and known_submission(self._head.state, caller, job.key) is None
        ]
        return await self._parts.jobs_of_keys(caller.uid, keys) if keys else {}

    def _submit(
        self, job: api.SubmitJob, content: tuple[bytes, bytes], caller: Caller, now_s: float
    ) -> Step:
        """Queue one job; what it brings is kept only if it is taken."""
        digests = (_digest(content[0]), _digest(content[1]))
        step = self._head.command(c.Submit(caller=caller, asked=job, digests=digests), now_s)
        if step.facts:
            for digest, data in zip(digests, content, strict=True):
                if digest:
                    self._engine.keep_blob(digest, data)
                    self._parts.blobs.put(digest, data)
        return step

    def _dry_run(self, job: api.SubmitJob, caller: Caller) -> api.SubmitResult:
        now_s = self._parts.clock.wall_s()
        try:
            known = known_submission(self._head.state, caller, job.key)
            if known is not None:
                return api.SubmitResult(id=known)
            submission = prepare(
                c.Submit(caller=caller, asked=job, digests=("", "")),
                state=self._head.state,
                settings=self._head.settings,
                intern=lambda request: request,
                now_s=now_s,
            )
            outlook = self._head.foresee(submission.spec, now_s)
            if job.reject_if_late:
                promise_of(self._head.state.next_job, submission.spec, outlook, now_s=now_s)
        except GschedError as error:
            return api.SubmitResult(error=error_body(error))
        result = api.SubmitResult(warnings=submission.warnings, predicted_start_s=outlook.start_s)
        return with_outlook(result, submission.spec, outlook)

    async def _results(self, steps: Sequence[Step]) -> list[api.SubmitResult]:
        """Return the answer for each job; of trainings when the next cycle has looked at them."""
        head = self._head
        if any(step.job in head.state.trainings for step in steps):
            await self._engine.planned(PLAN_WAIT_S)
        now_s = self._parts.clock.wall_s()
        told = [step.job for step in steps if step.job in head.state.trainings]
        outlooks = outlooks_of(head, told, now_s)
        return [
            with_outlook(_result(step), head.state.trainings[step.job].spec, outlooks[step.job])
            if step.job in outlooks
            else _result(step)
            for step in steps
        ]

    def _reply(self, results: list[api.SubmitResult]) -> api.SubmitReply:
        return api.SubmitReply(server=self._head.settings.server, results=tuple(results))

    # --- actions on jobs ---

    async def act(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/jobs/actions``: each id by itself, in order."""
        caller = self._callers.of(request)
        asked = await read_body(request, api.ActionRequest)
        if asked.action not in JOB_ACTIONS:
            raise InvalidRequestError(
                f"action {asked.action!r} is not known", hint=f"one of {', '.join(JOB_ACTIONS)}"
            )
        if len(asked.ids) > api.MAX_JOBS_PER_REQUEST:
            raise InvalidRequestError(
                f"{len(asked.ids)} ids in one request",
                hint=f"send up to {api.MAX_JOBS_PER_REQUEST}",
            )
        await self._engine.settled()
        items = [self._parse(text, asked, caller) for text in self._expand(asked.ids, caller)]
        commands = [command for _, command, _ in items if command is not None]
        head = self._head
        if asked.dry_run:
            now_s = self._parts.clock.wall_s()
            steps = iter([head.preview(command, now_s) for command in commands])
        else:
            steps = iter(
                await self._engine.ask(
                    lambda now_s: [head.command(command, now_s) for command in commands]
                )
            )
        results = []
        for text, command, error in items:
            step = Step(error=error) if command is None else next(steps)
            failure = await self._explain(text, step.error)
            words = _words(asked, step, dry_run=asked.dry_run)
            results.append(_action_result(text, failure, words))
        return answer(api.ActionReply(results=tuple(results)))

    async def _explain(self, text: str, error: GschedError | None) -> GschedError | None:
        """Say of a job that is not among the unfinished whether it is done, or never was."""
        if not isinstance(error, UnknownJobError):
            return error
        try:
            number = own_job_number(text, server=self._head.settings.server)
        except UnknownJobError:
            return error
        if not await self._parts.was_there(number):
            return error
        name = format_job_id(number, self._head.settings.server)
        return BadStateError(f"job {name} is done already", hint=f"ghist {number} tells how")

    def _expand(self, ids: tuple[str, ...], caller: Caller) -> list[str]:
        """Replace ``all`` by the ids of all of the caller's jobs."""
        server = self._head.settings.server
        expanded: list[str] = []
        every = False
        for text in ids:
            if text.lower() != "all":
                expanded.append(text)
                continue
            if every:
                continue
            every = True
            jobs = self._head.state.jobs.values()
            expanded.extend(
                format_job_id(job.id, server) for job in jobs if caller.owns(job.spec.owner)
            )
        return expanded

    def _parse(
        self, text: str, asked: api.ActionRequest, caller: Caller
    ) -> tuple[str, c.AnyCommand | None, GschedError | None]:
        try:
            number = own_job_number(text, server=self._head.settings.server)
            return text, _command(number, asked, caller), None
        except GschedError as error:
            return text, None, error

    # --- actions on nodes ---

    async def act_on_nodes(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/nodes/actions``."""
        caller = self._callers.of(request)
        asked = await read_body(request, api.NodeActionRequest)
        if asked.action not in NODE_ACTIONS:
            raise InvalidRequestError(
                f"action {asked.action!r} is not known", hint=f"one of {', '.join(NODE_ACTIONS)}"
            )
        commands = [_node_command(node, asked, caller) for node in asked.nodes]
        head = self._head
        steps = await self._engine.ask(
            lambda now_s: [head.command(command, now_s) for command in commands]
        )
        done = {"drain": "drained", "resume": "resumed", "confirm-dead": "confirmed dead"}
        results = tuple(
            _action_result(node, step.error, done[asked.action] + self._leaving(node, asked))
            for node, step in zip(asked.nodes, steps, strict=True)
        )
        return answer(api.ActionReply(results=results))

    def _leaving(self, node: str, asked: api.NodeActionRequest) -> str:
        """Return what becomes of the jobs of a node that is drained for good, in words."""
        if asked.action != "drain" or not asked.migrate:
            return ""
        leave, stay = leaving_node(self._head.state, node)
        stays = f", {stay} cannot be moved and run{'s' * (stay == 1)} on" if stay else ""
        goes = "job goes" if leave == 1 else "jobs go"
        return f": {leave} {goes} on elsewhere{stays}"

    # --- safe mode ---

    async def recover(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/recover``: an operator has looked at what is missing and goes on."""
        caller = self._callers.of(request)
        asked = await read_body(request, api.RecoverRequest)
        if not caller.operator:
            raise NotPermittedError("only an operator ends safe mode")
        head = self._head
        if asked.accept and head.safe_mode:
            await self._engine.in_writer(self._parts.store.accept_loss)

            def resume(_: float) -> list[Step]:
                head.safe_mode = ""
                head.state.look_anew()
                return []

            await self._engine.ask(resume)
            await self._parts.on_accepted()
        return answer(api.Health(ok=not head.safe_mode))


def _content(job: api.SubmitJob) -> tuple[bytes, bytes]:
    """Return a job's script and environment as they are stored."""
    return job.script.encode(), _encoder.encode(job.environment) if job.environment else b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if data else ""


def _result(step: Step) -> api.SubmitResult:
    if step.error is not None:
        return api.SubmitResult(error=error_body(step.error))
    return api.SubmitResult(id=step.job, warnings=step.warnings)


def _action_result(text: str, error: GschedError | None, words: str) -> api.ActionResult:
    if error is not None:
        return api.ActionResult(id=text, error=error_body(error))
    return api.ActionResult(id=text, text=words)


def _words(asked: api.ActionRequest, step: Step, *, dry_run: bool = False) -> str:
    if not step.facts:
        return "nothing to change"
    if asked.action == "migrate":
        return f"{'would go' if dry_run else 'goes'} on {_where(step)}"
    if dry_run:
        return f"would {asked.action}"
    done = {
        "delete": "deleted",
        "hold": "held",
        "release": "released",
        "signal": f"signal {asked.signal} sent",
        "rerun": "will run again",
        "alter": "altered",
    }
    kinds = {type(fact).__name__ for fact in step.facts}
    if asked.action == "delete" and "StopRequested" in kinds:
        return "ending"
    return done[asked.action]


def _where(step: Step) -> str:
    """Return where a job goes to: ``n1 (GPUs 0,1), n2 (GPU 0)``."""
    moves = (fact for fact in step.facts if isinstance(fact, f.MoveRequested))
    return ", ".join(describe_place(share) for move in moves for share in move.allocation)


def _command(job: int, asked: api.ActionRequest, caller: Caller) -> c.AnyCommand:
    match asked.action:
        case "delete":
            return c.DeleteJob(caller=caller, job=job, message=asked.message, grace_s=asked.grace_s)
        case "hold":
            return c.HoldJob(caller=caller, job=job, holds=_holds(asked, caller))
        case "release":
            return c.ReleaseJob(caller=caller, job=job, holds=_holds(asked, caller))
        case "signal":
            return c.SignalJob(caller=caller, job=job, signal=asked.signal)
        case "rerun":
            return c.RerunJob(
                caller=caller,
                job=job,
                message=asked.message,
                force=asked.force,
                grace_s=asked.grace_s,
            )
        case "migrate":
            return c.MigrateJob(
                caller=caller, job=job, nodes=asked.nodes, gpus=asked.gpus, message=asked.message
            )
        case _:
            if asked.alteration is None:
                raise InvalidRequestError("nothing to alter", hint="name what should change")
            return c.AlterJob(caller=caller, job=job, alteration=asked.alteration)


def _holds(asked: api.ActionRequest, caller: Caller) -> tuple[HoldKind, ...]:
    if not asked.holds:
        raise InvalidRequestError("no kind of hold named", hint="say -h u, o or s")
    return checked_holds(asked.holds, caller)


def _node_command(node: str, asked: api.NodeActionRequest, caller: Caller) -> c.AnyCommand:
    match asked.action:
        case "drain":
            return c.DrainNode(caller=caller, node=node, reason=asked.reason, migrate=asked.migrate)
        case "resume":
            return c.ResumeNode(caller=caller, node=node)
        case _:
            return c.ConfirmDead(caller=caller, node=node)
