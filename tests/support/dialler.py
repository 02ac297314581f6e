"""A node's end of a connection to a real head, driven by hand, on the head's Unix socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
from msgspec import Struct, structs

from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Inventory, Load
from gsched.protocol import node as n
from tests.support.cluster import Cluster
from tests.support.processes import PATIENCE_S

MessageT = TypeVar("MessageT", bound=Struct)


@asynccontextmanager
async def dialled(
    cluster: Cluster, *, node: str = "n1", path: str = "/v1/node"
) -> "AsyncIterator[Dialler]":
    """Connect to the head of a cluster."""
    connector = aiohttp.UnixConnector(str(cluster.directory / "head-node.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(f"ws://head{path}", compress=0) as socket,
    ):
        yield Dialler(socket, node=node)


class Dialler:
    """Says what a node says, one step at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, node: str = "n1") -> None:
        self.socket = socket
        self._node = node

    @property
    def is_closed(self) -> bool:
        """Return whether the head has ended the connection."""
        return self.socket.closed

    async def frame(self) -> bytes:
        """Return the next binary frame of the head.

        Raises:
            ConnectionError: the head has ended the connection.
        """
        frame = await self.socket.receive(timeout=PATIENCE_S)
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionError(f"no binary frame, but {frame}")
        data: bytes = frame.data
        return data

    async def hear(self) -> n.HeadMessage:
        """Return the next message of the head."""
        return n.decode_from_head(await self.frame())[0]

    async def hear_all(self, timeout_s: float | None = None) -> list[n.HeadMessage]:
        """Return the messages of the head's next frame; none after a time, or at the end."""
        try:
            frame = await self.socket.receive(timeout=timeout_s)
        except TimeoutError:
            return []
        if frame.type is not aiohttp.WSMsgType.BINARY:
            return []
        return n.decode_from_head(frame.data)

    async def say_hello(self, *, version: int = n.PROTOCOL_VERSION, session: str = "") -> None:
        """Say who we are."""
        hello = n.Hello(version=version, node=self._node, session=session)
        await self.socket.send_str(n.encode([hello]).decode())

    async def call(self) -> n.Challenge:
        """Say who we are and take the head's challenge."""
        await self.say_hello()
        challenge = await self.hear()
        assert isinstance(challenge, n.Challenge)
        return challenge

    async def say(self, *messages: n.NodeMessage) -> None:
        """Send messages in one frame."""
        await self.socket.send_bytes(n.encode(messages))

    async def register(self, **changes: object) -> n.HeadMessage:
        """Say what we have, and return the head's answer."""
        await self.say(registration(**changes))
        return await self.hear()


def registration(**changes: object) -> n.Register:
    """Return what a small node says of itself, with changes."""
    fields: dict[str, object] = {
        "identity": "0123456789abcdef" * 2,
        "boot_id": "boot",
        "incarnation": "start",
        "address": "127.0.0.1",
        "gnode_version": "test",
        "inventory": Inventory(cpus=1, memory_bytes=1, features=(FILES_FEATURE,)),
        "attempts": (),
        "load": Load(),
        **changes,
    }
    return n.Register(**fields)  # type: ignore[arg-type]  # the Struct checks nothing, the codec does


def replaced(message: MessageT, **fields: object) -> MessageT:
    """Return a message with other fields."""
    return structs.replace(message, **fields)


async def launched(node: Dialler) -> n.Launch:
    """Return the launch of a job on a node that is driven by hand."""
    return await heard(node, n.Launch)


async def answered(node: Dialler, message: n.NodeMessage, kind: type[MessageT]) -> MessageT:
    """Send a message and return the answer of a kind."""
    await node.say(message)
    return await heard(node, kind)


async def heard(node: Dialler, kind: type[MessageT]) -> MessageT:
    """Return the next message of a kind."""
    while True:
        for message in await node.hear_all(30.0):
            if isinstance(message, kind):
                return message
