"""TLS connections at the door: nothing of one that has ended stays in memory.

Each holds buffers of 64 KiB. A head hardly ever looks for cycles of garbage, so that a thousand
hosts that joined at once left a gigabyte.
"""

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from gsched.clock import SystemClock
from gsched.config.tls import TlsConfig
from gsched.pki import issuing
from gsched.pki.contexts import client_context, server_context
from gsched.pki.files import CertificateFiles, files_of
from gsched.pki.names import Identity, Role
from gschedd.http.answers import errors
from gschedd.http.door import QUIET_MS, Door, Rules, Visitor, watched
from gschedd.http.listening import address_source
from tests.support.processes import PATIENCE_S

MANY = 12
LONG_S = 60.0  # at most: a busy machine needs seconds for what takes milliseconds here
Client = Callable[[int], None]


def files(directory: Path, authority: issuing.Authority, role: Role) -> CertificateFiles:
    """Return the files of a host."""
    made = files_of(str(directory / role), TlsConfig())
    identity = Identity(cluster="c" * 32, role=role, name="n1")
    own = issuing.issue_with_key(authority, identity, now_s=time.time(), lifetime_s=3600.0)
    made.write(own=own, trusted=authority.pem.encode())
    return made


@asynccontextmanager
async def opened(
    context: Callable[[], ssl.SSLContext], rules: Rules
) -> AsyncIterator[tuple[Door, int]]:
    """Yield a door on a port."""

    async def hello(_: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    app = web.Application(middlewares=[watched, errors])
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    assert runner.server is not None
    listener = socket.create_server(("127.0.0.1", 0))
    door = Door(
        listener=listener,
        server=runner.server,
        source_of=address_source,
        rules=rules,
        clock=SystemClock(),
        tls=context,
    )
    door.open()
    try:
        yield door, listener.getsockname()[1]
    finally:
        door.close()
        await runner.cleanup()


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LONG_S)


def broken(port: int) -> None:
    """Begin a handshake with what is none."""
    with dial(port) as connection:
        connection.sendall(b"\x16\x03\x01" + b"x" * 300)
        connection.recv(100)


def ended(port: int) -> None:
    """Begin a handshake and end the connection."""
    with dial(port) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00")


def silent(port: int) -> None:
    """Begin a handshake and say no more."""
    with dial(port) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00")
        connection.recv(100)


def distrustful(port: int) -> None:
    """Refuse the head's certificate."""
    with dial(port) as connection, contextlib.suppress(ssl.SSLError):
        ssl.create_default_context().wrap_socket(connection, server_hostname="head").close()


def malformed(context: ssl.SSLContext, port: int) -> None:
    """Send no request after the handshake, and take the answer."""
    with dial(port) as connection, context.wrap_socket(connection) as secured:
        secured.sendall(b"\x00\xff\r\n\r\n")
        with contextlib.suppress(OSError):
            while secured.recv(1000):
                pass


def aborted(context: ssl.SSLContext, port: int) -> None:
    """Send no request after the handshake, and end the connection without an alert."""
    with dial(port) as connection, context.wrap_socket(connection) as secured:
        secured.sendall(b"\x00\xff\r\n\r\n")
        socket.socket(fileno=secured.detach()).close()


def pipelined(context: ssl.SSLContext, port: int) -> None:
    """Send many requests at once, some of them without their end, and end the connection."""
    request = b"POST / HTTP/1.1\r\nHost: head\r\nContent-Length: 6\r\n\r\n"
    with dial(port) as connection, context.wrap_socket(connection) as secured:
        secured.sendall((request + b"x" * 6) * 40 + request)
        secured.recv(100)
        socket.socket(fileno=secured.detach()).close()


def served(context: ssl.SSLContext, port: int) -> None:
    """Send a request."""
    with dial(port) as connection, context.wrap_socket(connection) as secured:
        secured.sendall(b"GET / HTTP/1.1\r\nHost: head\r\nConnection: close\r\n\r\n")
        answer = secured.recv(1000)
        if not answer:
            raise ConnectionResetError("it was closed")
        assert answer.startswith(b"HTTP/1.1 200")
        while secured.recv(1000):
            pass


def waiting(context: ssl.SSLContext, port: int) -> None:
    """Say nothing after the handshake."""
    with (
        contextlib.suppress(OSError),
        dial(port) as connection,
        context.wrap_socket(connection) as secured,
    ):
        secured.recv(1000)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ssl.SSLContext]:
    """Return the contexts of the head, of a node, of a stranger, and of who has no certificate."""
    directory = tmp_path_factory.mktemp("pki")
    ours, other = (
        issuing.read_authority(issuing.make_authority(name, time.time())) for name in "ab"
    )
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    stranger = client_context(files(directory / "other", other, "node"))
    stranger.verify_mode = ssl.CERT_NONE
    return {
        "head": server_context(files(directory, ours, "head")),
        "node": client_context(files(directory, ours, "node")),
        "stranger": stranger,
        "bare": bare,
    }


NARROW = Rules(of_source=2, in_all=4, evict=True, header_s=0.5)
LATE = Rules(of_source=100, in_all=100, evict=True, header_s=0.5)
CALM = Rules(of_source=100, in_all=100, evict=True, header_s=LONG_S)
CASES: dict[str, tuple[Callable[..., None], str, Rules]] = {
    "no handshake": (broken, "", LATE),
    "half a handshake": (ended, "", LATE),
    "too slow": (silent, "", LATE),
    "evicted in the handshake": (silent, "", NARROW),
    "certificate refused": (distrustful, "", LATE),
    "unknown authority": (malformed, "stranger", LATE),
    "malformed": (malformed, "bare", LATE),
    "malformed, aborted": (aborted, "bare", LATE),
    "pipelined, aborted": (pipelined, "bare", LATE),
    "evicted": (waiting, "bare", NARROW),
    "no request": (waiting, "node", LATE),
    "served": (served, "node", CALM),
}


