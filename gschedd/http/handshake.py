"""The head's side of a node's handshake: hello, challenge, registration.

What comes out of it is authentic: the node knows the cluster's key, and so does every frame that
is opened from then on. See `gsched.protocol.sealing`.
"""

import contextlib
import os
import secrets
import socket
import struct
from typing import Final, Protocol, TypeVar

from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Struct

from gsched.model.machine import NODE_NAME_RULE, is_node_name
from gsched.protocol import node as n
from gsched.protocol.endpoint import endpoint, is_on_loopback
from gsched.protocol.reading import Salvaged, read_from_node
from gsched.protocol.sealing import NONCE_BYTES, Opener, Sealer, challenge_key, session_keys
from gschedd.http.witnesses import Witnesses

MAX_CLOSE_BYTES: Final = 120  # of the reason in a closing frame, which WebSocket limits to 123
MAX_HELLO: Final = 4096  # characters that are decoded before anything is proven

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


class Introduced(Struct, frozen=True, kw_only=True):
    """A node that has proved that it knows the key, and what it has said of itself.

    Attributes:
        sealer, opener: for all further frames to and from it.
        incomplete: what the registration lacks, as it could not be read.
    """

    node: str
    registration: n.Register
    incomplete: tuple[Salvaged, ...] = ()
    sealer: Sealer
    opener: Opener


class Handshake:
    """Shakes hands with nodes.

    Args:
        key: the cluster's key.
        witnesses: they know what the head is: its cluster and its epoch.
        tunnel: whether nodes may reach loopback through a tunnel, which changes the addresses.
    """

    def __init__(self, *, key: bytes, witnesses: Witnesses, tunnel: bool) -> None:
        self._key = key
        self._witnesses = witnesses
        self._tunnel = tunnel

    async def shake(self, channel: web.WebSocketResponse, names: Names | None) -> Introduced:
        """Return who is there.

        Raises:
            HandshakeRefusedError: it is not let in, for a reason that it can be told.
            ValueError, msgspec.DecodeError, RecursionError: something else than a handshake came.
        """
        hello, sealer, opener = await self._introduce(channel, names)
        if hello.session:
            raise ValueError("the hello is that of a terminal session")
        read, incomplete, unreadable = read_from_node(opener.open(await _sealed(channel)))
        if unreadable:
            raise ValueError(f"its registration cannot be read: {unreadable[0].reason}")
        return Introduced(
            node=hello.node,
            registration=_only(read, n.Register),
            sealer=sealer,
            opener=opener,
            incomplete=tuple(incomplete),
        )

    async def shake_session(
        self, channel: web.WebSocketResponse, names: Names | None
    ) -> tuple[n.Hello, Sealer, Opener]:
        """Return whose connection for a terminal session it is; its first frame has to prove it.

        Raises:
            HandshakeRefusedError, ValueError, msgspec.DecodeError, RecursionError: as `shake`.
        """
        hello, sealer, opener = await self._introduce(channel, names)
        if not hello.session:
            raise ValueError("the hello names no terminal session")
        return hello, sealer, opener

    async def _introduce(
        self, channel: web.WebSocketResponse, names: Names | None
    ) -> tuple[n.Hello, Sealer, Opener]:
        text = await _text(channel)
        hello = _only(n.decode_from_node(text), n.Hello)
        self._check(hello, names)
        now = self._witnesses.now
        challenge = n.Challenge(
            version=n.PROTOCOL_VERSION,
            cluster=self._witnesses.cluster,
            epoch=now.number,
            epoch_id=now.id,
            nonce=secrets.token_hex(NONCE_BYTES),
        )
        plain = text.encode()
        sealed = Sealer(challenge_key(self._key, plain)).seal(n.encode([challenge]))
        from_node, from_head = session_keys(self._key, plain, sealed)
        await channel.send_bytes(sealed)
        return hello, Sealer(from_head), Opener(from_node)

    def _check(self, hello: n.Hello, names: Names | None) -> None:
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
        if names is None:
            return
        _check_user(names)
        if not self._tunnel:
            _check_ends(hello, names)


def _check_user(names: Names) -> None:
    """Refuse another user than root and our own at the other end of a Unix socket."""
    peer = names.get_extra_info("socket")
    if getattr(peer, "family", None) != socket.AF_UNIX or not hasattr(peer, "getsockopt"):
        return
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid = int(_UCRED.unpack(raw)[1])
    if uid not in {0, os.geteuid()}:
        raise HandshakeRefusedError(
            f"a gnode of uid {uid} is refused: on this socket it must be root's or of uid "
            f"{os.geteuid()}, as the head is",
            fatal=True,
        )


def _check_ends(hello: n.Hello, names: Names) -> None:
    """Refuse a connection over loopback whose ends are not those that the node sees.

    Somebody on this machine is between them, who can read and hold back what is said. Beyond
    loopback addresses may be translated on the way, so there they prove nothing.
    """
    here = endpoint(names.get_extra_info("sockname"))
    there = endpoint(names.get_extra_info("peername"))
    if is_on_loopback(here) and (hello.there, hello.here) != (here, there):
        raise HandshakeRefusedError(
            f"this node has dialled {hello.there or 'a Unix socket'}, but the head got its call on "
            f"{here}: something is between them; if it is a tunnel of yours, set "
            "head.node_tunnel = true",
            fatal=True,
        )


async def _text(channel: web.WebSocketResponse) -> str:
    frame = await channel.receive()
    if frame.type is not WSMsgType.TEXT or not isinstance(frame.data, str):
        raise ValueError(f"a plain hello expected, got a {frame.type.name} frame")
    if len(frame.data) > MAX_HELLO:
        raise ValueError(f"a hello of {len(frame.data)} characters, {MAX_HELLO} are the limit")
    return frame.data


async def _sealed(channel: web.WebSocketResponse) -> bytes:
    frame = await channel.receive()
    if frame.type is not WSMsgType.BINARY or not isinstance(frame.data, bytes):
        raise ValueError(f"a sealed registration expected, got a {frame.type.name} frame")
    return frame.data


def _only(messages: list[n.NodeMessage], kind: type[M]) -> M:
    """Return the one message of a frame, which must be of this kind."""
    if len(messages) != 1 or not isinstance(messages[0], kind):
        raise ValueError(f"{kind.__name__} expected, got something else")
    return messages[0]


async def close_badly(socket: web.WebSocketResponse, why: str) -> None:
    """Close a connection on which something came that must not; the node's log says why."""
    with contextlib.suppress(ConnectionError):
        await socket.close(
            code=WSCloseCode.POLICY_VIOLATION, message=why.encode()[:MAX_CLOSE_BYTES]
        )
