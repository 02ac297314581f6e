"""A node's end of a connection to a real head, driven by hand."""

import aiohttp

from gsched.model.resources import Inventory, Load
from gsched.protocol import node as n
from gsched.protocol.endpoint import endpoint
from gsched.protocol.sealing import Opener, Sealer, challenge_key, session_keys

NONCE = "00" * 16


class Dialler:
    """Says what a node says, one step at a time.

    Attributes:
        sealer, opener: of the connection, after `call`.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, key: bytes, *, node: str = "n1"
    ) -> None:
        self.socket = socket
        self._key = key
        self._node = node
        self.sealer = Sealer(b"")
        self.opener = Opener(b"")

    @property
    def is_closed(self) -> bool:
        """Return whether the head has ended the connection."""
        return self.socket.closed

    async def frame(self) -> bytes:
        """Return the next sealed frame of the head.

        Raises:
            ConnectionError: the head has ended the connection.
        """
        frame = await self.socket.receive(timeout=20)
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionError(f"no sealed frame, but {frame}")
        data: bytes = frame.data
        return data

    async def hear(self) -> n.HeadMessage:
        """Return the next message of the head."""
        return n.decode_from_head(self.opener.open(await self.frame()))[0]

    async def hear_all(self, timeout_s: float | None = None) -> list[n.HeadMessage]:
        """Return the messages of the head's next frame; none after a time, or at the end."""
        try:
            frame = await self.socket.receive(timeout=timeout_s)
        except TimeoutError:
            return []
        if frame.type is not aiohttp.WSMsgType.BINARY:
            return []
        return n.decode_from_head(self.opener.open(frame.data))

    async def say_hello(self, *, version: int = n.PROTOCOL_VERSION) -> bytes:
        """Say who we are; return the frame."""
        hello = n.Hello(
            version=version,
            node=self._node,
            nonce=NONCE,
            here=endpoint(self.socket.get_extra_info("sockname")),
            there=endpoint(self.socket.get_extra_info("peername")),
        )
        plain = n.encode([hello])
        await self.socket.send_str(plain.decode())
        return plain

    async def call(self) -> n.Challenge:
        """Say who we are and take the head's challenge."""
        plain = await self.say_hello()
        sealed = await self.frame()
        (challenge,) = n.decode_from_head(Opener(challenge_key(self._key, plain)).open(sealed))
        assert isinstance(challenge, n.Challenge)
        from_node, from_head = session_keys(self._key, plain, sealed)
        self.sealer, self.opener = Sealer(from_node), Opener(from_head)
        return challenge

    async def say(self, *messages: n.NodeMessage) -> None:
        """Send messages in one sealed frame."""
        await self.socket.send_bytes(self.sealer.seal(n.encode(messages)))

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
        "inventory": Inventory(cpus=1, memory_bytes=1),
        "attempts": (),
        "load": Load(),
        **changes,
    }
    return n.Register(**fields)  # type: ignore[arg-type]  # the Struct checks nothing, the codec does
