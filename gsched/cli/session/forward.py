"""``gshell -L``: ports of this machine that lead to ports of a job's node.

The client listens on 127.0.0.1 and carries all connections in one session of the job. When the
session is lost, as at a restart of the head, its connections end and a new one is begun.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import aiohttp
import msgspec
from msgspec import structs
from yarl import URL

from gsched import terminal as t
from gsched.cli.session.client import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    PAUSE_FIRST_S,
    PAUSE_LONGEST_S,
    RECONNECT_S,
    SessionTarget,
    connector_of,
    lost_words,
)
from gsched.errors import CannotWriteError, GschedError, HeadUnreachableError, UsageError
from gsched.forwarding import (
    CONNECTIONS_MAX,
    GREETING,
    PIECE_BYTES,
    WINDOW_BYTES,
    RecordError,
    RecordKind,
    Records,
    count_of,
    open_record,
    record,
    taken_record,
)
from gsched.head_address import HeadAddress
from gsched.head_calls import error_from
from gsched.protocol.api import ErrorBody
from gsched.protocol.sessions import SessionNotice
from gsched.terminal import FrameKind, TerminalSize

_LOOPBACK: Final = "127.0.0.1"
_UNPRIVILEGED: Final = 1024  # the first port that users can have
_LAST: Final = 65535
_STOP_S: Final = 2.0
_event_decoder = msgspec.json.Decoder(SessionNotice)


class ForwardRule(NamedTuple):
    """A port of this machine, and the port of the job's node to which it leads."""

    local: int
    remote: int


def read_rule(text: str) -> ForwardRule:
    """Return what ``8888:8888``, or ``8888`` for the same port on both sides, says.

    Raises:
        UsageError: it names no ports.
    """
    words = text.split(":")
    numbers = [int(word) if word.isascii() and word.isdecimal() else 0 for word in words]
    if len(words) > 2 or not all(0 < number < 65536 for number in numbers):
        raise UsageError(
            f"-L {text}: not a pair of ports",
            hint="write -L LOCAL:REMOTE, as in -L 8888:8888; it listens on 127.0.0.1",
        )
    return ForwardRule(numbers[0], numbers[-1])


def listen(rules: Sequence[ForwardRule]) -> list[tuple[ForwardRule, socket.socket]]:
    """Return a listening socket for each rule.

    Raises:
        CannotWriteError: a port cannot be had.
    """
    found: list[tuple[ForwardRule, socket.socket]] = []
    for rule in rules:
        try:
            found.append((rule, socket.create_server((_LOOPBACK, rule.local))))
        except OSError as error:
            for _, made in found:
                made.close()
            raise CannotWriteError(
                f"cannot listen on port {rule.local} of this machine: "
                f"{os.strerror(error.errno or 0).lower()}",
                hint=f"choose another one: {another(rule)}",
            ) from None
    return found


def another(rule: ForwardRule) -> str:
    """Return the option for another port of this machine: one that is not root's."""
    local = rule.local + 1
    if rule.local < _UNPRIVILEGED:
        local = rule.local + 8000
    return f"-L {local if local <= _LAST else 8000}:{rule.remote}"


