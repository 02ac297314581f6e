"""A node's connections that overtake each other: what the newest one said stands."""

import asyncio

import aiohttp

from gsched.model.resources import Inventory, Load
from gsched.protocol import node as n
from gsched.protocol.proof import proof
from tests.support.cluster import Cluster

NONCE = "00" * 16


class Dialler:
    """A node's end of one connection, driven by hand."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, key: bytes) -> None:
        self._socket = socket
        self._key = key
        self._nonces = (NONCE, "")

    @property
    def is_closed(self) -> bool:
        """Return whether the head has ended the connection."""
        return self._socket.closed

    async def hear(self) -> n.HeadMessage:
        """Return the next message of the head."""
        frame = await self._socket.receive(timeout=20)
        assert frame.type is aiohttp.WSMsgType.TEXT, frame
        return n.decode_from_head(frame.data)[0]

    async def call(self) -> None:
        """Say who we are and take the head's challenge."""
        hello = n.Hello(version=n.PROTOCOL_VERSION, node="n1", nonce=NONCE)
        await self._socket.send_str(n.encode([hello]).decode())
        challenge = await self.hear()
        assert isinstance(challenge, n.Challenge)
        self._nonces = (NONCE, challenge.nonce)

    async def register(self) -> n.HeadMessage:
        """Say what we have, and return the head's answer."""
        said = n.Register(
            proof=proof(key=self._key, role="node", node="n1", nonces=self._nonces),
            boot_id="boot",
            incarnation="start",
            address="127.0.0.1",
            gnode_version="test",
            inventory=Inventory(cpus=1, memory_bytes=1),
            attempts=(),
            load=Load(),
        )
        await self._socket.send_str(n.encode([said]).decode())
        return await self.hear()


def test_a_registration_that_was_held_up_does_not_replace_a_newer_one(cluster: Cluster) -> None:
    """It tells what the node had before it dialled again: jobs started since would seem lost."""
    cluster.start_head()
    key = cluster.key_file.read_bytes().strip()
    port = (cluster.state_dir / "gschedd.port").read_text().strip().rpartition(":")[2]

    async def story() -> tuple[n.HeadMessage, n.HeadMessage]:
        url = f"ws://127.0.0.1:{port}/v1/node"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url) as first,
            session.ws_connect(url) as second,
        ):
            old, new = Dialler(first, key), Dialler(second, key)
            await old.call()
            await new.call()
            welcome = await new.register()
            refusal = await old.register()
            assert not new.is_closed
            return welcome, refusal

    welcome, refusal = asyncio.run(story())

    assert isinstance(welcome, n.Welcome)
    assert isinstance(refusal, n.Refused)
    assert not refusal.fatal
    assert "since" in refusal.message
