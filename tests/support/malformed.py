"""Malformed messages to a head, before and after the handshake of a node: each is refused (T16)."""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Final

import aiohttp
import msgspec

from gsched.model.resources import Load, Usage
from gsched.protocol import node as n
from gsched.protocol.uses import Uses
from tests.support.cluster import Cluster
from tests.support.dialler import Dialler, dialled, registration

#: Connections at a time; the head lets half as many of an address be unproven.
LANES: Final = 8
PATIENCE_S: Final = 30.0
#: Messages on one connection, where the protocol has more than one; so many before an answer.
ON_CONNECTION: Final = 2000
PIPELINED: Final = 50
_REPORTS: Final[tuple[dict[str, object], ...]] = tuple(
    msgspec.json.decode(n.encode([message]))[0]
    for message in (
        n.Heartbeat(load=Load(), usage=((1, 1, Usage()),)),
        n.Started(job=1, attempt=1, pid=1, started_s=1.0, stdout_path="/o", stderr_path="/e"),
        n.Pong(number=1),
        Uses(load=Load(), uses=()),
    )
)
_JUNK: Final[tuple[object, ...]] = (
    None,
    -1,
    2**70,
    1e300,
    "x" * 5000,
    [],
    [[]] * 50,
    {"a": {}},
    True,
)
_VALID: Final = (
    n.encode([n.Hello(version=n.PROTOCOL_VERSION, node="n1")]),
    n.encode([registration()]),
    n.encode([n.Pong(number=1)]),
)
_PARTS: Final = (
    *(
        b"",
        b"\0",
        b"[" * 5000,
        b"{" * 5000,
        b'{"type":',
        b"\xff\xfe",
        b"9" * 400,
        b'"' + b"x" * 9000,
    ),
    *(
        b"null",
        b"1e999",
        b'{"type":"launch"}',
        b'{"type":"no_such"}',
        b"\x16\x03\x01",
        b"GET / HTTP/1.1",
    ),
    *(b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"a: b\r\n" * 500, b"\r\n\r\n"),
)


def malformed(chance: random.Random) -> bytes:
    """Return some bytes that are no message: a valid one changed, or none at all."""
    content = bytearray(chance.choice(_VALID))
    match chance.randrange(5):
        case 0:
            del content[chance.randrange(len(content)) :]
        case 1:
            for _ in range(chance.randrange(1, 9)):
                content[chance.randrange(len(content))] = chance.randrange(256)
        case 2:
            at = chance.randrange(len(content))
            content[at:at] = chance.choice(_PARTS)
        case 3:
            content = bytearray(chance.randbytes(chance.randrange(1, 300)))
        case _:
            content = bytearray(chance.choice(_PARTS))
    return bytes(content)


def unreadable(chance: random.Random) -> bytes:
    """Return a frame whose message has a part that cannot be read, or is of no known type."""
    message = dict(chance.choice(_REPORTS))
    message[chance.choice(list(message))] = chance.choice(_JUNK)
    return msgspec.json.encode([message] * chance.randrange(1, 3))


