"""Connections that nodes open for one purpose each: a terminal, or a user's command on their host.

The head gives the node a number that nobody else knows, over the node channel, and the node
connects with it (`gsched.protocol.sessions`). So nothing that is large or slow passes through the
node channel.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from aiohttp import WSMsgType, web

from gsched.clock import Clock
from gsched.errors import BadStateError
from gsched.logs import Complaints
from gsched.model.limits import MAX_WORD
from gsched.protocol.sessions import MAX_MESSAGE_BYTES, READY, SessionFailed
from gschedd.http.door import Visitor
from gschedd.http.handshake import Handshake, HandshakeRefusedError

log = logging.getLogger("gschedd.sessions")

HANDSHAKE_S: Final = 5.0


class Leg:
    """A node's connection for one session.

    Attributes:
        over: set when it is needed no longer.
    """

    def __init__(self, node: str, channel: web.WebSocketResponse) -> None:
        self.node, self.channel = node, channel
        self.over = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        """Pass a frame on; its end is reported by `receive`."""
        with contextlib.suppress(ConnectionError):
            await self.channel.send_bytes(frame)

    async def receive(self) -> bytes:
        """Return the next frame; empty: the node has closed."""
        message = await self.channel.receive()
        if message.type is not WSMsgType.BINARY:
            return b""
        frame: bytes = message.data
        return frame


class NodeLegs:
    """All of them.

    Args:
        handshake: with the node, on each connection.
        oddities: counted messages that did not fit, by name.
    """

    def __init__(self, handshake: Handshake, clock: Clock, oddities: Counter[str]) -> None:
        self._handshake = handshake
        self._complaints = Complaints(log, clock)
        self._oddities = oddities
        self._awaited: dict[str, tuple[str, asyncio.Future[Leg]]] = {}
        self._open: set[Leg] = set()

    @contextlib.contextmanager
    def awaited(self, node: str) -> Iterator[tuple[str, asyncio.Future[Leg]]]:
        """Yield the number of a session and its connection, which the node may open meanwhile.

        Raises:
            BadStateError: by awaiting the connection: the node cannot open it.
        """
        session = secrets.token_hex(16)
        future: asyncio.Future[Leg] = asyncio.get_running_loop().create_future()
        self._awaited[session] = (node, future)
        try:
            yield session, future
        finally:
            self._awaited.pop(session, None)

    def failed(self, node: str, failure: SessionFailed) -> None:
        """Take in that a node cannot open a connection."""
        awaited = self._awaited.get(failure.session)
        if awaited is not None and awaited[0] == node and not awaited[1].done():
            awaited[1].set_exception(BadStateError(failure.message[: 2 * MAX_WORD]))

    def node_lost(self, node: str) -> None:
        """End the connections of a node that is not connected any more."""
        for leg in tuple(self._open):
            if leg.node == node:
                abort(leg.channel)

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """``GET /v1/session`` on the node port: the connection for one session."""
        channel = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await channel.prepare(request)
        source = request.remote or "unknown"
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                hello = await self._handshake.shake_session(channel, request.transport)
                awaited = self._awaited.pop(hello.session, None)
                ready = await channel.receive()
                if ready.type is not WSMsgType.BINARY or ready.data != READY:
                    raise ValueError("something else than a session came")  # noqa: TRY301 - as any other odd frame
        except HandshakeRefusedError as error:
            self._oddities["peer_refused"] += 1
            self._complaints.say(source, f"the connection for a session is refused: {error}")
        except (TimeoutError, ValueError, msgspec.DecodeError, RecursionError) as error:
            self._complaints.say(source, f"no connection for a session: {str(error) or 'too slow'}")
        else:
            if awaited is not None and awaited[0] == hello.node and not awaited[1].done():
                if isinstance(request.protocol, Visitor):
                    request.protocol.prove()
                leg = Leg(hello.node, channel)
                self._open.add(leg)
                awaited[1].set_result(leg)
                try:
                    await leg.over.wait()
                finally:
                    self._open.discard(leg)
        await channel.close()
        return channel


def abort(channel: web.WebSocketResponse) -> None:
    """End a connection at once: a closing handshake would wait for a peer that may hang."""
    transport = channel._req.transport if channel._req else None  # noqa: SLF001 # aiohttp has no public abort
    if transport is not None:
        transport.abort()
