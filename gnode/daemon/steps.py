"""Job steps over several nodes: between programs of jobs, their step agents and the head.

Both come by the node's socket (`gnode.daemon.elastic`), where the kernel says whose they are. A
program names nodes of its job; the head starts step agents there and tells their gnodes, which tell
the agents to connect to the program. The tasks' input and output never pass gnode or the head.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

from gnode.core.table import NodeAttempt
from gnode.core.task import AttemptKey
from gnode.daemon.rate_limit import RateLimit
from gsched.clock import Clock
from gsched.failpoint import failpoint
from gsched.host_slots import HostSlots
from gsched.model.limits import MAX_DELIVERY_RATE, MAX_STEP_CALLS, MAX_STEP_ORDERS
from gsched.protocol import training as wire
from gsched.protocol.code import CodeRead, CodeWanted
from gsched.protocol.deliveries import StagedRead, StagedWanted
from gsched.protocol.job_steps import (
    LoginAnswer,
    LoginRequest,
    StepFailed,
    StepMessage,
    StepOrder,
    StepReport,
    StepRequest,
)

log = logging.getLogger(__name__)

AGENT_S = 60.0  # until a step agent that was ordered has started and come to the socket
STARTED_LOOK_S = 0.02  # how often an attempt is looked at whose start is not reported yet
LOOK_S = 0.5  # how often one that cannot start any more is noticed
ORDERS_MAX = 4096
CALLS_PER_S = 20.0
UNSENT_BYTES_MAX = 64 * 1024
#: Then a piece is requested again: the connection to the head may have been lost.
CODE_ANSWER_S = 30.0
STAGED_ANSWER_S = 60.0  # as of output that returns: a host may take its time
STAGED_AT_ONCE = 32
STAGED_OF_HOST = 16
STAGED_OF_USER = 16
DRAIN_S = 20.0  # then a program that does not read is cut off: it may come again


@dataclass(slots=True)
class _Waiting:
    order: StepOrder
    until_s: float


@dataclass(slots=True, kw_only=True)
class _StepRequest:
    """A program that waits for step agents."""

    key: AttemptKey
    writer: asyncio.StreamWriter


@dataclass(slots=True, kw_only=True)
class _Allowance:
    """How many calls of an attempt may still be passed on at once."""

    at_s: float
    left: float = MAX_STEP_CALLS


@dataclass(slots=True, kw_only=True)
class PieceRelay:
    """Passes pieces of code snapshots and of staged files to what starts a program.

    A piece counts for its user until the program has read it.

    Attributes:
        send: sends a message to the head, where one is connected.
        is_connected: whether one is.
        host_of: returns an attempt's host of submission.
    """

    send: Callable[[CodeWanted | StagedWanted], None]
    is_connected: Callable[[], bool]
    host_of: Callable[[AttemptKey], str]
    _pending: dict[int, "asyncio.Future[CodeRead | StagedRead]"] = field(default_factory=dict)
    _next: int = 1
    _slots: HostSlots = field(default_factory=lambda: HostSlots(STAGED_AT_ONCE, STAGED_OF_HOST))
    _rate: RateLimit = field(default_factory=lambda: RateLimit(MAX_DELIVERY_RATE))
    _of_user: WeakValueDictionary[int, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )

    def take(self, answer: CodeRead | StagedRead) -> None:
        """Take an answer of the head."""
        pending = self._pending.pop(answer.request, None)
        if pending is not None and not pending.done():
            pending.set_result(answer)

    def connected(self) -> None:
        """Have asked again what waits: answers of an earlier connection do not come."""
        for number, pending in list(self._pending.items()):
            if not pending.done():
                self.take(StagedRead(request=number, error="the head was away", later=True))

    async def serve(
        self, key: AttemptKey, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer each line of a program with a piece, in their order, until it closes."""
        held = self._of_user.setdefault(uid, asyncio.Semaphore(STAGED_OF_USER))
        answers: list[asyncio.Task[None]] = []
        try:
            while line := await reader.readline():
                message = wire.decode_line(line)
                if message.read is None and message.fetch is None:
                    raise wire.BadLineError("an offset is missing")
                answers = [each for each in answers if not each.done()]
                await held.acquire()
                before = answers[-1] if answers else None
                answer = self._answer_line(key, message, writer, before)
                answers.append(asyncio.create_task(answer))
                answers[-1].add_done_callback(lambda _: held.release())
        finally:
            for each in answers:
                each.cancel()

    async def _answer_line(
        self,
        key: AttemptKey,
        message: wire.TrainingLine,
        writer: asyncio.StreamWriter,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Answer a line of a program, after the one before it."""
        data = b""
        if message.fetch is None:
            assert message.read is not None, "it is the one or the other"
            reply = await self._code(key, message.read)
        else:
            async with self._slots.slot(self.host_of(key)):
                reply = await self._staged(key, message.fetch)
            if message.fetch.raw and isinstance(found := reply.pop("data", None), bytes):
                data, reply["count"] = found, len(found)
        if before is not None:
            await asyncio.wait({before})
        writer.write(msgspec.json.encode(reply) + b"\n" + data)
        try:
            async with asyncio.timeout(DRAIN_S):
                await writer.drain()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()

    async def _code(self, key: AttemptKey, read: wire.ReadCode) -> dict[str, object]:
        wanted = CodeWanted(request=0, job=key.job, attempt=key.attempt, offset=read.offset)
        answer = await self._answer(wanted, CODE_ANSWER_S)
        if not isinstance(answer, CodeRead):
            return {"later": "the head has not answered"}
        if answer.error:
            return {"error": answer.error}
        return {"size_bytes": answer.size_bytes, "data": answer.data}

    async def _staged(self, key: AttemptKey, fetch: wire.FetchStaged) -> dict[str, object]:
        wanted = StagedWanted(
            request=0,
            job=key.job,
            attempt=key.attempt,
            item=fetch.item,
            after=fetch.after,
            offset=fetch.offset,
            lists=fetch.lists,
        )
        answer = await self._answer(wanted, STAGED_ANSWER_S)
        failpoint("staging.node.after_answer")
        if not isinstance(answer, StagedRead):
            return {"later": "the head has not answered"}
        if answer.error:
            return {"later" if answer.later else "error": answer.error}
        await self._rate.passed(len(answer.data))
        return {"data": answer.data}

    async def _answer(
        self, wanted: CodeWanted | StagedWanted, limit_s: float
    ) -> CodeRead | StagedRead | None:
        """Return what the head answers; None: nothing in time."""
        number, self._next = self._next, self._next + 1
        if not self.is_connected():
            return None
        pending: asyncio.Future[CodeRead | StagedRead] = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        self.send(structs.replace(wanted, request=number))
        try:
            async with asyncio.timeout(limit_s):
                return await pending
        except TimeoutError:
            return None
        finally:
            self._pending.pop(number, None)


@dataclass(slots=True, kw_only=True)
class StepServer:
    """Passes on who wants step agents, and who can be one.

    Attributes:
        node: this node's name.
        attempts: what gnode knows of its attempts; only read.
        send: sends a message to the head, where one is connected.
        is_connected: whether one is.
        takes_logins: whether it opens parts of jobs for users who log in.
        clock: for how long an agent may take to start.
        pieces: serves programs that unpack code snapshots, or stage files in.
    """

    node: str
    attempts: Mapping[AttemptKey, NodeAttempt]
    send: Callable[[StepReport | CodeWanted | StagedWanted], None]
    is_connected: Callable[[], bool]
    takes_logins: Callable[[], bool]
    clock: Clock
    pieces: PieceRelay = field(init=False)
    _agents: dict[AttemptKey, asyncio.StreamWriter] = field(default_factory=dict)
    _waiting: dict[AttemptKey, list[_Waiting]] = field(default_factory=dict)
    _calls: dict[int, _StepRequest] = field(default_factory=dict)
    _allowed: dict[AttemptKey, _Allowance] = field(default_factory=dict)
    _logins: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    _next_call: int = 1
    _look: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.pieces = PieceRelay(
            send=self.send, is_connected=self.is_connected, host_of=self._host_of
        )

    def _host_of(self, key: AttemptKey) -> str:
        attempt = self.attempts.get(key)
        away = attempt.task.away if attempt is not None and attempt.task is not None else None
        return away.host if away is not None else ""

    def close(self) -> None:
        """Forget what waits: gnode ends."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    # --- the head's side ---

    def take(self, message: StepMessage | CodeRead | StagedRead) -> None:
        """Take a message of the head."""
        if isinstance(message, LoginAnswer):
            login = self._logins.get(message.login)
            if login is not None:
                _write(login, {"login": {"job": message.job, "attempt": message.attempt}})
            return
        if isinstance(message, CodeRead | StagedRead):
            self.pieces.take(message)
            return
        if isinstance(message, StepOrder):
            self._order(message)
            return
        call = self._calls.get(message.step)
        if call is not None and call.key == AttemptKey(message.job, message.attempt):
            _write(call.writer, {"failed": {"node": message.node, "message": message.message}})

    def _order(self, order: StepOrder) -> None:
        key = AttemptKey(order.job, order.attempt)
        agent = self._agents.get(key)
        if agent is not None:
            self._tell(agent, order)
            return
        waiting = self._waiting.setdefault(key, [])
        if len(waiting) >= MAX_STEP_ORDERS or len(self._waiting) >= ORDERS_MAX:
            self._fail(order, f"too many programs wait for the step agent on {self.node}")
            return
        waiting.append(_Waiting(order, self.clock.monotonic_s() + AGENT_S))
        self._look_later()

    def _tell(self, agent: asyncio.StreamWriter, order: StepOrder) -> None:
        if agent.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._fail(order, f"the step agent on {self.node} does not answer")
            return
        _write(
            agent,
            {
                "step": {
                    "node": order.node,
                    "step": order.step,
                    "address": order.address,
                    "port": order.port,
                    "secret": order.secret,
                }
            },
        )

    def _fail(self, order: StepOrder, why: str) -> None:
        self.send(
            StepFailed(
                job=order.job,
                attempt=order.attempt,
                node=self.node,
                origin=order.node,
                step=order.step,
                message=why,
            )
        )

    def _look_later(self) -> None:
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(LOOK_S, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        """Give up what no agent will answer any more."""
        self._look = None
        now_s = self.clock.monotonic_s()
        for key, waiting in list(self._waiting.items()):
            why = self._end_of(key)
            kept = []
            for each in waiting:
                if why or each.until_s <= now_s:
                    late = f"the step agent on {self.node} has not started within {AGENT_S:.0f} s"
                    self._fail(each.order, why or late)
                else:
                    kept.append(each)
            if kept:
                self._waiting[key] = kept
            else:
                del self._waiting[key]
        if self._waiting:
            self._look_later()

    def _end_of(self, key: AttemptKey) -> str:
        """Return why an attempt has no agent here any more; empty: it may come yet."""
        attempt = self.attempts.get(key)
        if attempt is None or attempt.live:
            return ""
        record = attempt.record
        return (record.message if record else "") or f"the step agent on {self.node} has ended"

    # --- the node's side ---

    async def serve_agent(
        self, key: AttemptKey, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a step agent until its connection ends."""
        older = self._agents.get(key)
        if older is not None:
            older.transport.abort()
        self._agents[key] = writer
        for each in self._waiting.pop(key, ()):
            self._tell(writer, each.order)
        try:
            while line := await reader.readline():
                failed = wire.decode_line(line).failed
                if failed is not None:
                    self.send(
                        StepFailed(
                            job=key.job,
                            attempt=key.attempt,
                            node=self.node,
                            origin=failed.origin,
                            step=failed.step,
                            message=failed.message,
                        )
                    )
        finally:
            if self._agents.get(key) is writer:
                del self._agents[key]

    async def serve_call(
        self,
        key: AttemptKey,
        call: wire.StepCall,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass on that a program wants step agents, and tell it which cannot come."""
        pause_s = self._pause_s(key)
        if pause_s:
            await asyncio.sleep(pause_s)
        # its program may be faster than the report of its start
        while self._is_starting(key):  # noqa: ASYNC110 - a table, which tells nobody
            await asyncio.sleep(STARTED_LOOK_S)
        number, self._next_call = self._next_call, self._next_call + 1
        if not self.is_connected():
            for node in call.nodes:
                why = f"{self.node} is not connected to the head, which tells other nodes"
                _write(writer, {"failed": {"node": node, "message": why}})
            return
        self._calls[number] = _StepRequest(key=key, writer=writer)
        self.send(
            StepRequest(
                job=key.job,
                attempt=key.attempt,
                step=number,
                nodes=call.nodes,
                port=call.port,
                secret=call.secret,
            )
        )
        try:
            with contextlib.suppress(OSError):
                await reader.read(1)  # it closes when all agents have come, or it has given up
        finally:
            del self._calls[number]

    async def serve_login(
        self, call: wire.LoginCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Ask the head for a part of a job here for a user who logs in, until PAM has gone."""
        number, self._next_call = self._next_call, self._next_call + 1
        if not self.takes_logins():
            why = f"{self.node} is not connected to a head that can tell"
            _write(writer, {"refused": {"message": why}})
            return
        self._logins[number] = writer
        self.send(LoginRequest(login=number, uid=call.uid, address=call.address))
        try:
            with contextlib.suppress(OSError):
                await reader.read(1)
        finally:
            del self._logins[number]

    def _is_starting(self, key: AttemptKey) -> bool:
        """Return whether the head has not been told yet that an attempt's program runs."""
        attempt = self.attempts.get(key)
        return attempt is not None and attempt.live and attempt.info is None

    def _pause_s(self, key: AttemptKey) -> float:
        """Count a call and return how long to wait before it is passed on, seconds."""
        now_s = self.clock.monotonic_s()
        if len(self._allowed) > ORDERS_MAX:
            self._allowed.clear()
        allowed = self._allowed.setdefault(key, _Allowance(at_s=now_s))
        allowed.left += CALLS_PER_S * (now_s - allowed.at_s)
        allowed.left = min(MAX_STEP_CALLS, allowed.left) - 1.0
        allowed.at_s = now_s
        return 0.0 if allowed.left >= 0 else -allowed.left / CALLS_PER_S


def _write(writer: asyncio.StreamWriter, message: dict[str, dict[str, object]]) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(msgspec.json.encode(message) + b"\n")
