"""Terminal sessions: each a connection to a terminal keeper and one of its own to the head.

Frames are copied, one at a time in each direction: the next one is read when the last one was
taken, so a user who does not read makes the program wait, and nothing piles up here.
"""

import asyncio
import logging
import os
import secrets
import socket as sockets
from collections.abc import Callable

import aiohttp
import msgspec

from gnode.core.effects import ConnectTerminal
from gnode.core.task import AttemptKey
from gnode.daemon.peer import NotTheHeadError, check_directory, check_peer, socket_path
from gnode.supervisor.terminal import socket_name
from gsched import terminal as t
from gsched.clock import SystemClock
from gsched.logs import Complaints
from gsched.model.limits import MAX_SESSIONS_OF_NODE
from gsched.protocol.endpoint import endpoint
from gsched.protocol.node import (
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    NodeMessage,
    decode_from_head,
    encode,
)
from gsched.protocol.sealing import (
    NONCE_BYTES,
    Opener,
    Sealer,
    SealError,
    challenge_key,
    session_keys,
)
from gsched.protocol.sessions import (
    MAX_MESSAGE_BYTES,
    RATE_BYTES_PER_S,
    READY,
    OpenSession,
    SessionFailed,
)

log = logging.getLogger(__name__)

SHELL_START_S = 15.0  # a supervisor starts a shell within milliseconds, unless the node is swamped
LOOK_S = 0.05
CONNECT_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0


class _FailedError(Exception):
    """There is no session; the message says why."""


class NodeSessions:
    """All sessions of this node.

    Args:
        head: the head's node channel, ``host:port`` or ``unix:/path``.
        trusted: uids whose head is obeyed on a Unix socket.
        node: this node's name.
        key: the cluster's key.
        directory: of an attempt's records.
        send: sends a message on the node channel.
    """

    def __init__(
        self,
        *,
        head: str,
        trusted: frozenset[int],
        node: str,
        key: bytes,
        directory: Callable[[AttemptKey], str],
        send: Callable[[NodeMessage], None],
    ) -> None:
        self._path, self._trusted = socket_path(head), trusted
        self._url = f"ws://{'head' if self._path else head}/v1/session"
        self._node, self._key = node, key
        self._directory = directory
        self._send = send
        self._complaints = Complaints(log, SystemClock())
        self._open: set[asyncio.Task[None]] = set()

    async def connect(self, effect: ConnectTerminal) -> None:
        """Carry one session from its start to its end."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_SESSIONS_OF_NODE:
            message = f"node {self._node} has {MAX_SESSIONS_OF_NODE} sessions, the limit"
            self._send(SessionFailed(session=effect.order.session, message=message))
            return
        self._open.add(task)
        try:
            await self._connect(effect)
        finally:
            self._open.discard(task)

    def close_all(self) -> None:
        """End all sessions: the head is not there. The terminals stay."""
        for task in tuple(self._open):
            task.cancel()

    async def _connect(self, effect: ConnectTerminal) -> None:
        order = effect.order
        try:
            terminal = await self._reach(self._directory(effect.key), order)
        except _FailedError as error:
            self._send(SessionFailed(session=order.session, message=str(error)))
            return
        try:
            await self._carry(terminal, order)
        except _FailedError as error:
            self._send(SessionFailed(session=order.session, message=str(error)))
        except (
            aiohttp.ClientError,
            NotTheHeadError,
            OSError,
            SealError,
            TimeoutError,
            t.FrameError,
        ) as error:
            self._complaints.say(f"attempt {effect.key.name}", f"a session is broken: {error!r}")
        finally:
            terminal.close()

    async def _reach(self, directory: str, order: OpenSession) -> sockets.socket:
        """Return a connection to the terminal's keeper.

        Raises:
            _FailedError: there is none.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + (SHELL_START_S if order.start else 0.0)
        while True:
            try:
                return _connected(directory, order.terminal)
            except (FileNotFoundError, ConnectionRefusedError):
                if loop.time() < give_up_s:
                    await asyncio.sleep(LOOK_S)
                    continue
            except OSError as error:
                raise _FailedError(
                    f"node {self._node} cannot reach the terminal: {error}"
                ) from None
            if order.start:
                raise _FailedError(
                    f"no shell has started on node {self._node} within {SHELL_START_S:.0f} s: the "
                    "job's supervisor may have been killed"
                )
            raise _FailedError(f"there is no such terminal on node {self._node}, or it has ended")

    async def _carry(self, terminal: sockets.socket, order: OpenSession) -> None:
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
                sealer, opener = await self._shake(channel, order.session)
            up = asyncio.create_task(_up(terminal, channel, sealer))
            down = asyncio.create_task(_down(channel, terminal, opener))
            try:
                done, _ = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)

    async def _shake(
        self, channel: aiohttp.ClientWebSocketResponse, session: str
    ) -> tuple[Sealer, Opener]:
        """Prove that we know the cluster's key, and have the head prove it.

        Raises:
            SealError: it does not.
            _FailedError: it refuses.
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
            raise _FailedError(f"the head refuses the connection of node {self._node}")
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
        return sealer, Opener(from_head)


def _connected(directory: str, terminal: str) -> sockets.socket:
    """Return a connection to a keeper.

    Raises:
        OSError: there is none; or what listens there was not made by a supervisor of ours.
    """
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    try:
        made.settimeout(0.0)
        made.connect(f"/proc/self/fd/{place}/{socket_name(terminal)}")
        check_peer(made, frozenset({os.geteuid()}))  # the process that has called listen()
    except NotTheHeadError as error:
        made.close()
        raise OSError(str(error)) from error
    except BaseException:
        made.close()
        raise
    finally:
        os.close(place)
    return made


async def _up(
    terminal: sockets.socket, channel: aiohttp.ClientWebSocketResponse, sealer: Sealer
) -> None:
    """Copy what the program shows, until its keeper closes."""
    loop = asyncio.get_running_loop()
    allowance = t.Allowance(RATE_BYTES_PER_S)
    while message := await loop.sock_recv(terminal, t.MAX_FRAME_BYTES):
        await channel.send_bytes(sealer.seal(message))
        wait_s = allowance.spend(len(message), loop.time())
        if wait_s:
            await asyncio.sleep(wait_s)


async def _down(
    channel: aiohttp.ClientWebSocketResponse, terminal: sockets.socket, opener: Opener
) -> None:
    """Copy what the user types, until the head closes."""
    loop = asyncio.get_running_loop()
    async for message in channel:
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        content = bytes(opener.open(message.data))
        t.split(content)  # an empty packet would look like the end
        await loop.sock_sendall(terminal, content)
