"""Terminal sessions: a user's WebSocket, a node's WebSocket, and what is copied between them.

The head decides who may have a terminal of which job, tells the job's node to connect it, and
copies frames: the next one is read when the last one was taken, so nothing piles up here. See
docs/adr/0021-interactive.md.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import WSMsgType, web

from gsched import terminal as t
from gsched.clock import Clock
from gsched.errors import BadStateError, GschedError, InvalidRequestError, TryAgainError
from gsched.model.ids import short_job_id
from gsched.model.limits import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_SESSIONS,
    MAX_USER_SESSIONS,
)
from gsched.model.states import JobState, PartState
from gsched.protocol.sessions import RATE_BYTES_PER_S, OpenSession, SessionNotice
from gschedd.core.requests.authorize import Verb
from gschedd.core.requests.interactive import may_enter
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.core.views.jobs import JobViews
from gschedd.engine.loop import Engine
from gschedd.http.answers import error_body
from gschedd.http.audit import note_verb
from gschedd.http.callers import Callers
from gschedd.http.door import Visitor
from gschedd.http.legs import Leg, NodeLegs, abort
from gschedd.http.links import Links
from gschedd.http.waiting import UNSTARTED, Waiting

log = logging.getLogger("gschedd.sessions")

CONNECT_S: Final = 30.0  # for a node to connect a terminal: a shell has to be started first
LOOK_S: Final = 5.0  # how often a waiting job is looked at if nothing is committed
PAUSE_S: Final = 0.25  # at least between two looks: each costs a row of gstat
NODE_PATIENCE_S: Final = 60.0  # for a node that restarts
MAX_VARIABLES: Final = 16
_TERMINAL: Final = re.compile(r"[0-9a-f]{32}")
_NODES_WORD: Final = re.compile(r"[!-~]{0,255}")

_encoder = msgspec.json.Encoder()
_words = msgspec.json.Decoder(tuple[str, ...])
_variables = msgspec.json.Decoder(dict[str, str])


class _LostError(Exception):
    """The way to the terminal is broken; the message says how."""


class _SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants: see `OpenSession`."""

    job: str
    node: str = ""
    terminal: str = ""
    start: bool = False
    forward: bool = False
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


class _User:
    """A client's connection."""

    def __init__(self, channel: web.WebSocketResponse, caller: Caller) -> None:
        self.channel = channel
        self.caller = caller
        self.leg: Leg | None = None
        self._last = SessionNotice(what="")

    async def tell(self, status: SessionNotice) -> None:
        """Send a text message, unless it was the last one."""
        if status != self._last:
            self._last = status
            await self.channel.send_str(_encoder.encode(status).decode())

    async def read(self) -> None:
        """Pass on what the user types, until the client closes; without a terminal, drop it.

        Raises:
            FrameError: something else came.
        """
        loop = asyncio.get_running_loop()
        allowance = t.Allowance(RATE_BYTES_PER_S)
        async for message in self.channel:
            if message.type is not WSMsgType.BINARY:
                return
            t.split(message.data)
            if self.leg is not None:
                await self.leg.send(message.data)
            wait_s = allowance.spend(len(message.data), loop.time())
            if wait_s:
                await asyncio.sleep(wait_s)


