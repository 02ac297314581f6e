"""Hosts of the cluster: login hosts, which run no jobs, and what every host reports of itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, cast

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from gsched.clock import Clock
from gsched.host_report import host_report
from gsched.logs import Complaints
from gsched.model.states import NodeState
from gsched.protocol import node as n
from gsched.protocol.deliveries import FileDone
from gsched.protocol.hosts import HostList, HostReport, HostRow
from gsched.protocol.joining import CertificateState, CertificateWanted
from gsched.protocol.reading import read_from_node
from gsched.protocol.relays import RelayRequest
from gsched.protocol.sessions import SessionFailed
from gsched.version import VERSION
from gschedd.core.head import Head
from gschedd.http.answers import answer_in_pieces
from gschedd.http.callers import Callers
from gschedd.http.handshake import HostSocket, Introduced, close_badly
from gschedd.http.joining import Joining
from gschedd.http.legs import NodeLegs
from gschedd.http.links import PING_TIMEOUT_RATIO, Link, stop
from gschedd.http.relays import Relays
from gschedd.http.witnesses import Witnesses

log = logging.getLogger("gschedd.nodes")

#: Login hosts that are remembered when they have gone.
LOGINS_MOST: Final = 1000
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024  # a piece of a user's file, as base64


class _Login(Struct):
    """A login host that is connected, or was."""

    registration: n.Register
    since_s: float
    link: Link | None


class Hosts:
    """All of them.

    Attributes:
        logins: login hosts that are connected, or were, by name.
        relays: the connections of their users.
        joining: certificates of login hosts.
        introduce: returns who has connected, or None for who was not let in.
        took_file: takes the answer of a login host about a file of a user.
    """

    joining: Joining
    took_file: Callable[[str, FileDone], None]
    introduce: Callable[[web.WebSocketResponse, web.Request], Awaitable[Introduced | None]]

    def __init__(
        self, head: Head, callers: Callers, legs: NodeLegs, witnesses: Witnesses, clock: Clock
    ) -> None:
        self._head = head
        self._callers = callers
        self._legs = legs
        self._witnesses = witnesses
        self._clock = clock
        self.relays = Relays(legs, head, callers.names, clock)
        self._complaints = Complaints(log, clock)
        self.logins: dict[str, _Login] = {}
        self._reports: dict[tuple[str, str], tuple[float, HostReport]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of users."""
        return [web.get("/v1/hosts", self.give)]

    def note(self, role: str, name: str, report: HostReport) -> None:
        """Keep what a host reports."""
        self._reports[role, name] = (self._clock.wall_s(), report)

    async def give(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/hosts``."""
        self._callers.of(request)
        own = await asyncio.to_thread(host_report, self._clock.wall_s())
        self.note("head", self._head.settings.server, own)
        rows = self._rows()
        if request.query.get("names") != "1":
            rows = (msgspec.structs.replace(row, users={}, groups={}, mounts=None) for row in rows)

        def reply(rows: Sequence[msgspec.Raw]) -> HostList:
            hosts = cast("tuple[HostRow, ...]", tuple(rows))
            server = self._head.settings.server
            return HostList(server=server, now_s=self._clock.wall_s(), hosts=hosts)

        return await answer_in_pieces(rows, reply)

    def _rows(self) -> Iterator[HostRow]:
        yield self._with_report(
            HostRow(name=self._head.settings.server, role="head", version=VERSION)
        )
        for name, node in sorted(self._head.state.nodes.items()):
            yield self._with_report(
                HostRow(
                    name=name,
                    role="node",
                    connected=node.state is NodeState.UP,
                    address=node.address,
                    version=node.version,
                    since_s=node.since_s,
                )
            )
        for name, login in sorted(self.logins.items()):
            yield self._with_report(
                HostRow(
                    name=name,
                    role="login",
                    connected=login.link is not None,
                    address=login.registration.address,
                    version=login.registration.gnode_version,
                    since_s=login.since_s,
                )
            )

    def _with_report(self, row: HostRow) -> HostRow:
        found = self._reports.get((row.role, row.name))
        if found is None:
            return row
        at_s, report = found
        return msgspec.structs.replace(
            row,
            clock_s=report.sent_s - at_s,
            zone=report.zone,
            users=report.users,
            groups=report.groups,
            mounts=report.mounts,
        )

    # --- login hosts ---

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """``GET /v1/login`` on the node port: a login host, from handshake to disconnection."""
        socket = HostSocket(
            heartbeat=self._head.settings.config.head.node_timeout_s / PING_TIMEOUT_RATIO,
            max_msg_size=MAX_FRAME_BYTES,
            compress=False,
        )
        await socket.prepare(request)
        try:
            await self._serve_host(socket, request)
        finally:
            await socket.release(request)
        return socket

    async def _serve_host(self, socket: HostSocket, request: web.Request) -> None:
        who = await self.introduce(socket, request)
        if who is None:
            return
        link = Link(who, socket, call=0)
        refusal = await self._refusal(link)
        if refusal:
            self._complaints.say(link.node, f"login host {link.node} is refused: {refusal}")
            await link.refuse(refusal, fatal=True)
            return
        if len(self.logins) >= LOGINS_MOST:
            gone = [name for name, each in self.logins.items() if each.link is None]
            for name in gone:
                del self.logins[name]
        await self.joining.members.note_login(link.node)
        login = _Login(registration=who.registration, since_s=self._clock.wall_s(), link=link)
        self.logins[link.node] = login
        log.info("login host %s is connected", link.node)
        now = self._witnesses.now
        link.send(
            n.Welcome(
                cluster=self._witnesses.cluster,
                epoch=now.number,
                epoch_id=now.id,
                heads=self._head.settings.config.head.addresses,
                packs=True,
            )
        )
        self.joining.welcome(link)
        await self._serve(link)
        if self.logins.get(link.node) is login:
            login.link, login.since_s = None, self._clock.wall_s()
            self._legs.node_lost(link.node)

    def connected(self) -> list[Link]:
        """Return the login hosts that are connected."""
        return [each.link for each in self.logins.values() if each.link is not None]

    async def _refusal(self, link: Link) -> str:
        """Return why a login host is not let in; empty: it is."""
        if link.node in self._head.state.nodes:
            return (
                f"{link.node} is a node of this cluster: give the login host another name, or "
                f"remove the node with gnodes remove {link.node}"
            )
        present = self.logins.get(link.node)
        if present is None or present.link is None:
            return ""
        if await present.link.answers():
            return f"another login host {link.node} is connected, and answers"
        present.link.abort()
        return ""

    async def _serve(self, link: Link) -> None:
        sender = asyncio.create_task(link.sender(lambda *_: None))
        reason = ""
        try:
            async for frame in link.socket:
                if frame.type is not WSMsgType.BINARY:
                    reason = f"a {frame.type.name} frame"
                    break
                messages, _, unreadable = read_from_node(frame.data)
                reason = unreadable[0].reason if unreadable else await self._take(link, messages)
                if reason:
                    break
        except (msgspec.DecodeError, RecursionError) as error:
            reason = str(error)
        finally:
            link.end()
            await stop(sender)
            if reason:
                self._head.oddities["peer_refused"] += 1
                await close_badly(link.socket, reason)
            await link.socket.close()
            log.warning("login host %s disconnected: %s", link.node, reason or "closed")

    async def _take(self, link: Link, messages: list[n.NodeMessage]) -> str:
        """Take in what a login host sends; return what is wrong with it."""
        for message in messages:
            match message:
                case RelayRequest():
                    self.relays.take(link, message, is_login=True)
                case SessionFailed():
                    self._legs.failed(link.node, message)
                case HostReport():
                    self.note("login", link.node, message)
                case FileDone():
                    self.took_file(link.node, message)
                case CertificateState():
                    link.certificate = message
                case CertificateWanted():
                    await self.joining.renew(link, message)
                case n.Pong():
                    link.on_pong(message)
                case _:
                    return f"a login host must not send {type(message).__name__}"
        return ""
