"""Who is at the other end of a connection of nodes, and the node channel's hello and registration.

`Peers.of` is the only place that says who a connection belongs to: by its certificate over TLS, by
the kernel on a Unix socket. See docs/adr/0031-tls.md.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Struct

from gsched.errors import forget_frames
from gsched.model.machine import NODE_NAME_RULE, is_node_name
from gsched.pki.names import CertificateError, Role, identity_of
from gsched.protocol import node as n
from gsched.protocol.reading import Salvaged, read_from_node
from gschedd.http.witnesses import Witnesses

MAX_CLOSE_BYTES: Final = 120  # of the reason in a closing frame, which WebSocket limits to 123
MAX_HELLO: Final = 4096  # characters that are decoded before anything is proven
HELLO_S: Final = 5.0  # for the first frame of a node of an older version
_JOIN: Final = "gsched token create on the head, then gsched join on this host"

_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)
M = TypeVar("M", n.Hello, n.Register)


class HandshakeRefusedError(Exception):
    """The node is told why; ``fatal`` means that it need not try again soon."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.message, self.fatal = message, fatal


class Names(Protocol):
    """A transport, which knows the names of its ends."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what asyncio knows of a connection."""


class Peer(Struct, frozen=True, kw_only=True):
    """Who is at the other end of a connection: a host of the cluster, in one role.

    Attributes:
        name: of the host; empty: a process of root's or the head's own user on this machine, which
            may act for any node of it.
        begins_s: of its certificate, seconds since the epoch.
    """

    role: Role
    name: str
    begins_s: float = 0.0

    def check(self, role: Role, name: str) -> None:
        """Check that the peer may act as a host in a role.

        Raises:
            HandshakeRefusedError: its certificate is of another role or name.
        """
        if not self.name or (self.role, self.name) == (role, name):
            return
        raise HandshakeRefusedError(
            f"the certificate of this host is of {self.role} {self.name}, but it connects as "
            f"{role} {name}: correct its name, or join again: {_JOIN}",
            fatal=True,
        )


class Peers:
    """Says who is at the other end of a connection of the port, or the socket, for nodes.

    Every handler there calls `of` first, and then `Peer.check` with the role that it serves and the
    name that the request states; or acts for `Peer.name` alone. Nothing in a request says who sends
    it. A connection that lasts is ended once `is_revoked` is true of its peer: see `Links.end`.

    Args:
        cluster: the cluster's id.
        is_revoked: gets role, name and the beginning of a certificate.
    """

    def __init__(self, cluster: str, is_revoked: Callable[[str, str, float], bool]) -> None:
        self._cluster = cluster
        self._is_revoked = is_revoked

    def of(self, transport: Names | None) -> Peer:
        """Return the peer of a connection.

        Raises:
            HandshakeRefusedError: nobody who may connect; the message is for the peer.
        """
        if transport is None:
            raise HandshakeRefusedError("the connection has ended", fatal=False)
        connection = transport.get_extra_info("socket")
        if getattr(connection, "family", None) == socket.AF_UNIX:
            _check_user(connection)
            return Peer(role="node", name="")
        certificate = transport.get_extra_info("peercert")
        if not isinstance(certificate, dict) or not certificate:
            raise HandshakeRefusedError(f"this host has no certificate: {_JOIN}", fatal=False)
        try:
            identity = identity_of(certificate)
        except CertificateError as error:
            raise HandshakeRefusedError(str(error), fatal=True) from None
        if identity.cluster != self._cluster:
            raise HandshakeRefusedError(
                f"the certificate of this host is of cluster {identity.cluster}, this head is that "
                f"of {self._cluster}: join again: {_JOIN}",
                fatal=True,
            )
        peer = Peer(role=identity.role, name=identity.name, begins_s=identity.begins_s)
        if self.is_revoked(peer):
            raise HandshakeRefusedError(revoked_words(peer), fatal=True)
        return peer

    def is_revoked(self, peer: Peer) -> bool:
        """Return whether the peer's certificate was revoked, perhaps since it has connected."""
        return bool(peer.name) and self._is_revoked(peer.role, peer.name, peer.begins_s)


def revoked_words(peer: Peer) -> str:
    """Return why a peer is refused whose certificate was revoked."""
    return f"the certificate of {peer.role} {peer.name} was revoked: if it may come back, {_JOIN}"


class Introduced(Struct, frozen=True, kw_only=True):
    """A node that may connect, and what it has said of itself.

    Attributes:
        peer: who it is by its certificate or the kernel.
        incomplete: what the registration lacks, as it could not be read.
    """

    node: str
    peer: Peer
    registration: n.Register
    incomplete: tuple[Salvaged, ...] = ()


