"""Connections of gnode's own to the head, each for one session: a terminal, or a user's command.

The head has given the session's number over the node channel: see `gsched.protocol.sessions`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from gnode.daemon.parts import HostIdentity
from gnode.daemon.peer import NotTheHeadError, check_directory, check_peer, socket_path
from gsched.protocol.endpoint import endpoint
from gsched.protocol.node import PROTOCOL_VERSION, Challenge, Hello, decode_from_head, encode
from gsched.protocol.sealing import (
    NONCE_BYTES,
    Opener,
    Sealer,
    SealError,
    challenge_key,
    session_keys,
)
from gsched.protocol.sessions import MAX_MESSAGE_BYTES, READY

CONNECT_TIMEOUT_S: Final = 10.0
HANDSHAKE_TIMEOUT_S: Final = 10.0


class NoConnectionError(Exception):
    """The head refuses the connection; the message says so."""


#: Errors of a connection that broke.
BROKEN: Final = (aiohttp.ClientError, NotTheHeadError, OSError, SealError, TimeoutError)


class HeadConnection:
    """One connection, after the handshake."""

    def __init__(
        self, channel: aiohttp.ClientWebSocketResponse, sealer: Sealer, opener: Opener
    ) -> None:
        self._channel, self._sealer, self._opener = channel, sealer, opener

    async def send(self, content: bytes) -> None:
        """Send a frame."""
        await self._channel.send_bytes(self._sealer.seal(content))

    async def receive(self) -> bytes:
        """Return the next frame; empty: the head has closed.

        Raises:
            SealError: it is not the head's.
        """
        message = await self._channel.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return b""
        return bytes(self._opener.open(message.data))


class HeadDialler:
    """Opens them, as this node daemon."""

    def __init__(self, own: HostIdentity) -> None:
        self._path, self._trusted = socket_path(own.head), own.trusted
        self._url = f"ws://{'head' if self._path else own.head}/v1/session"
        self._node, self._key = own.node, own.key

    @asynccontextmanager
    async def connection(self, session: str) -> AsyncIterator[HeadConnection]:
        """Yield the connection of a session.

        Raises:
            NoConnectionError, or one of `BROKEN`: there is none, or it broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        connector = aiohttp.UnixConnector(self._path) if self._path else None
        if self._path:
            check_directory(self._path, self._trusted)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as client,
            client.ws_connect(self._url, max_msg_size=MAX_MESSAGE_BYTES, compress=0) as channel,
        ):
            if self._path:
                check_peer(channel.get_extra_info("socket"), self._trusted)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                head = await self._shake(channel, session)
            yield head

    async def _shake(
        self, channel: aiohttp.ClientWebSocketResponse, session: str
    ) -> HeadConnection:
        """Prove that we know the cluster's key, and have the head prove it.

        Raises:
            SealError: it does not.
            NoConnectionError: it refuses.
        """
        introduction = Hello(
            version=PROTOCOL_VERSION,
            node=self._node,
            nonce=secrets.token_hex(NONCE_BYTES),
            here=endpoint(channel.get_extra_info("sockname")),
            there=endpoint(channel.get_extra_info("peername")),
            session=session,
        )
        hello = encode([introduction])
        await channel.send_str(hello.decode())
        challenge = await channel.receive()
        if challenge.type is not aiohttp.WSMsgType.BINARY:
            raise NoConnectionError(f"the head refuses the connection of node {self._node}")
        try:
            messages = decode_from_head(
                Opener(challenge_key(self._key, hello)).open(challenge.data)
            )
        except (msgspec.MsgspecError, RecursionError) as error:
            raise SealError(f"the challenge cannot be read: {error}") from error
        if not isinstance(messages[0] if len(messages) == 1 else None, Challenge):
            raise SealError("the head has not answered with a challenge")
        from_node, from_head = session_keys(self._key, hello, challenge.data)
        sealer = Sealer(from_node)
        await channel.send_bytes(sealer.seal(READY))
        return HeadConnection(channel, sealer, Opener(from_head))