def alive() -> int:
    """Return how many connections of TLS, and visitors, are in memory."""
    # By their types: what an object of another library says of its class may be a warning.
    return sum(issubclass(type(each), SSLProtocol | Visitor) for each in gc.get_objects())


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_tls_connection_is_kept_without_a_collection_of_garbage(
    case: str, contexts: dict[str, ssl.SSLContext]
) -> None:
    """E14, E15."""
    how, context, rules = CASES[case]
    client: Client = partial(how, contexts[context]) if context else how

    def one(port: int) -> None:
        with contextlib.suppress(OSError):
            client(port)

    async def story() -> int:
        async with opened(lambda: contexts["head"], rules) as (door, port):
            async with asyncio.timeout(LONG_S):
                await asyncio.gather(*(asyncio.to_thread(one, port) for _ in range(MANY)))
                while door.connections:  # noqa: ASYNC110 - nothing tells when they have gone
                    await asyncio.sleep(0.01)
                until_s = time.monotonic() + PATIENCE_S
                while alive() and time.monotonic() < until_s:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.1)
            return alive()

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(story()) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("hold_s", [LONG_S, 0.05])
def test_a_few_handshakes_at_a_time_and_slow_ones_keep_no_others_out(
    hold_s: float, contexts: dict[str, ssl.SSLContext]
) -> None:
    """E19: A turn of the loop has some handshakes at most; who does not go on has no slot."""
    begun = 0

    def begin() -> ssl.SSLContext:
        nonlocal begun
        begun += 1
        return contexts["head"]

    async def story() -> None:
        rules = Rules(of_source=100, in_all=100, evict=True, handshakes=2, handshake_s=hold_s)
        async with opened(begin, rules) as (_, port), asyncio.timeout(LONG_S):
            idle = [dial(port) for _ in range(6)]
            for each in idle:
                each.sendall(b"\x16\x03\x01\x02\x00")
            if hold_s == LONG_S:
                while begun < 2:  # noqa: ASYNC110 - nothing tells when they begin
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                assert begun == 2
                idle[0].close()
                idle[1].close()
                while begun < 4:  # noqa: ASYNC110 - nothing tells when they begin
                    await asyncio.sleep(0.01)
            else:
                await asyncio.to_thread(served, contexts["node"], port)
                assert begun == 7
            for each in idle:
                each.close()

    asyncio.run(story())


def test_a_fault_before_the_handshake_leaves_no_place_taken() -> None:
    def fail() -> ssl.SSLContext:
        raise RuntimeError("a fault")

    async def story() -> None:
        async with opened(fail, LATE) as (door, port), asyncio.timeout(LONG_S):
            with dial(port) as connection:
                connection.sendall(b"\x16\x03\x01\x02\x00")
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(connection.recv, 100) == b""
            assert door.connections == 0

    asyncio.run(story())


@pytest.mark.parametrize("silent_ones", [0, 8])
def test_many_that_connect_at_once_are_served_in_turn(
    silent_ones: int, contexts: dict[str, ssl.SSLContext]
) -> None:
    """E19: Each has a moment to prove who it is, but for those that send nothing.

    One that a busy machine keeps from sending for that moment comes again, as nodes do.
    """
    failed: list[OSError] = []

    def one(port: int) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                return served(contexts["node"], port)
            except OSError as error:
                if time.monotonic() - begun_s < QUIET_MS / 1000:
                    failed.append(error)
                    return None

    async def story() -> None:
        rules = Rules(of_source=100, in_all=4, evict=True)
        async with opened(lambda: contexts["head"], rules) as (_, port):
            idle = [dial(port) for _ in range(silent_ones)]
            async with asyncio.timeout(LONG_S):
                await asyncio.gather(*(asyncio.to_thread(one, port) for _ in range(40)))
            for each in idle:
                each.close()

    asyncio.run(story())

    assert failed == []


def test_a_slow_handshake_leaves_its_number_to_the_next_connection(
    contexts: dict[str, ssl.SSLContext],
) -> None:
    """A transport on a closed descriptor would keep the next one of that number from being served.

    All client sockets are open before, so the numbers that the door gives back are the lowest ones.
    """

    rules = Rules(of_source=100, in_all=100, evict=True, header_s=3.0)

    async def story() -> None:
        async with opened(lambda: contexts["head"], rules) as (door, port), asyncio.timeout(LONG_S):
            slow = [dial(port) for _ in range(MANY)]
            late = [socket.socket() for _ in range(MANY)]
            for each in slow:
                each.sendall(b"\x16\x03\x01\x02\x00")
            while door.connections < MANY:  # noqa: ASYNC110 - nothing tells when they have come
                await asyncio.sleep(0.01)
            while door.connections:  # noqa: ASYNC110 - nor when they have gone
                await asyncio.sleep(0)
            door.rules = CALM

            def ask(connection: socket.socket) -> bytes:
                connection.settimeout(LONG_S)
                connection.connect(("127.0.0.1", port))
                with contexts["node"].wrap_socket(connection) as secured:
                    secured.sendall(b"GET / HTTP/1.1\r\nHost: head\r\nConnection: close\r\n\r\n")
                    return secured.recv(12)

            answers = await asyncio.gather(*(asyncio.to_thread(ask, each) for each in late))
            assert answers == [b"HTTP/1.1 200"] * MANY
            for each in slow:
                each.close()

    asyncio.run(story())
