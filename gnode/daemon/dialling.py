"""Connections of gnode's own to the head, each for one session: a terminal, or a user's command.

The head has given the session's number over the node channel: see `gsched.protocol.sessions`.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
import msgspec

from gnode.daemon.parts import HostIdentity
from gnode.daemon.peer import NotTheHeadError, check_directory, check_peer
from gsched.errors import ConfigError
from gsched.pki.names import CertificateError
from gsched.protocol.node import (
    PROTOCOL_VERSION,
    Challenge,
    HeadMessage,
    Hello,
    decode_from_head,
    encode,
)
from gsched.protocol.sessions import MAX_MESSAGE_BYTES, READY

CONNECT_TIMEOUT_S: Final = 10.0
HANDSHAKE_TIMEOUT_S: Final = 10.0


class NoConnectionError(Exception):
    """The head refuses the connection; the message says so."""


#: Errors of a connection that broke.
BROKEN: Final = (
    aiohttp.ClientError,
    CertificateError,
    ConfigError,
    NotTheHeadError,
    OSError,
    TimeoutError,
)


class HeadConnection:
    """One connection, after the handshake."""

    def __init__(self, channel: aiohttp.ClientWebSocketResponse) -> None:
        self._channel = channel

    async def send(self, content: bytes) -> None:
        """Send a frame."""
        await self._channel.send_bytes(content)

    async def receive(self) -> bytes:
        """Return the next frame; empty: the head has closed."""
        message = await self._channel.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return b""
        content: bytes = message.data
        return content


async def carry(*copies: Coroutine[Any, Any, None]) -> None:
    """Run the copies of both directions of a connection until one of them ends."""
    tasks = {asyncio.create_task(each) for each in copies}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HeadDialler:
    """Opens them, as this node daemon."""

    def __init__(self, own: HostIdentity) -> None:
        self._heads, self._path, self._trusted = own.heads, own.heads.socket, own.trusted
        self._node, self._certificates = own.node, own.certificates

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
            client.ws_connect(
                f"{'ws://head' if self._path else f'wss://{self._heads.current}'}/v1/session",
                max_msg_size=MAX_MESSAGE_BYTES,
                compress=0,
                ssl=True if self._path else self._certificates.context(),
            ) as channel,
        ):
            if self._path:
                check_peer(channel.get_extra_info("socket"), self._trusted)
            else:
                self._certificates.check_head(channel.get_extra_info("peercert"))
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await self._shake(channel, session)
            yield HeadConnection(channel)

    async def _shake(self, channel: aiohttp.ClientWebSocketResponse, session: str) -> None:
        """Say which session this connection is for.

        Raises:
            NoConnectionError: the head refuses it.
        """
        hello = Hello(version=PROTOCOL_VERSION, node=self._node, session=session)
        await channel.send_str(encode([hello]).decode())
        answer = await channel.receive()
        messages: Sequence[HeadMessage] = ()
        if answer.type is aiohttp.WSMsgType.BINARY:
            with suppress(msgspec.MsgspecError, RecursionError):
                messages = decode_from_head(answer.data)
        if not isinstance(messages[0] if len(messages) == 1 else None, Challenge):
            raise NoConnectionError(f"the head refuses the connection of node {self._node}")
        await channel.send_bytes(READY)
