"""The node channel: one WebSocket for each node, from handshake to disconnection."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import assert_never

import msgspec
from aiohttp import WSMsgType, web

from gsched.clock import Clock
from gsched.errors import TryAgainError
from gsched.logs import Complaints
from gsched.model.machine import is_identity
from gsched.model.states import NodeState
from gsched.pki.names import Role
from gsched.protocol import node as n
from gsched.protocol.code import CodeWanted
from gsched.protocol.deliveries import DeliverPiece, FileDone, StagedWanted
from gsched.protocol.hosts import HostReport
from gsched.protocol.job_steps import LoginRequest, StepFailed, StepReport, StepRequest
from gsched.protocol.joining import CertificateState, CertificateWanted
from gsched.protocol.reading import named, read_from_node
from gsched.protocol.relays import RelayRequest
from gsched.protocol.sessions import OpenSession, SessionFailed
from gsched.protocol.settings import SettingsRead
from gsched.protocol.unreadable import Unreadable
from gsched.protocol.uses import Uses
from gschedd.core.attempts.idle_gpus import concerned
from gschedd.core.nodes.live import MAX_PROBLEM, note_condition, note_uses
from gschedd.core.state.step import Step
from gschedd.engine.loop import Engine
from gschedd.http.code import CodeSnapshots
from gschedd.http.deliveries import Deliveries
from gschedd.http.door import Visitor
from gschedd.http.handshake import (
    Handshake,
    HandshakeRefusedError,
    HostSocket,
    Introduced,
    close_badly,
    revoked_words,
)
from gschedd.http.hosts import Hosts
from gschedd.http.joining import Joining
from gschedd.http.legs import NodeLegs
from gschedd.http.links import PING_TIMEOUT_RATIO, Link, Links, stop
from gschedd.http.safemode import SafeMode
from gschedd.http.witnesses import Witnesses, claim_of

log = logging.getLogger("gschedd.nodes")

HANDSHAKE_TIMEOUT_S = 5.0


class NodeChannel:
    """Lets nodes in, and takes in what they send.

    Args:
        links: the nodes that are connected.
        safe_mode: takes what nodes know better than the database.
        on_fenced: takes the reason why another head orders the nodes now.
        timeout_s: a node that says nothing for so long is disconnected.
    """

    def __init__(  # noqa: PLR0913 # what nodes say is for all of these
        self,
        *,
        engine: Engine,
        links: Links,
        clock: Clock,
        handshake: Handshake,
        witnesses: Witnesses,
        safe_mode: SafeMode,
        legs: NodeLegs,
        hosts: Hosts,
        code: CodeSnapshots,
        deliveries: Deliveries,
        joining: Joining,
        on_fenced: Callable[[str], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._links = links
        self._clock = clock
        self._complaints = Complaints(log, clock)
        self._handshake = handshake
        self._witnesses = witnesses
        self._safe_mode = safe_mode
        self._legs = legs
        self._hosts = hosts
        hosts.introduce, hosts.joining = self.introduced, joining
        hosts.took_file = deliveries.took
        self._deliveries = deliveries
        self._code = code
        self._joining = joining
        self._on_fenced = on_fenced
        self._ping_s = timeout_s / PING_TIMEOUT_RATIO
        self._calls = 0
        self._newest: dict[str, int] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return all routes of hosts, on the port and the socket for nodes."""
        return [
            web.get("/v1/node", self.handle),
            web.get("/v1/login", self._hosts.handle),
            web.get("/v1/session", self._legs.handle),
            *self._joining.node_routes(),
        ]

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one node from handshake to disconnection."""
        self._calls += 1
        call = self._calls
        socket = HostSocket(heartbeat=self._ping_s, max_msg_size=n.MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        try:
            who = await self.introduced(socket, request)
            if who is not None:
                link = Link(who, socket, call=call)
                if await self._admit(link, who.registration):
                    await self._serve(link)
        finally:
            await socket.release(request)
        return socket

    async def introduced(
        self, socket: web.WebSocketResponse, request: web.Request
    ) -> Introduced | None:
        """Return who has called, or None for who was not let in."""
        source = request.remote or "unknown"
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                role: Role = "login" if request.path == "/v1/login" else "node"
                who = await self._handshake.shake(socket, request.transport, role)
        except HandshakeRefusedError as error:
            self._engine.head.oddities["peer_refused"] += 1
            self._complaints.say(source, f"a node is refused: {error.message}")
            refused = n.Refused(message=error.message, fatal=error.fatal)
            with contextlib.suppress(ConnectionError):
                await socket.send_str(n.encode([refused]).decode())
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
        if link.node in self._joining.members.logins:
            await link.refuse(
                f"{link.node} is a login host of this cluster: give the node another name, or free "
                f"this one with gnodes revoke {link.node} and join again",
                fatal=True,
            )
            return False
        if not (
            await self._is_itself(link, message)
            and await self._is_trusted(link, message)
            and await self._is_free(link)
        ):
            return False
        if not await self._is_newest(link):  # it may have dialled again while we waited
            return False
        if self._handshake.peers.is_revoked(link.peer):
            await link.refuse(revoked_words(link.peer), fatal=True)
            return False
        self._links.connected[link.node] = link
        if not self._greet(link, message) and not head.safe_mode:
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
            self._witnesses.note_obeyed(link.node)
        self._joining.welcome(link)
        note_condition(self._engine.head.state, link.node, message)
        self._links.unreadables.log_reports(link.node, link.incomplete, ())
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
        present = self._links.connected.get(link.node)
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

    def _greet(self, link: Link, message: n.Register) -> bool:
        """Let a node in; return False if it is asked what it knows instead."""
        question = self._safe_mode.question(link.node, late=link.late)
        if question is not None:
            link.surveyed = True
            link.send(question)
            return False
        now = self._witnesses.now
        link.witnessed = self._links.newest
        link.send(
            n.Welcome(
                cluster=self._witnesses.cluster,
                epoch=now.number,
                epoch_id=now.id,
                seq=self._links.newest[0],
                next_job=self._links.newest[1],
                heads=self._engine.head.settings.config.head.addresses,
                packs=True,
            )
        )
        self._joining.node_settings.offer(link, message.config)  # before the launches that follow
        return True

    async def _is_trusted(self, link: Link, message: n.Register) -> bool:
        """Return whether a node may be let in by what it knows of heads; refuse it otherwise."""
        head = self._engine.head
        ruling = self._witnesses.rule(
            link.node,
            claim_of(message),
            known=head.state.nodes.keys(),
            reached=(self._links.newest[0], head.state.next_job),
            safe_mode=bool(head.safe_mode),
        )
        if ruling.fenced:
            await self._on_fenced(ruling.fenced)
        elif ruling.older:
            await self._safe_mode.on_older_head(ruling.older)
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
                    reason, is_fault = f"a {frame.type.name} frame", True
                    break
                messages, incomplete, unreadable = read_from_node(frame.data)
                if incomplete or unreadable:
                    self._links.unreadables.log_reports(link.node, incomplete, unreadable)
                if await self._hear(link, messages):
                    reason = "all that it knows was taken back: it is to come again"
                    break
        except (msgspec.DecodeError, RecursionError) as error:
            reason, is_fault = f"unreadable message: {error}", True
        finally:
            link.end()
            await stop(sender)
            if is_fault:
                await close_badly(link.socket, reason)
            await link.socket.close()
            await self._part(link, reason)

    async def _part(self, link: Link, reason: str) -> None:
        """Note that a node has no connection any more, unless another link has taken its place."""
        if self._links.connected.get(link.node) is not link:
            return
        del self._links.connected[link.node]
        self._legs.node_lost(link.node)
        log.warning("%s disconnected: %s", link.node, reason)
        head = self._engine.head
        await self._engine.tell(lambda now_s: (head.disconnected(link.node, reason, now_s),))

    def _cannot_send(self, node: str, message: n.HeadMessage, reason: str) -> None:
        """Set a message aside that a node could not read, and answer whoever waits for it."""
        if isinstance(message, OpenSession):
            self._legs.failed(node, SessionFailed(session=message.session, message=reason))
        elif isinstance(message, n.ReadOutput):
            self._links.answer_request(node, n.OutputRead(request=message.request, error=reason))
        self._links.unreadables.set_aside(node, named(message, reason))

    async def _hear(  # noqa: C901, PLR0912, PLR0915 # one line a message
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
                    if isinstance(message, n.Exited):
                        self._hosts.relays.note_end(node, message)
                    reports.append(message)
                case n.KnownAttempts():
                    over = await self._safe_mode.take_known(node, message)
                case n.Heartbeat() | Uses():
                    await self._take_load(node, message)
                case CodeWanted():
                    self._code.give(self._engine.head.state, node, message, link.send)
                case n.OutputRead() | SettingsRead():
                    self._links.answer_request(node, message)
                case DeliverPiece():
                    self._deliveries.take(node, message, link.send)
                case StagedWanted():
                    self._deliveries.fetch(node, message, link.pass_on)
                case FileDone():
                    self._deliveries.took(node, message)
                case n.Probed():
                    await self._engine.tell(partial(self._probed, node, message))
                case n.Renew():
                    self._renew(link, message)
                case CertificateState():
                    link.certificate = message
                case CertificateWanted():
                    await self._joining.renew(link, message)
                case n.Pong():
                    link.on_pong(message)
                case SessionFailed():
                    self._legs.failed(node, message)
                case HostReport():
                    self._hosts.note("node", node, message)
                case RelayRequest():
                    self._hosts.relays.take(link, message)
                case n.UnknownAttempt():
                    self._engine.head.oddities["unknown_attempt"] += 1
                case Unreadable():
                    self._links.unreadables.set_aside(node, message)
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
        if (
            node is None
            or node.state is not NodeState.UP
            or self._links.connected.get(link.node) is not link
        ):
            self._engine.head.oddities["lease_not_renewed"] += 1
            return
        link.send(n.Renewed(number=message.number))

    async def _take_load(self, node: str, message: n.Heartbeat | Uses) -> None:
        """Let the head hear how busy a node is, and what its attempts use."""
        head = self._engine.head
        if isinstance(message, Uses):
            note_uses(head.state, node, message, self._clock.wall_s())
            jobs = concerned(head.state, head.settings, message)
            if jobs:
                await self._engine.tell(lambda now_s: (head.answer_idle_gpus(jobs, now_s),))
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