async def wait_until_processed(peer: Dialler) -> None:
    """Wait until the head answers that it has read all that was sent.

    Raises:
        ConnectionError: it has ended the connection.
        TimeoutError: it says nothing.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not any(isinstance(each, n.Renewed) for each in await peer.hear_all()):
            if peer.is_closed:
                raise ConnectionError("the head has ended the connection")


class Attack:
    """Sends them and counts what becomes of them.

    Args:
        seed: of what is sent.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self.counts: Counter[str] = Counter()

    async def run(self, messages: int) -> None:
        """Send messages, a third of each kind: to the port, within TLS, after a handshake."""
        kinds: tuple[Callable[[], Coroutine[object, object, None]], ...]
        kinds = (self._clear, self._in_tls, self._after_handshake)

        async def lane(share: int) -> None:
            for number in range(share):
                await kinds[number % len(kinds)]()

        async with asyncio.TaskGroup() as group:
            for number in range(LANES):
                group.create_task(lane(messages // LANES + (number < messages % LANES)))

    async def run_many(self, messages: int) -> None:
        """Send messages, many on a connection, half of them before and half after a handshake."""

        async def lane(number: int, share: int) -> None:
            while share > 0:
                count = min(share, ON_CONNECTION)
                share -= await (self._bodies(count) if number % 2 else self._frames(number, count))

        async with asyncio.TaskGroup() as group:
            for number in range(LANES):
                share = messages // LANES + (number < messages % LANES)
                group.create_task(lane(number, share))

    async def _bodies(self, count: int) -> int:
        """Send requests of which only the bodies are malformed, within TLS without a certificate.

        Returns:
            how many were answered, at least 1.
        """
        port, answered = self._cluster.node_port, 0
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._context)
            while answered < count:
                batch = min(PIPELINED, count - answered)
                for _ in range(batch):
                    if writer.is_closing():
                        raise ConnectionError("the head has ended the connection")
                    body = malformed(self._chance)
                    writer.write(
                        b"POST /v1/join HTTP/1.1\r\nHost: head\r\nContent-Type: application/json"
                        b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                    )
                for _ in range(batch):
                    async with asyncio.timeout(PATIENCE_S):
                        head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 4"), head
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(length))
                    answered += 1
            writer.transport.abort()
        except (OSError, EOFError, TimeoutError):
            self.counts["bodies: connection closed"] += 1
        self.counts["bodies: refused"] += answered
        return max(answered, 1)

    async def _frames(self, number: int, count: int) -> int:
        """Send frames with messages that cannot be read, as a node that is registered.

        Returns:
            how many were sent, at least 1; the head has read them.
        """
        name, sent = f"many{number}", 0
        try:
            async with asyncio.timeout(PATIENCE_S * 4), dialled(self._cluster, node=name) as peer:
                await peer.call()
                answer = await peer.register(identity=f"{number:032x}")
                assert isinstance(answer, n.Welcome), answer
                while sent < count:
                    batch = min(PIPELINED, count - sent)
                    for _ in range(batch):
                        await peer.socket.send_bytes(unreadable(self._chance))
                    sent += batch
                    while await peer.hear_all(0.001):
                        pass
                await peer.say(n.Renew(number=7))
                await wait_until_processed(peer)
            self.counts["frames: read"] += sent
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.counts[f"frames: closed ({type(error).__name__})"] += 1
        return max(sent, 1)

    async def _clear(self) -> None:
        """Send bytes to the port for nodes, without TLS."""
        await self._to_port("clear", None)

    async def _in_tls(self) -> None:
        """Send bytes within TLS, without a certificate."""
        await self._to_port("tls", self._context)

    async def _to_port(self, kind: str, context: ssl.SSLContext | None) -> None:
        port = self._cluster.node_port
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(malformed(self._chance) + b"\r\n\r\n")
                if context is None:
                    writer.write_eof()
                else:
                    await writer.drain()
                answer = await reader.read(200) if context is None else b""
                writer.transport.abort()
            self._note(kind, answer)
        except (OSError, EOFError):
            self.counts[f"{kind}: closed"] += 1

    def _note(self, kind: str, answer: bytes) -> None:
        assert not answer.startswith(b"HTTP/1.1 2"), answer
        self.counts[f"{kind}: {'refused' if answer else 'closed'}"] += 1

    async def _after_handshake(self) -> None:
        """Send a frame where the head waits for a registration, or for what a node reports."""
        content = malformed(self._chance)
        registered = self._chance.random() < 0.5
        name = f"m{self._chance.randrange(4)}"
        try:
            async with asyncio.timeout(PATIENCE_S), dialled(self._cluster, node=name) as peer:
                await peer.call()
                if registered:
                    await peer.register(identity=f"{name:0>32}")
                if self._chance.random() < 0.2:
                    await peer.socket.send_str(content.decode("latin-1"))
                else:
                    await peer.socket.send_bytes(content)
                await peer.say(n.Pong(number=0))
            self.counts["frame: sent"] += 1
        except (aiohttp.ClientError, OSError):
            self.counts["frame: closed"] += 1


def rss_bytes(pid: int) -> int:
    """Return the memory of a process, without files that it has mapped, as its database."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