class Sessions:
    """All sessions.

    Args:
        find: returns a job by its id, done or not.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        callers: Callers,
        links: Links,
        legs: NodeLegs,
        find: Callable[[str], Awaitable[Job]],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._callers = callers
        self._links = links
        self._legs = legs
        self._find = find
        self._clock = clock
        self._of_user: Counter[int] = Counter()
        self._users: set[_User] = set()
        self.waiting = Waiting(engine, clock)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of users."""
        return [web.get("/v1/jobs/{id}/session", self.user)]

    # --- a user's connection ---

    async def user(self, request: web.Request) -> web.WebSocketResponse:
        """``GET /v1/jobs/ID/session``: a terminal of a job, as a WebSocket."""
        caller = self._callers.of(request, acts=True)
        note_verb(request, Verb.ENTER_JOB.value, request.match_info["id"])
        channel = web.WebSocketResponse(max_msg_size=t.MAX_FRAME_BYTES, compress=False)
        await channel.prepare(request)
        if isinstance(request.protocol, Visitor):
            request.protocol.prove()  # it may be idle for hours, and is counted here from now on
        user = _User(channel, caller)
        self._users.add(user)
        self._of_user[caller.uid] += 1
        try:
            self._check_room(caller)
            options = _options_of(request.match_info["id"], request.query)
            await self._serve(user, options)
        except GschedError as error:
            body = error_body(error)
            status = SessionNotice(
                what="refused", reason=body.message, code=body.code, hint=body.hint
            )
            with contextlib.suppress(ConnectionError):
                await user.tell(status)
        except (ConnectionError, t.FrameError) as error:
            log.debug("a client of %s is gone: %s", caller.user, error)
        finally:
            self._users.discard(user)
            self._of_user -= Counter({caller.uid: 1})
            await channel.close()
        return channel

    def _check_room(self, caller: Caller) -> None:
        if self._of_user[caller.uid] > MAX_USER_SESSIONS:
            raise TryAgainError(
                f"{caller.user} has {MAX_USER_SESSIONS} terminal sessions, the limit",
                hint="leave one",
            )
        if len(self._users) > MAX_SESSIONS:
            raise TryAgainError(f"the head has {MAX_SESSIONS} terminal sessions, the limit")

    async def _serve(self, user: _User, options: _SessionOptions) -> None:
        """Serve a client until it or the terminal is gone."""
        reader = asyncio.create_task(user.read())
        story = asyncio.create_task(self._story(user, options))
        try:
            done, _ = await asyncio.wait({reader, story}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reader, story):
                task.cancel()
            await asyncio.gather(reader, story, return_exceptions=True)
            if user.leg is not None:
                user.leg.over.set()

    async def _story(self, user: _User, options: _SessionOptions) -> None:
        await self._engine.settled()
        job = await self._find(options.job)
        may_enter(user.caller, job, self._engine.head.settings)
        _check_kind(job, options)
        if options.start or options.terminal:
            await self._until_running(user, job)
        else:
            with self.waiting.client_of(job.id):
                if not await self._until_started(user, job):
                    await user.tell(SessionNotice(what="ended"))
                    return
        try:
            node, leg = await self._connected(user, job.id, options)
            user.leg = leg
            await user.tell(SessionNotice(what="ready", node=node))
            await self._copy(leg, user)
        except _LostError as error:
            await user.tell(SessionNotice(what="lost", reason=str(error)))

    async def _until_running(self, user: _User, job: Job) -> None:
        """Wait for a job that is about to run, but not for its turn.

        Raises:
            BadStateError: it does not run.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + CONNECT_S
        while True:
            now = self._engine.head.state.jobs.get(job.id, job)
            if now.state is not JobState.RUNNING or _running_parts(now) or loop.time() > give_up_s:
                _check_running(now)
                return
            await user.tell(SessionNotice(what="waiting", reason="it is being started"))
            await self._engine.changed(LOOK_S)
            await self._engine.settled()

    async def _until_started(self, user: _User, job: Job) -> bool:
        """Tell the client why its job waits, until it runs; return False if it has ended."""
        while True:
            now = self._engine.head.state.jobs.get(job.id)
            if now is None or now.state in {JobState.DONE, JobState.EXITING}:
                return False
            if _first_node(now) in _running_parts(now):
                return True
            row = JobViews(self._engine.head, now_s=self._clock.wall_s()).row(now)
            await user.tell(SessionNotice(what="waiting", reason=row.reason))
            await asyncio.sleep(PAUSE_S)
            await self._engine.changed(LOOK_S)
            await self._engine.settled()

    async def _connected(
        self, user: _User, number: int, options: _SessionOptions
    ) -> tuple[str, Leg]:
        """Have the node connect the terminal; return its name and its connection.

        Raises:
            GschedError: there is no such terminal, and there will not be one.
            _LostError: the node is away.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + NODE_PATIENCE_S
        while True:
            job = self._engine.head.state.jobs.get(number)
            if job is None or job.attempt is None:
                raise BadStateError(f"job {short_job_id(number)} has ended")
            is_main = not (options.start or options.terminal)
            node = _node_of(job, _first_node(job) if is_main else options.node)
            if self._links.link(node) is not None or loop.time() >= give_up_s:
                break
            await user.tell(SessionNotice(what="waiting", reason=f"node {node} is not connected"))
            await asyncio.sleep(PAUSE_S)
        link = self._links.link(node)
        if link is None:
            raise BadStateError(f"node {node} is not connected", hint="see gnodes")
        with self._legs.awaited(node) as (session, future):
            link.send(
                OpenSession(
                    session=session,
                    job=job.id,
                    attempt=job.attempt.number,
                    token=job.attempt.token,
                    terminal=options.terminal,
                    start=options.start,
                    forward=options.forward,
                    arguments=options.arguments,
                    variables=dict(options.variables),
                )
            )
            try:
                async with asyncio.timeout(CONNECT_S):
                    return node, await future
            except TimeoutError:
                raise _LostError(f"node {node} has not connected the terminal") from None

    async def _copy(self, leg: Leg, user: _User) -> None:
        """Pass on what the program shows, until its keeper closes.

        Raises:
            _LostError: the connection has ended before the program.
        """
        loop = asyncio.get_running_loop()
        allowance = t.Allowance(RATE_BYTES_PER_S)
        last = b""
        try:
            while frame := await leg.receive():
                t.split(frame)
                last = frame[:1]
                await user.channel.send_bytes(frame)
                wait_s = allowance.spend(len(frame), loop.time())
                if wait_s:
                    await asyncio.sleep(wait_s)
        except t.FrameError as error:
            raise _LostError(f"what came from node {leg.node} is not its own") from error
        if last not in {t.FrameKind.END.value, t.FrameKind.TAKEN.value}:
            raise _LostError(f"the connection to node {leg.node} is lost")

    async def close(self) -> None:
        """Close all sessions; terminals stay, and clients come again."""
        for user in tuple(self._users):
            abort(user.channel)