class _ForwardedConnection:
    """One connection of a program of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.window = WINDOW_BYTES
        self.has_window = asyncio.Event()
        self.has_window.set()
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.waiting = 0  # bytes in it

    def close(self, why: str = "") -> None:
        """End it: nothing more comes."""
        if not self.opened.done():
            self.opened.set_result(why or "closed")
        self.window = -1
        self.has_window.set()
        self.arrived.put_nowait(None)


class Forwarding:
    """The forwarded ports of one command.

    Args:
        address: of the head.
        target: the job, and on which node.
        listeners: see `listen`.
        say: tells the user something.
    """

    def __init__(
        self,
        address: HeadAddress,
        target: SessionTarget,
        listeners: Sequence[tuple[ForwardRule, socket.socket]],
        say: Callable[[str], None],
    ) -> None:
        self._address = address
        self._target = target
        self._listeners = listeners
        self._say = say
        self._numbers = itertools.count(1)
        self._connections: dict[int, _ForwardedConnection] = {}
        self._channel: aiohttp.ClientWebSocketResponse | None = None
        self._sending = asyncio.Lock()
        self._records = Records()
        self._greeted = False
        self._greeting = bytearray()  # before the greeting: why there is none
        self._begun = False
        self._lost = ""  # what the head says of why the session has ended
        self._is_full = False  # and that has been said
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Forward until the job has ended, or this is cancelled.

        Raises:
            GschedError: there is no session, or no more.
        """
        servers = [
            await asyncio.start_server(self._accepting(rule), sock=made, limit=PIECE_BYTES)
            for rule, made in self._listeners
        ]
        try:
            await self._talk()
        finally:
            for server in servers:
                server.close()
            self._drop_all()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- programs of this machine ---

    def _accepting(
        self, rule: ForwardRule
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(rule, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    async def _carry(
        self, rule: ForwardRule, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection from its begin to its end."""
        number, each = next(self._numbers), _ForwardedConnection(rule.remote)
        try:
            if not is_own(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
                self._say(f"port {rule.local}: a connection of another user is refused")
                return
            if not self._greeted:
                return
            if len(self._connections) >= CONNECTIONS_MAX:
                if not self._is_full:
                    self._say(
                        f"{CONNECTIONS_MAX} connections are open, the limit: more are refused"
                    )
                self._is_full = True
                return
            self._is_full = False
            self._connections[number] = each
            await self._send(open_record(number, rule.remote))
            why = await each.opened
            if why:
                self._say(f"port {rule.remote} of the job: {why}")
                return
            down = asyncio.create_task(self._down(number, each, writer))
            try:
                await self._up(number, each, reader)
                await down
            finally:
                down.cancel()
                await asyncio.gather(down, return_exceptions=True)
        except (OSError, aiohttp.ClientError):
            pass  # the program is gone, or the session is
        finally:
            if self._connections.pop(number, None) is not None:
                with contextlib.suppress(OSError, aiohttp.ClientError):
                    await self._send(record(RecordKind.CLOSE, number))
            writer.close()

    async def _up(
        self, number: int, each: _ForwardedConnection, reader: asyncio.StreamReader
    ) -> None:
        """Send what the program writes, as far as the job takes it."""
        while True:
            await each.has_window.wait()
            if each.window < 0:
                return
            data = await reader.read(min(PIECE_BYTES, each.window))
            if not data:
                await self._send(record(RecordKind.EOF, number))
                return
            each.window -= len(data)
            if each.window == 0:
                each.has_window.clear()
            await self._send(record(RecordKind.DATA, number, data))

    async def _down(
        self, number: int, each: _ForwardedConnection, writer: asyncio.StreamWriter
    ) -> None:
        """Write what the job sends, until it ends."""
        while (data := await each.arrived.get()) is not None:
            writer.write(data)
            await writer.drain()
            each.waiting -= len(data)
            await self._send(taken_record(number, len(data)))
        if writer.can_write_eof():
            writer.write_eof()

    # --- the job ---

    async def _send(self, content: bytes) -> None:
        channel = self._channel
        if channel is None:
            raise ConnectionResetError
        async with self._sending:
            await channel.send_bytes(t.frame(FrameKind.DATA, content))

    def _drop_all(self) -> None:
        self._channel, self._greeted = None, False
        connections, self._connections = self._connections, {}
        for each in connections.values():
            each.close("the connection to the job is lost")

    async def _talk(self) -> None:
        loop = asyncio.get_running_loop()
        give_up_s, pause_s = loop.time() + PAUSE_LONGEST_S, PAUSE_FIRST_S
        while True:
            self._lost = ""
            try:
                if await self._session():
                    return
                reason = self._lost or "the connection to the head is lost"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                reason = lost_words(error)
            except (RecordError, t.FrameError) as error:
                raise HeadUnreachableError(f"forwarding is broken: {error}") from error
            if self._greeted:
                give_up_s, pause_s = loop.time() + RECONNECT_S, PAUSE_FIRST_S
                self._say(f"{reason}: connecting again")
            self._drop_all()
            if loop.time() >= give_up_s:
                raise HeadUnreachableError(f"ports are no longer forwarded: {reason}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    async def _session(self) -> bool:
        """Carry one session; return whether the job has ended."""
        target = structs.replace(self._target, terminal=os.urandom(16).hex(), start=True)
        self._records, self._greeting = Records(), bytearray()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        closing = aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S)
        with contextlib.ExitStack() as stack:
            connector, base = connector_of(self._address, stack)
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as client,
                client.ws_connect(
                    URL(base + target.path(start=True), encoded=True),
                    max_msg_size=t.MAX_FRAME_BYTES,
                    compress=0,
                    timeout=closing,
                ) as channel,
            ):
                try:
                    return await self._read(channel)
                finally:
                    if self._greeted:
                        with contextlib.suppress(OSError, aiohttp.ClientError):
                            await channel.send_bytes(t.frame(FrameKind.HANG_UP))

    async def _read(self, channel: aiohttp.ClientWebSocketResponse) -> bool:
        async for message in channel:
            if message.type is aiohttp.WSMsgType.TEXT:
                event = _event_decoder.decode(message.data)
                if event.what == "ready":
                    self._channel = channel
                    await channel.send_bytes(t.attach_frame(TerminalSize(0, 0)))
                elif event.what == "refused":
                    return self._refused(event)
                elif event.what == "lost":
                    self._lost = event.reason
                    return False
            elif message.type is aiohttp.WSMsgType.BINARY:
                if self._take(*t.split(message.data)):
                    return True
            else:
                break
        return False

    def _refused(self, event: SessionNotice) -> bool:
        """Return that the job has ended, if this is why there is no session any more.

        Raises:
            GschedError: it is not.
        """
        if self._begun and event.code == "try_again":
            return False
        if self._begun and event.code == "bad_state":
            self._say(event.reason)
            return True
        raise error_from(ErrorBody(code=event.code, message=event.reason, hint=event.hint))

    def _take(self, kind: FrameKind, content: bytes) -> bool:
        """Take a frame of the session; return whether the relay, and so the job, has ended."""
        match kind:
            case FrameKind.DATA:
                self._take_data(content)
            case FrameKind.NOTE:
                self._say(content.decode("utf-8", "replace"))
            case FrameKind.END:
                if not self._greeted:
                    words = self._greeting.decode("utf-8", "replace").strip()
                    raise HeadUnreachableError(f"the job does not forward ports: {words}")
                return True
            case _:
                pass
        return False

    def _take_data(self, content: bytes) -> None:
        if not self._greeted:
            self._greeting += content
            at = self._greeting.find(GREETING)
            if at < 0:
                return
            content = bytes(self._greeting[at + len(GREETING) :])
            self._greeted = True
            for rule, _ in self._listeners:
                self._say(
                    f"http://{_LOOPBACK}:{rule.local} leads to port {rule.remote} of job "
                    f"{self._target.shown}" + (": connected again" if self._begun else "")
                )
            self._begun = True
        for part, number, data in self._records.feed(content):
            each = self._connections.get(number)
            if each is not None:
                self._heed(part, number, each, data)

    def _heed(self, part: RecordKind, number: int, each: _ForwardedConnection, data: bytes) -> None:
        match part:
            case RecordKind.OPENED:
                if not each.opened.done():
                    each.opened.set_result("")
            case RecordKind.FAILED:
                del self._connections[number]
                each.close(data.decode("utf-8", "replace"))
            case RecordKind.DATA:
                each.waiting += len(data)
                if each.waiting > WINDOW_BYTES:
                    raise RecordError("more than the window")
                each.arrived.put_nowait(data)
            case RecordKind.TAKEN:
                each.window += count_of(data)
                each.has_window.set()
            case RecordKind.EOF:
                each.arrived.put_nowait(None)
            case RecordKind.CLOSE:
                del self._connections[number]
                each.close()
            case _:
                raise RecordError(f"{part} from a relay")


def is_own(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Return whether a connection over loopback is of this user or of root.

    Without ``/proc`` it is taken for that.
    """
    wanted = f"{_hex(peer)} {_hex(here)}"
    with contextlib.suppress(OSError), open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            words = line.split()
            if " ".join(words[1:3]) == wanted:
                return int(words[7]) in {0, os.geteuid()}
    return True


def _hex(address: tuple[str, int]) -> str:
    """Return an address as ``/proc/net/tcp`` writes it."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def forward(forwarding: Callable[[], Forwarding]) -> None:
    """Forward until the job ends or Ctrl-C.

    Raises:
        GschedError: there is no session, or no more.
    """

    async def run() -> None:
        await forwarding().run()

    asyncio.run(run())


class Beside:
    """Forwards ports by a thread, beside a shell in the foreground."""

    def __init__(self, forwarding: Callable[[], Forwarding], say: Callable[[str], None]) -> None:
        self._make = forwarding
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End: the user has left the shell."""
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        async def run() -> None:
            self._task = asyncio.current_task()
            try:
                await self._make().run()
            except GschedError as error:
                self._say(error.message)

        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(run())
