"""Connections and bodies, on real sockets: who gets in, for how long, and how much is held."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import socket
import stat
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gsched.clock import SystemClock
from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_REQUEST_BYTES, MAX_SUBMIT_BYTES
from gschedd.http.answers import answer, errors
from gschedd.http.bodies import Bodies, counted, read_submission
from gschedd.http.door import Door, Rules, Source, Visitor, watched
from gschedd.http.handshake import HostSocket
from gschedd.http.listening import (
    USERS_MODE,
    listen_on_path,
    rules_for_nodes,
    rules_for_users,
)

LONG_S = 30.0
WIDE = Rules(of_source=100, in_all=1000)
MIB = 1 << 20


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Guests:
    """Says whose connection the next one is."""

    def __init__(self) -> None:
        self.uid = 1
        self.operator = False

    def __call__(self, _: socket.socket) -> Source:
        return Source(name=f"uid {self.uid}", uid=self.uid, operator=self.operator)


class House:
    """A door with an application behind it that reads submissions."""

    def __init__(self, path: Path, rules: Rules, bodies: Bodies) -> None:
        self.path = str(path)
        self.rules = rules
        self.bodies = bodies
        self.guests = Guests()
        self.peers: list[Peer] = []
        self.channels: list[weakref.ref[HostSocket]] = []
        self.door: Door  # while it is open

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Door]:
        app = web.Application(middlewares=[watched, counted(self.bodies), errors])
        app.router.add_get("/", self._hello)
        app.router.add_get("/large", self._large)
        app.router.add_get("/user", self._user)
        app.router.add_post("/", self._submit)
        app.router.add_get("/host", self._host)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        assert runner.server is not None
        self.door = door = Door(
            listener=listen_on_path(self.path, mode=USERS_MODE, key="socket"),
            server=runner.server,
            source_of=self.guests,
            rules=self.rules,
            clock=SystemClock(),
        )
        door.open()
        try:
            yield door
        finally:
            door.close()
            for _, writer in self.peers:
                writer.transport.abort()
            await runner.cleanup()

    async def _hello(self, request: web.Request) -> web.StreamResponse:
        assert isinstance(request.protocol, Visitor)
        return answer(request.protocol.source.uid)

    async def _user(self, request: web.Request) -> web.StreamResponse:
        assert isinstance(request.protocol, Visitor)
        return answer(request.protocol.become(Source(name="user alice", uid=7)))

    async def _large(self, _: web.Request) -> web.StreamResponse:
        return answer("x" * 8 * MIB)

    async def _host(self, request: web.Request) -> web.StreamResponse:
        channel = HostSocket(heartbeat=LONG_S)
        self.channels.append(weakref.ref(channel))
        await channel.prepare(request)
        try:
            async for message in channel:
                await channel.send_bytes(message.data)
        finally:
            await channel.release(request)
        return channel

    async def _submit(self, request: web.Request) -> web.StreamResponse:
        asked = await read_submission(request, self.bodies)
        return answer(len(asked.jobs))


Story = Callable[[House], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Return what plays a story in a house with these rules."""

    def play(story: Story, rules: Rules = WIDE, bodies: Bodies | None = None) -> None:
        async def run() -> None:
            house = House(tmp_path / "door.sock", rules, bodies or Bodies())
            async with asyncio.timeout(LONG_S), house.opened():
                await story(house)

        asyncio.run(run())

    return play


async def dial(house: House, *, uid: int = 1, operator: bool = False) -> Peer:
    house.guests.uid, house.guests.operator = uid, operator
    peer = await asyncio.open_unix_connection(house.path)
    house.peers.append(peer)
    await asyncio.sleep(0.01)  # the door looks at it before the next one comes
    return peer


async def say(peer: Peer, data: bytes) -> None:
    peer[1].write(data)
    with contextlib.suppress(ConnectionError):  # it was refused, and says so
        await peer[1].drain()


