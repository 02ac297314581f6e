"""The node channel: one WebSocket for each node, and the effects that go down it."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import msgspec
from aiohttp import WSMsgType, web

from gsched.clock import Clock
from gsched.errors import BadStateError, GschedError, StorageError, TryAgainError
from gsched.failpoint import failpoint
from gsched.logs import Complaints
from gsched.model.ids import short_job_id
from gsched.model.machine import is_identity
from gsched.model.states import LaunchStage, NodeState
from gsched.protocol import node as n
from gsched.protocol.code import CodeWanted
from gsched.protocol.framing import frames_from_head
from gsched.protocol.job_steps import LoginRequest, StepFailed, StepReport, StepRequest
from gsched.protocol.reading import named, read_from_node
from gsched.protocol.sealing import Opener, Sealer, SealError
from gsched.protocol.sessions import OpenSession, SessionFailed
from gsched.protocol.unreadable import Unreadable
from gsched.protocol.uses import Uses
from gschedd.core.nodes.live import MAX_PROBLEM, note_condition, note_uses
from gschedd.core.state import effects as e
from gschedd.core.state.step import Step
from gschedd.engine.loop import Engine
from gschedd.http.code import CodeSnapshots
from gschedd.http.door import Visitor
from gschedd.http.handshake import (
    Handshake,
    HandshakeRefusedError,
    Introduced,
    close_badly,
)
from gschedd.http.launches import Launches
from gschedd.http.unreadable import Unreadables
from gschedd.http.witnesses import OnOlder, Recovery, Witnesses, claim_of

log = logging.getLogger("gschedd.nodes")

HANDSHAKE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
PING_TIMEOUT_RATIO = 1.5  # a ping every T, and half of T for its answer: aiohttp's heartbeat
ANSWER_TIMEOUT_S = 5.0  # for a connected gnode, when another one wants its place
#: So many nodes hear of each commit at once, before it is answered; all others soon after.
PROMPT_WITNESSES = 3
HIGH_WATER_S = 2.0
MAX_OUTBOX = 50_000  # messages a slow node may have waiting before it is cut off


class Link:
    """A connected node: an outbox, and one task that sends it, many messages to a frame.

    Attributes:
        call: which of all connections this is, in the order in which they were opened.
        is_gone: it has ended.
        twins: how often another gnode wanted its place while it answered.
        witnessed: how far the head had come when the node heard of it last: event and next job.
        late: the node comes from a history whose loss was accepted.
        surveyed: the node is asked what it knows, and does not obey.
        incomplete: what the node's registration lacks, as it could not be read.
    """

    def __init__(self, who: Introduced, socket: web.WebSocketResponse, *, call: int) -> None:
        self.node = who.node
        self.boot_id = who.registration.boot_id
        self.call = call
        self.witnessed = (0, 0)
        self.surveyed = False
        self.incomplete = who.incomplete
        self.late = False
        self.socket = socket
        self.opener: Opener = who.opener
        self._sealer: Sealer = who.sealer
        self.is_gone = False
        self.twins = 0
        self._answered = asyncio.Event()
        self._pinged = self._ponged = 0
        self._outbox: list[n.HeadMessage] = []
        self._filled = asyncio.Event()

    def tell(self, reached: tuple[int, int]) -> None:
        """Let the node know how far the head has come, unless it knows."""
        if reached != self.witnessed and not self.surveyed:
            self.witnessed = reached
            self.send(n.HighWater(seq=reached[0], next_job=reached[1]))

    def send(self, message: n.HeadMessage) -> None:
        """Put a message into the outbox; a node that does not read is cut off."""
        if len(self._outbox) >= MAX_OUTBOX:
            log.warning("%s does not read: cut off", self.node)
            self.abort()
            return
        self._outbox.append(message)
        self._filled.set()

    def abort(self) -> None:
        """End the connection at once; what was to be sent is lost."""
        transport = self.socket._req.transport if self.socket._req else None  # noqa: SLF001 # aiohttp has no public abort
        if transport is not None:
            transport.abort()

    async def answers(self) -> bool:
        """Return whether the gnode at the other end still answers."""
        if self._pinged == self._ponged:  # else another one is asking already
            self._pinged += 1
            self._answered.clear()
            self.send(n.Ping(number=self._pinged))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._answered.wait()
        return self._ponged == self._pinged and not self.is_gone

    def on_pong(self, pong: n.Pong) -> None:
        """Take in an answer."""
        if pong.number == self._pinged:
            self._ponged = pong.number
            self._answered.set()

    def end(self) -> None:
        """Note that the connection has ended."""
        self.is_gone = True
        self._answered.set()

    async def sender(self, set_aside: Callable[[n.HeadMessage, str], None]) -> None:
        """Send the outbox for ever, what waits in as few frames as its bytes allow.

        ``set_aside`` takes what the node could not read, with the reason; it is not sent.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            batch, self._outbox = self._outbox, []
            for frame in frames_from_head(batch, set_aside):
                await self.socket.send_bytes(self._sealer.seal(frame.payload))
            if any(isinstance(message, n.Launch) for message in batch):
                failpoint("head.launch.after_send")
            if any(isinstance(message, n.ExitAck) for message in batch):
                failpoint("head.exit.after_ack")

    async def refuse(self, text: str, *, fatal: bool) -> None:
        """Send the node away; it was not welcomed yet, so nothing else is being sent."""
        frame = self._sealer.seal(n.encode([n.Refused(message=text, fatal=fatal)]))
        with contextlib.suppress(ConnectionError):
            await self.socket.send_bytes(frame)
        await self.socket.close()