def _options_of(job: str, query: Mapping[str, str]) -> _SessionOptions:
    """Return what a client asks for.

    Raises:
        InvalidRequestError: it makes no sense, or is too much.
    """
    try:
        options = _SessionOptions(
            job=job,
            node=query.get("node", ""),
            terminal=query.get("terminal", ""),
            start=query.get("start", "") == "1",
            forward=query.get("forward", "") == "1",
            arguments=_words.decode(query.get("arguments", "[]").encode()),
            variables=_variables.decode(query.get("variables", "{}").encode()),
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"a request for a session that cannot be read: {error}") from None
    if (options.terminal or options.start) and not _TERMINAL.fullmatch(options.terminal):
        raise InvalidRequestError("the name of a terminal has 32 hex digits")
    if not _NODES_WORD.fullmatch(options.node):
        raise InvalidRequestError("invalid node name")
    words = [*options.arguments, *options.variables, *options.variables.values()]
    if (
        len(options.arguments) > MAX_ARGUMENTS
        or len(options.variables) > MAX_VARIABLES
        or sum(map(len, words)) > MAX_ARGUMENT_BYTES
        or any("\0" in word for word in words)
        or any(not name or "=" in name for name in options.variables)
    ):
        raise InvalidRequestError("the command of a session is too long, or cannot be run")
    return options


def _check_kind(job: Job, options: _SessionOptions) -> None:
    """Refuse a terminal that a job cannot have.

    Raises:
        BadStateError: it has none of this kind.
    """
    name = short_job_id(job.id)
    if job.state is JobState.DONE and job.spec.interactive is None:
        raise BadStateError(f"job {name} has ended", hint=f"see ghist {name}")
    if job.spec.array is not None:
        raise BadStateError(
            f"job {name}[] is an array, and runs as its elements",
            hint=f"name an element: gshell '{name}[0]'",
        )
    if not options.start and not options.terminal and job.spec.interactive is None:
        raise BadStateError(
            f"job {name} is not interactive: it has no terminal",
            hint=f"start a shell in it with gshell {name}, or see its output with gpeek {name}",
        )


def _check_running(job: Job) -> None:
    name = short_job_id(job.id)
    if job.state in {JobState.EXITING, JobState.DONE}:
        raise BadStateError(f"job {name} has ended", hint=f"see ghist {name}")
    if job.state in UNSTARTED:
        raise BadStateError(
            f"job {name} has not started", hint=f"gwait --for started, or see gstat {name}"
        )
    if not _running_parts(job):
        raise BadStateError(f"job {name} is {job.state}: try again in a moment")


def _running_parts(job: Job) -> list[str]:
    """Return the nodes on which processes of a job run."""
    if job.attempt is None:
        return []
    parts = job.attempt.parts
    return [name for name, part in parts.items() if part.state is PartState.RUNNING]


def _first_node(job: Job) -> str:
    """Return the node on which an interactive job has its terminal; empty: it has none yet."""
    return next(iter(job.attempt.parts), "") if job.attempt is not None else ""


def _node_of(job: Job, wanted: str) -> str:
    """Return on which of its nodes a job's terminal is.

    Raises:
        BadStateError: the job has nothing there.
    """
    running, name = _running_parts(job), short_job_id(job.id)
    if not running:
        raise BadStateError(f"job {name} does not run any more")
    if not wanted:
        return running[0]
    if wanted not in running:
        raise BadStateError(
            f"job {name} has no processes on node {wanted[:100]!r}", hint=f"on {', '.join(running)}"
        )
    return wanted