class Handshake:
    """Shakes hands with nodes.

    Args:
        peers: says who has connected.
        witnesses: they know what the head is: its cluster and its epoch.
        refusal: returns why no node is let in now; else empty.
    """

    def __init__(
        self, *, peers: Peers, witnesses: Witnesses, refusal: Callable[[], str] = lambda: ""
    ) -> None:
        self.peers = peers
        self._witnesses = witnesses
        self._refusal = refusal

    async def shake(
        self, channel: web.WebSocketResponse, names: Names | None, role: Role = "node"
    ) -> Introduced:
        """Return who is there, in a role.

        Raises:
            HandshakeRefusedError: it is not let in, for a reason that it can be told.
            ValueError, msgspec.DecodeError, RecursionError: something else than a handshake came.
        """
        hello, peer = await self._introduce(channel, names, (role,))
        if hello.session:
            raise ValueError("the hello is that of a terminal session")
        read, incomplete, unreadable = read_from_node(await _payload(channel))
        if unreadable:
            raise ValueError(f"its registration cannot be read: {unreadable[0].reason}")
        return Introduced(
            node=hello.node,
            peer=peer,
            registration=_only(read, n.Register),
            incomplete=tuple(incomplete),
        )

    async def shake_session(self, channel: web.WebSocketResponse, names: Names | None) -> n.Hello:
        """Return whose connection for a terminal session it is.

        Raises:
            HandshakeRefusedError, ValueError, msgspec.DecodeError, RecursionError: as `shake`.
        """
        hello, _ = await self._introduce(channel, names, ("node", "login"))
        if not hello.session:
            raise ValueError("the hello names no terminal session")
        return hello

    async def _introduce(
        self, channel: web.WebSocketResponse, names: Names | None, roles: Sequence[Role]
    ) -> tuple[n.Hello, Peer]:
        hello = _only(n.decode_from_node(await _text(channel)), n.Hello)
        if hello.version != n.PROTOCOL_VERSION:
            raise HandshakeRefusedError(
                f"this gnode speaks version {hello.version} of the node protocol, the head version "
                f"{n.PROTOCOL_VERSION}: install the same gsched on both",
                fatal=True,
            )
        if not is_node_name(hello.node):
            raise HandshakeRefusedError(
                f"the node name {hello.node[:80]!r} is not valid: {NODE_NAME_RULE}", fatal=True
            )
        if why := self._refusal():
            raise HandshakeRefusedError(why, fatal=False)
        peer = self.peers.of(names)
        peer.check(peer.role if peer.role in roles else roles[0], hello.node)
        now = self._witnesses.now
        challenge = n.Challenge(
            version=n.PROTOCOL_VERSION,
            cluster=self._witnesses.cluster,
            epoch=now.number,
            epoch_id=now.id,
        )
        await channel.send_bytes(n.encode([challenge]))
        return hello, peer


@web.middleware
async def refuse_clear_text(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Serve TLS connections only; a gnode before version 4 of the node protocol is told why."""
    if request.transport is None or request.transport.get_extra_info("ssl_object") is not None:
        return await handler(request)
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise web.HTTPUpgradeRequired(text="this port takes TLS connections only\n")
    channel = web.WebSocketResponse(max_msg_size=MAX_HELLO, compress=False)
    await channel.prepare(request)
    refused = n.Refused(
        message="this head takes nodes over TLS only. Install the head's version of gsched on this "
        f"node; then {_JOIN}. Running jobs keep running meanwhile",
        fatal=True,
    )
    with contextlib.suppress(ConnectionError, TimeoutError):
        await channel.receive(timeout=HELLO_S)
        await channel.send_str(n.encode([refused]).decode())
        await channel.close()
    return channel


def _check_user(peer: object) -> None:
    """Refuse another user than root and our own at the other end of a Unix socket."""
    assert hasattr(peer, "getsockopt"), "it is a socket of asyncio"
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid = int(_UCRED.unpack(raw)[1])
    if uid not in {0, os.geteuid()}:
        raise HandshakeRefusedError(
            f"a gnode of uid {uid} is refused: on this socket it must be root's or of uid "
            f"{os.geteuid()}, as the head is",
            fatal=True,
        )


async def _text(channel: web.WebSocketResponse) -> str:
    frame = await channel.receive()
    if frame.type is not WSMsgType.TEXT or not isinstance(frame.data, str):
        raise ValueError(f"a hello as text expected, got a {frame.type.name} frame")
    if len(frame.data) > MAX_HELLO:
        raise ValueError(f"a hello of {len(frame.data)} characters, {MAX_HELLO} are the limit")
    return frame.data


async def _payload(channel: web.WebSocketResponse) -> bytes:
    frame = await channel.receive()
    if frame.type is not WSMsgType.BINARY or not isinstance(frame.data, bytes):
        raise ValueError(f"a registration expected, got a {frame.type.name} frame")
    return frame.data


def _only(messages: list[n.NodeMessage], kind: type[M]) -> M:
    """Return the one message of a frame, which must be of this kind."""
    if len(messages) != 1 or not isinstance(messages[0], kind):
        raise ValueError(f"{kind.__name__} expected, got something else")
    return messages[0]


class HostSocket(web.WebSocketResponse):
    """The WebSocket of a node or a login host, which is pinged.

    aiohttp renews the timer of the next ping also for data that comes after the end. The timer then
    keeps all that belongs to the connection until a collection of garbage no longer looks at it.
    """

    def _on_data_received(self) -> None:
        if not self.closed:
            super()._on_data_received()

    async def release(self, request: web.Request) -> None:
        """End the timer of a connection that was lost, and forget where its errors were raised."""
        if request.transport is None:
            await self.close(drain=False)
        forget_frames(self.exception())


async def close_badly(socket: web.WebSocketResponse, why: str) -> None:
    """Close a connection on which something came that must not; the node's log says why."""
    with contextlib.suppress(ConnectionError):
        await socket.close(
            code=WSCloseCode.POLICY_VIOLATION, message=why.encode()[:MAX_CLOSE_BYTES]
        )