async def heard(peer: Peer) -> tuple[int, bytes]:
    """Return status and body of the next answer; 0 for a connection that was closed."""
    try:
        head = await peer[0].readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, b""
    lines = head.decode().lower().split("\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
    return int(lines[0].split()[1]), await peer[0].readexactly(length)


GET = b"GET / HTTP/1.1\r\nHost: head\r\n\r\n"


def post(length: int, more: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: head\r\nContent-Length: %d\r\n%s\r\n" % (length, more)


async def ask(house: House, *, uid: int = 1, operator: bool = False) -> int:
    peer = await dial(house, uid=uid, operator=operator)
    answer = asyncio.create_task(heard(peer))
    await asyncio.wait({answer}, timeout=0.05)  # it was refused before it said anything
    for _ in range(10):  # the time may have gone by before the door had a turn
        await asyncio.sleep(0)
    if not answer.done():
        await say(peer, GET)
    status, _ = await answer
    peer[1].transport.abort()
    return status


# --- connections ---


def test_idle_connections_of_one_user_shut_nobody_else_out(tell: Callable[..., None]) -> None:
    """T47, E14: They once took all descriptors of the head."""

    async def story(house: House) -> None:
        idle = [await dial(house, uid=1) for _ in range(20)]

        assert (await heard(idle[5]))[0] == 429
        assert await ask(house, uid=1) == 429
        assert await ask(house, uid=2) == 200

    tell(story, Rules(of_source=4, in_all=8, reserved=2))


def test_connections_of_many_users_leave_room_for_operators(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        for uid in range(100, 120):
            await dial(house, uid=uid)

        assert await ask(house, uid=1) == 503
        assert await ask(house, uid=0, operator=True) == 200

    tell(story, Rules(of_source=4, in_all=8, reserved=2))


def test_a_place_is_given_back_when_a_connection_ends(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        for _ in range(20):
            assert await ask(house) == 200

    tell(story, Rules(of_source=2, in_all=2))


def test_a_refusal_says_why_and_when_to_try_again(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        await dial(house)
        peer = await dial(house)
        text = (await peer[0].read()).decode()

        assert "Retry-After: 1" in text
        error = json.loads(text.partition("\r\n\r\n")[2])["error"]
        assert error["message"] == "uid 1 has 1 open connections, the limit"
        assert error["code"] == "try_again"

    tell(story, Rules(of_source=1, in_all=8))


@pytest.mark.parametrize("words", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_connection_that_sends_no_whole_header_is_closed(
    tell: Callable[..., None], words: bytes
) -> None:
    """E14: Silence, and a header byte by byte: a further byte does not buy further time."""

    async def story(house: House) -> None:
        peer = await dial(house)
        await say(peer, words)
        while not peer[0].at_eof():
            try:
                peer[1].write(b"x" if words else b"")
                async with asyncio.timeout(0.02):
                    await peer[0].read(1)
            except TimeoutError:
                continue
            except ConnectionError:
                break

    tell(story, Rules(of_source=4, in_all=8, header_s=0.2))


def test_a_peer_that_does_not_read_its_answer_is_cut_off(tell: Callable[..., None]) -> None:
    """T51, E13."""

    async def story(house: House) -> None:
        peer = await dial(house)
        await say(peer, b"GET /large HTTP/1.1\r\nHost: head\r\n\r\n")
        for _ in range(200):
            await asyncio.sleep(0.05)
            if await ask(house, uid=1) == 200:  # its place is free
                return
        raise AssertionError("it was never cut off")

    tell(story, Rules(of_source=1, in_all=8, stall_s=0.2))


def test_of_those_that_prove_nothing_the_oldest_makes_room(tell: Callable[..., None]) -> None:
    """So that silence on the node port cannot keep a node out."""

    async def story(house: House) -> None:
        silent = [await dial(house) for _ in range(10)]

        assert await ask(house) == 200
        assert await heard(silent[0]) == (0, b"")

    tell(story, Rules(of_source=4, in_all=8, evict=True))


def test_connections_of_users_make_no_room(tell: Callable[..., None]) -> None:
    """Those with a token stay; where all have one, a further connection is refused in words."""

    async def story(house: House) -> None:
        users = [await dial(house, uid=each) for each in (1, 2)]
        for peer in users:
            await say(peer, b"GET /user HTTP/1.1\r\nHost: head\r\n\r\n")
            assert await heard(peer) == (200, b"true")

        assert (await heard(await dial(house, uid=3)))[0] == 503
        for peer in users:
            await say(peer, GET)
            assert (await heard(peer))[0] == 200

    tell(story, Rules(of_source=2, in_all=2, evict=True))


def test_bytes_that_prove_nothing_are_bounded_in_all(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        peers = [await dial(house) for _ in range(4)]
        for peer in peers:
            await say(peer, post(MIB) + b" " * 60_000)
        ended = await asyncio.wait_for(peers[0][0].read(), LONG_S)

        assert ended == b""

    tell(story, Rules(of_source=8, in_all=8, evict=True, unproven_bytes=200_000))


def test_connections_that_come_at_once_leave_no_bytes_counted(tell: Callable[..., None]) -> None:
    """A connection evicted before it had a transport was once never closed, its bytes kept."""

    async def story(house: House) -> None:
        sockets = [socket.socket(socket.AF_UNIX) for _ in range(60)]
        for each in sockets:  # the door accepts them all in one go
            each.connect(house.path)
            each.settimeout(0)
            each.send(post(MIB) + b" " * 20_000)
        await asyncio.sleep(0.1)
        for each in sockets:
            each.close()
        for _ in range(500):
            if not house.door.unproven_bytes and not house.door.connections:
                break
            await asyncio.sleep(0.01)

        assert (house.door.unproven_bytes, house.door.connections) == (0, 0)
        assert await ask(house) == 200

    tell(story, Rules(of_source=4, in_all=8, evict=True, unproven_bytes=200_000))


def test_a_connection_evicted_before_it_was_taken_in_is_closed(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        sockets = [socket.socket(socket.AF_UNIX) for _ in range(10)]
        for each in sockets:
            each.connect(house.path)
            each.settimeout(0)
        loop = asyncio.get_running_loop()
        for each in sockets[:6]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(loop.sock_recv(each, 1), LONG_S / 3) == b""

        assert house.door.connections == 4
        for each in sockets:
            each.close()

    tell(story, Rules(of_source=4, in_all=8, evict=True))


def test_descriptors_are_kept_for_nodes_and_operators() -> None:
    """C17: However few there are."""
    for files in (128, 1024, 2000, 1 << 20):
        users, nodes = rules_for_users(files), rules_for_nodes(files)

        assert users.in_all + nodes.in_all + 64 < files
        assert users.of_source <= users.in_all // 4
        assert users.reserved > 0


# --- bodies ---


def test_what_one_user_has_in_flight_is_bounded(tell: Callable[..., None]) -> None:
    """T47: 200 connections, each sending 60 MB slowly, once took 8.5 GB."""
    bodies = Bodies(of_user=4 * MIB, in_all=64 * MIB)

    async def story(house: House) -> None:
        peers = [await dial(house) for _ in range(20)]
        for peer in peers:
            await say(peer, post(8 * MIB))
        most = 0
        for _ in range(16):
            for peer in peers:
                peer[1].write(b" " * 65_536)
            await asyncio.sleep(0.02)
            most = max(most, bodies.held_bytes)
        other = await dial(house, uid=2)
        await say(other, post(2 * MIB) + b" " * MIB)
        refused = [await heard(peer) for peer in peers[-2:]]
        most = max(most, bodies.held_bytes)

        assert most <= 4 * MIB + 20 * 65_536 + MIB
        assert {status for status, _ in refused} == {429}
        for peer in house.peers:
            peer[1].transport.abort()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if not bodies.held_bytes:
                return
        raise AssertionError("bytes of connections that have ended are still counted")

    tell(story, bodies=bodies)


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (post(MAX_SUBMIT_BYTES + 1), 413, "16777217 bytes or more, 16777216 are the limit"),
        (post(2, b"Content-Encoding: gzip\r\n") + b"{}", 400, "compressed requests"),
        (post(2) + b"[]", 400, "Expected `object`"),
        (post(100_000) + b"[" * 100_000, 400, ""),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused_in_words(
    tell: Callable[..., None], request_bytes: bytes, status: int, words: str
) -> None:
    async def story(house: House) -> None:
        peer = await dial(house)
        await say(peer, request_bytes)
        answered = await heard(peer)

        assert answered[0] == status
        assert words in answered[1].decode()

    tell(story)


def test_a_body_of_unknown_length_is_bounded_too(tell: Callable[..., None]) -> None:
    async def story(house: House) -> None:
        peer = await dial(house)
        await say(peer, b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
        for _ in range(17):
            peer[1].write(chunk)
        answered = await heard(peer)

        assert answered[0] == 413

    tell(story)


def job(**fields: object) -> dict[str, object]:
    return {"key": "", "name": "x", "workdir": "/", **fields}


@pytest.mark.parametrize(
    ("jobs", "status", "words"),
    [
        ([job(script="#" * 2 * MIB)], 200, "1"),
        ([job(script="#" * MIB)] * 2, 413, "with several jobs"),
        ([job(environment={f"variable{i:x}": "" for i in range(210_000)})], 413, "31000 texts"),
        ([job(arguments=[""] * 800_000)], 413, "31000 texts"),
        ([job(environment={"A": "x" * 2 * MIB})], 413, "environment has"),
        ([job(arguments=["x" * 2 * MIB])], 413, "arguments has"),
    ],
)
def test_a_large_submission_is_one_job_with_a_large_script(
    tell: Callable[..., None], jobs: list[object], status: int, words: str
) -> None:
    """Anything else of that size would take long to decode, and everybody waits for that."""
    body = json.dumps({"jobs": jobs}).encode()

    async def story(house: House) -> None:
        assert len(body) > MAX_REQUEST_BYTES
        peer = await dial(house)
        await say(peer, post(len(body)) + body)
        answered = await heard(peer)

        assert answered[0] == status
        assert words in answered[1].decode()

    tell(story)


def test_users_take_turns_at_work_that_takes_long() -> None:
    """However many requests one of them has sent."""

    async def run() -> list[int]:
        bodies, order = Bodies(), list[int]()

        async def work(uid: int) -> None:
            async with bodies.turn(uid):
                order.append(uid)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(1) for _ in range(20)), work(2))
        return order

    assert asyncio.run(run()).index(2) <= 2


def test_two_large_requests_that_are_refused_are_not_decoded_in_one_turn_of_the_loop() -> None:
    """Nobody waited for another, as none of them had to wait: four were one long piece."""

    async def run() -> list[int]:
        bodies, turns, begun = Bodies(), [0], list[int]()
        loop = asyncio.get_running_loop()

        def count() -> None:
            turns[0] += 1
            loop.call_soon(count)

        async def refuse() -> None:
            async with bodies.brief(1):
                begun.append(turns[0])
                raise InvalidRequestError("no")

        count()
        await asyncio.gather(*(refuse() for _ in range(4)), return_exceptions=True)
        return begun

    begun = asyncio.run(run())

    assert len(set(begun)) == 4


# --- the socket, and what is logged ---


def test_a_socket_that_can_be_found_can_be_opened(tmp_path: Path) -> None:
    """While heads come and go: a command in the gap once got "permission denied" and gave up."""
    path = tmp_path / "head.sock"
    listen_on_path(str(path), mode=USERS_MODE, key="socket").close()
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                seen.add(oct(stat.S_IMODE(path.stat().st_mode)))
            except FileNotFoundError:
                seen.add("none")

    watcher = threading.Thread(target=watch)
    before = os.umask(0o077)
    watcher.start()
    try:
        for _ in range(300):
            listen_on_path(str(path), mode=USERS_MODE, key="socket").close()
    finally:
        over.set()
        watcher.join()
        os.umask(before)

    assert seen == {"0o666"}


def test_malformed_requests_leave_few_lines_and_no_traceback(
    tell: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """T49: 3,313 tracebacks once filled 4 MB of the log in three minutes."""

    async def story(house: House) -> None:
        for _ in range(50):
            peer = await dial(house)
            await say(peer, b"\x16\x03\x01\r\n\x1b[31m\r\n\r\n")
            await peer[0].read()

    with caplog.at_level(logging.INFO):
        tell(story)

    lines = [record for record in caplog.records if record.name.startswith("gschedd")]
    assert len(lines) <= 6
    assert all(record.exc_info is None for record in lines)
    assert all(record.getMessage().isprintable() for record in lines)


@pytest.mark.parametrize("is_lost", [False, True], ids=["closed", "lost"])
def test_nothing_of_a_host_is_kept_without_a_collection_of_garbage(
    tell: Callable[..., None], *, is_lost: bool
) -> None:
    """A head hardly ever looks at what has lived for a while: no cycle, and no timer, holds it."""

    async def story(house: House) -> None:
        connector = aiohttp.UnixConnector(house.path)
        async with aiohttp.ClientSession(connector=connector) as client:
            for _ in range(5):
                channel = await client.ws_connect("http://head/host")
                await channel.send_bytes(b"x")
                await channel.receive()
                if is_lost:
                    assert channel._response.connection is not None
                    assert channel._response.connection.transport is not None
                    channel._response.connection.transport.abort()
                else:
                    await channel.close()
        assert len(house.channels) == 5
        for each in house.channels:
            while each() is not None:  # noqa: ASYNC110 - nothing tells when it has gone
                await asyncio.sleep(0.01)

    gc.disable()
    try:
        tell(story)
    finally:
        gc.enable()