class Links:
    """All connected nodes."""

    def __init__(
        self,
        *,
        engine: Engine,
        launches: Launches,
        clock: Clock,
        handshake: Handshake,
        witnesses: Witnesses,
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._launches = launches
        self._clock = clock
        self._complaints = Complaints(log, clock)
        self._unreadables = Unreadables(engine, self._complaints)
        self._handshake = handshake
        self.witnesses = witnesses
        self._reached = (0, 0)
        self._ping_s = timeout_s / PING_TIMEOUT_RATIO
        self._links: dict[str, Link] = {}
        self._calls = 0
        self._newest: dict[str, int] = {}
        self._requests: dict[tuple[str, int], asyncio.Future[n.OutputRead]] = {}
        self._next_request = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_fenced: OnOlder = _log_older
        self.recovery: Recovery | None = None
        self.on_session_failed: Callable[[str, SessionFailed], None] = lambda *_: None
        self.on_parted: Callable[[str], None] = lambda _: None
        self.code: CodeSnapshots | None = None

    # --- effects ---

    def reached(self, reached: tuple[int, int]) -> None:
        """Take in how far the database has come; some nodes hear of it at once."""
        self._reached = reached
        for link in itertools.islice(self._links.values(), PROMPT_WITNESSES):
            link.tell(reached)

    async def keep_witnesses(self) -> None:
        """Let all nodes know, now and then, how far the database has come."""
        while True:
            await asyncio.sleep(HIGH_WATER_S)
            for link in list(self._links.values()):
                link.tell(self._reached)

    def deliver(self, effects: Sequence[e.AnyEffect]) -> None:
        """Send effects to the nodes that are connected."""
        launched = False
        for effect in effects:
            link = self._links.get(effect.node)
            if link is None or link.surveyed:
                continue
            if isinstance(effect, e.SendLaunch):
                if launched:
                    failpoint("head.launch.between_nodes")
                launched = True
            message = self._message(effect)
            if message is not None:
                link.tell(self._reached)  # so that it never knows a job beyond its mark
                link.send(message)

    def _launch(self, effect: e.SendLaunch | e.SendPrepare) -> n.Launch | n.Prepare | None:
        """Return the order; where the job's script is damaged, let the attempt fail instead."""
        try:
            return self._launches.order(effect)
        except StorageError as error:
            log.critical("job %s cannot be started: %s", short_job_id(effect.job), error)
            key = (effect.job, effect.attempt)
            self._unreadables.fail(effect.node, key, LaunchStage.FILES, error.message)
            return None

    def _cannot_send(self, node: str, message: n.HeadMessage, reason: str) -> None:
        """Set a message aside that a node could not read, and answer whoever waits for it."""
        if isinstance(message, OpenSession):
            self.on_session_failed(node, SessionFailed(session=message.session, message=reason))
        elif isinstance(message, n.ReadOutput):
            self._answer_request(node, n.OutputRead(request=message.request, error=reason))
        self._unreadables.set_aside(node, named(message, reason))

    def _message(self, effect: e.AnyEffect) -> n.HeadMessage | None:
        if isinstance(effect, e.SendLaunch | e.SendPrepare):
            return self._launch(effect)
        return effect.message

    # --- one connection ---

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one node from handshake to disconnection."""
        self._calls += 1
        call = self._calls
        socket = web.WebSocketResponse(
            heartbeat=self._ping_s, max_msg_size=n.MAX_FRAME_BYTES, compress=False
        )
        await socket.prepare(request)
        who = await self._introduced(socket, request)
        if who is not None:
            link = Link(who, socket, call=call)
            if await self._admit(link, who.registration):
                await self._serve(link)
        return socket

    async def _introduced(
        self, socket: web.WebSocketResponse, request: web.Request
    ) -> Introduced | None:
        """Return who has called, or None for who was not let in."""
        source = request.remote or "unknown"
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                who = await self._handshake.shake(socket, request.transport)
        except HandshakeRefusedError as error:
            self._complaints.say(source, f"a node is refused: {error.message}")
            refused = n.Refused(message=error.message, fatal=error.fatal)
            with contextlib.suppress(ConnectionError):
                await socket.send_str(n.encode([refused]).decode())
        except SealError as error:
            self._engine.head.oddities["frame_not_authentic"] += 1
            self._complaints.say(
                source, f"a node's handshake failed, it does not know the cluster's key: {error}"
            )
        except (TimeoutError, ValueError, msgspec.DecodeError, RecursionError) as error:
            self._complaints.say(source, f"a node's handshake failed: {str(error) or 'too slow'}")
        else:
            if isinstance(request.protocol, Visitor):
                request.protocol.prove()
            return who
        await close_badly(socket, "the handshake failed: the head's log says why")
        return None

    async def _admit(self, link: Link, message: n.Register) -> bool:
        if not await self._is_newest(link):
            return False
        self._newest[link.node] = link.call
        head = self._engine.head
        if not (
            await self._is_itself(link, message)
            and await self._is_trusted(link, message)
            and await self._is_free(link)
        ):
            return False
        if not await self._is_newest(link):  # it may have dialled again while we waited
            return False
        self._links[link.node] = link
        if not self._greet(link) and not head.safe_mode:
            return True  # it is let in when all that it knows has been taken back
        try:
            (step,) = await self._engine.ask(
                lambda now_s: (head.registered(link.node, message, now_s),)
            )
            failed = step.error
        except TryAgainError as error:
            failed = error
        if failed is not None:
            await self._part(link, failed.message)  # it may have taken the place of a link
            await link.refuse(failed.message, fatal=False)
            return False
        if not link.surveyed:
            self.witnesses.note_obeyed(link.node)
        note_condition(self._engine.head.state, link.node, message)
        self._unreadables.log_reports(link.node, link.incomplete, ())
        log.info("%s registered: %d attempts in its spool", link.node, len(message.attempts))
        return True

    async def _is_itself(self, link: Link, message: n.Register) -> bool:
        """Refuse a gnode that is another one than the node whose name it has."""
        if not is_identity(message.identity):
            await link.refuse("a registration needs an identity of 32 hex digits", fatal=True)
            return False
        refusal = self._engine.head.refused(link.node, message, self._clock.wall_s())
        if refusal is None:
            return True
        if refusal.is_new:
            log.error("a gnode at %s is refused: %s", message.address, refusal.message)
        await link.refuse(refusal.message, fatal=True)
        return False

    async def _is_free(self, link: Link) -> bool:
        """Refuse a second gnode of the same identity while the first one answers.

        A node that has dialled again has given its connection up, so that does not answer. Two that
        both do have copied state directories, and would displace each other for ever.
        """
        present = self._links.get(link.node)
        if present is None:
            return True
        if await present.answers():
            text = (
                f"a gnode with the name and identity of {link.node} is connected, and answers: "
                "this one is a copy. Stop one of them, and empty the copy's state directory"
            )
            if present.twins == 0:
                log.error("%s: %s", link.node, text)
            present.twins += 1
            await link.refuse(text, fatal=True)
            return False
        present.abort()
        return True

    def _greet(self, link: Link) -> bool:
        """Let a node in; return False if it is asked what it knows instead."""
        question = None
        if self.recovery is not None:
            question = self.recovery.question(link.node, late=link.late)
        if question is not None:
            link.surveyed = True
            link.send(question)
            return False
        now = self.witnesses.now
        link.witnessed = self._reached
        link.send(
            n.Welcome(
                cluster=self.witnesses.cluster,
                epoch=now.number,
                epoch_id=now.id,
                seq=self._reached[0],
                next_job=self._reached[1],
            )
        )
        return True

    async def _is_trusted(self, link: Link, message: n.Register) -> bool:
        """Return whether a node may be let in by what it knows of heads; refuse it otherwise."""
        head = self._engine.head
        ruling = self.witnesses.rule(
            link.node,
            claim_of(message),
            known=head.state.nodes.keys(),
            reached=(self._reached[0], head.state.next_job),
            safe_mode=bool(head.safe_mode),
        )
        if ruling.fenced:
            await self.on_fenced(ruling.fenced)
        elif ruling.older and self.recovery is not None:
            await self.recovery.on_older_head(ruling.older)
        link.late = ruling.late
        if ruling.fenced or ruling.refusal:
            await link.refuse(ruling.fenced or ruling.refusal, fatal=False)
            return False
        return True

    async def _is_newest(self, link: Link) -> bool:
        """Refuse a connection that was held up on its way and that its node has given up since.

        It tells what the node had before it dialled again: attempts started since then would seem
        to be lost.
        """
        if link.call >= self._newest.get(link.node, 0):
            return True
        log.warning("%s: a connection that it has given up is not taken", link.node)
        await link.refuse("you have connected again since", fatal=False)
        return False

    async def _serve(self, link: Link) -> None:
        sender = asyncio.create_task(link.sender(partial(self._cannot_send, link.node)))
        reason, is_fault = "connection closed", False
        try:
            async for frame in link.socket:
                if frame.type is not WSMsgType.BINARY:
                    reason, is_fault = f"a frame that is not sealed ({frame.type.name})", True
                    self._engine.head.oddities["frame_not_authentic"] += 1
                    break
                messages, incomplete, unreadable = read_from_node(link.opener.open(frame.data))
                if incomplete or unreadable:
                    self._unreadables.log_reports(link.node, incomplete, unreadable)
                if await self._hear(link, messages):
                    reason = "all that it knows was taken back: it is to come again"
                    break
        except SealError as error:
            reason, is_fault = str(error), True
            self._engine.head.oddities["frame_not_authentic"] += 1
        except (msgspec.DecodeError, RecursionError) as error:
            reason, is_fault = f"unreadable message: {error}", True
        finally:
            link.end()
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sender
            if is_fault:
                await close_badly(link.socket, reason)
            await link.socket.close()
            await self._part(link, reason)

    async def _part(self, link: Link, reason: str) -> None:
        """Note that a node has no connection any more, unless another link has taken its place."""
        if self._links.get(link.node) is not link:
            return
        del self._links[link.node]
        self.on_parted(link.node)
        log.warning("%s disconnected: %s", link.node, reason)
        head = self._engine.head
        await self._engine.tell(lambda now_s: (head.disconnected(link.node, reason, now_s),))

    async def _hear(  # noqa: C901, PLR0912 # one line a message
        self, link: Link, messages: list[n.NodeMessage]
    ) -> bool:
        """Take in one frame: all of its reports become one input.

        Returns:
            Whether the connection is to end.
        """
        node = link.node
        reports: list[n.AttemptMessage | StepReport] = []
        over = False
        for message in messages:
            match message:
                case (
                    n.Started()
                    | n.Prepared()
                    | n.Exited()
                    | n.Checkpointed()
                    | n.CheckpointFailed()
                    | n.TrainingProgress()
                    | StepRequest()
                    | StepFailed()
                    | LoginRequest()
                ):
                    reports.append(message)
                case n.KnownAttempts():
                    over = self.recovery is None or await self.recovery.take_known(node, message)
                case n.Heartbeat() | Uses():
                    await self._take_load(node, message)
                case CodeWanted():
                    if self.code is not None:
                        self.code.give(self._engine.head.state, node, message, link.send)
                case n.OutputRead():
                    self._answer_request(node, message)
                case n.Probed():
                    await self._engine.tell(partial(self._probed, node, message))
                case n.Renew():
                    self._renew(link, message)
                case n.Pong():
                    link.on_pong(message)
                case SessionFailed():
                    self.on_session_failed(node, message)
                case n.UnknownAttempt():
                    self._engine.head.oddities["unknown_attempt"] += 1
                case Unreadable():
                    self._unreadables.set_aside(node, message)
                case n.Hello() | n.Register():
                    raise msgspec.ValidationError("a second handshake")
                case _:
                    assert_never(message)
        if reports:
            await self._engine.tell(lambda now_s: self._report(node, reports, now_s))
        return over

    def _renew(self, link: Link, message: n.Renew) -> None:
        """Renew a node's leases, if the head knows that it is connected.

        Else it may be counting by when the leases that it knows have expired.
        """
        node = self._engine.head.state.nodes.get(link.node)
        if node is None or node.state is not NodeState.UP or self._links.get(link.node) is not link:
            self._engine.head.oddities["lease_not_renewed"] += 1
            return
        link.send(n.Renewed(number=message.number))

    def _answer_request(self, node: str, message: n.OutputRead) -> None:
        waiting = self._requests.pop((node, message.request), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def _take_load(self, node: str, message: n.Heartbeat | Uses) -> None:
        """Let the head hear how busy a node is, and what its attempts use."""
        head = self._engine.head
        if isinstance(message, Uses):
            note_uses(head.state, node, message, self._clock.wall_s())
            return
        head.note_load(node, message.load, self._clock.wall_s(), message.usage)
        note_condition(head.state, node, message)
        if head.state.dirty.any:  # jobs may have waited for a GPU that others use less now
            await self._engine.tell(lambda _: ())  # a cycle follows
        await self._take_problem(node, message.problem)

    async def _take_problem(self, node: str, problem: str) -> None:
        """Let the head hear that a node takes no new jobs, or does again."""
        head = self._engine.head
        known = head.state.nodes.get(node)
        if known is not None and known.problem != problem[:MAX_PROBLEM]:
            await self._engine.tell(lambda now_s: (head.has_problem(node, problem, now_s),))

    def _report(
        self, node: str, reports: list[n.AttemptMessage | StepReport], now_s: float
    ) -> Sequence[Step]:
        return [self._engine.head.reported(node, report, now_s) for report in reports]

    def _probed(self, node: str, message: n.Probed, now_s: float) -> Sequence[Step]:
        return [self._engine.head.probed(node, message, now_s)]

    # --- output of running jobs ---

    def link(self, node: str) -> Link | None:
        """Return the connection of a node that is there and obeys."""
        link = self._links.get(node)
        return None if link is None or link.surveyed else link

    async def read_output(self, node: str, order: n.ReadOutput) -> n.OutputRead:
        """Have a node read a part of a job's output, or append to it; the request is numbered here.

        Raises:
            BadStateError: the node is not connected or does not answer.
        """
        link = self._links.get(node)
        if link is None:
            raise BadStateError(
                f"node {node}, where the output is, is not connected", hint="see gnodes"
            )
        number, self._next_request = self._next_request, self._next_request + 1
        future: asyncio.Future[n.OutputRead] = asyncio.get_running_loop().create_future()
        self._requests[node, number] = future
        link.send(msgspec.structs.replace(order, request=number))
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise BadStateError(f"node {node} did not answer in {READ_TIMEOUT_S:.0f} s") from None
        finally:
            self._requests.pop((node, number), None)

    async def close(self) -> None:
        """Close all connections; the nodes go on by themselves."""
        for link in list(self._links.values()):
            with contextlib.suppress(ConnectionError, GschedError):
                await link.socket.close()


async def _log_older(text: str) -> None:
    log.critical("%s", text)
