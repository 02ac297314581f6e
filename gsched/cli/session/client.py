"""The client of a terminal session: keys to the program, output to the terminal, and again.

When the connection breaks, because the head or gnode is restarted, it connects again and goes on
where the output stopped.
"""

import asyncio
import contextlib
import enum
import os
import signal
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from gsched import terminal as t
from gsched.cli.session.console import STDIN, Console, read_keys, write_all
from gsched.errors import UsageError
from gsched.head_address import HeadAddress
from gsched.protocol.api import ErrorBody
from gsched.protocol.sessions import SessionNotice
from gsched.ssh import local_socket
from gsched.terminal import Escape, FrameKind
from gsched.transport import quote

RECONNECT_S: Final = 120.0  # a restart of the head or of gnode takes some seconds
PAUSE_FIRST_S: Final = 0.2
PAUSE_LONGEST_S: Final = 2.0
CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 2.0
_BASE: Final = "http://gschedd"
BAD_GATEWAY: Final = 502  # of gnode: the head is away
MAX_TARGET: Final = 7500  # characters of a request line
MAX_TYPED_BYTES: Final = 256 * 1024
_SLOW_S: Final = 1.0

_event_decoder = msgspec.json.Decoder(SessionNotice)


class How(enum.Enum):
    """How a session has ended for its client."""

    PROGRAM_ENDED = "the program has ended"
    JOB_ENDED = "the job has ended"
    TAKEN = "another client has it"
    DETACHED = "detached"
    ABORTED = "~."
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    LOST = "lost"


class SessionEnd(Struct, frozen=True, kw_only=True):
    """How it ended.

    Attributes:
        status: of the program, as `gsched.terminal.end_frame` has it.
        begun: there was a terminal.
        error: why it was refused.
        reason: how it was lost.
        signal: by which this process was told to end; 0: by none.
    """

    how: How
    status: int = 0
    begun: bool = False
    error: ErrorBody | None = None
    reason: str = ""
    signal: int = 0


class SessionTarget(Struct, frozen=True, kw_only=True):
    """What is wanted: see `gsched.protocol.sessions.OpenSession`.

    Attributes:
        job: as the user wrote it.
        shown: as messages name it.
        help: what the escapes do, a line each.
        announced: the user knows that the job may have to wait.
    """

    job: str
    shown: str
    command: str
    node: str = ""
    terminal: str = ""
    start: bool = False
    forward: bool = False
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    escapes: frozenset[Escape] = frozenset(Escape)
    help: tuple[str, ...] = ()
    announced: bool = False

    def path(self, *, start: bool) -> str:
        """Return path and query of the request.

        Raises:
            UsageError: the command is too long.
        """
        query = {
            "node": self.node,
            "terminal": self.terminal,
            "start": "1" if start else "",
            "forward": "1" if self.forward else "",
            "arguments": msgspec.json.encode(self.arguments).decode() if start else "",
            "variables": msgspec.json.encode(self.variables).decode() if start else "",
        }
        words = "&".join(f"{name}={quote(text)}" for name, text in query.items() if text)
        path = f"/v1/jobs/{quote(self.job)}/session?{words}"
        if len(path) > MAX_TARGET:
            raise UsageError(
                f"the command has {sum(map(len, self.arguments))} characters, which is too long",
                hint="put it into a script, and run that",
            )
        return path


def run_session(address: HeadAddress, target: SessionTarget, console: Console) -> SessionEnd:
    """Connect the user's terminal with a job's until one of them is left.

    Raises:
        UsageError: the command is too long.
    """
    target.path(start=target.start)
    try:
        return asyncio.run(_SessionClient(address, target, console).run())
    finally:
        console.restore()


class _SessionClient:
    def __init__(self, address: HeadAddress, target: SessionTarget, console: Console) -> None:
        self._address = address
        self._target = target
        self._console = console
        self._keyboard = t.Keyboard(target.escapes)
        self._typed = bytearray()
        self._has_typed = asyncio.Event()
        self._channel: aiohttp.ClientWebSocketResponse | None = None
        self._is_attached = False
        self._begun = False
        self._seen: int | None = None
        self._ending: asyncio.Future[SessionEnd] | None = None
        self._reads_keys = False
        self._waits_for = ""

    def _say(self, text: str) -> None:
        self._console.note(text, command=self._target.command)

    async def run(self) -> SessionEnd:
        loop = asyncio.get_running_loop()
        self._ending = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        talking = asyncio.create_task(self._talk())
        try:
            await asyncio.wait({talking, self._ending}, return_when=asyncio.FIRST_COMPLETED)
            return self._ending.result() if self._ending.done() else talking.result()
        finally:
            self._stop_keys()
            if self._target.start and self._is_attached and self._channel is not None:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._channel.send_bytes(t.frame(FrameKind.HANG_UP))
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def _end(self, ending: SessionEnd) -> None:
        assert self._ending is not None, "it runs"
        if not self._ending.done():
            self._ending.set_result(ending)

    # --- the user ---

    def _on_signal(self, number: int) -> None:
        how = How.DETACHED if self._begun else How.INTERRUPTED
        self._end(SessionEnd(how=how, begun=self._begun, signal=number))

    def _on_resize(self) -> None:
        if self._is_attached:
            self._send_soon(t.window_frame(self._console.window()))

    def _start_keys(self) -> None:
        if self._console.is_terminal and not self._reads_keys:
            self._reads_keys = True
            asyncio.get_running_loop().add_reader(STDIN, self._on_keys)

    def _stop_keys(self) -> None:
        if self._reads_keys:
            self._reads_keys = False
            asyncio.get_running_loop().remove_reader(STDIN)

    def _on_keys(self) -> None:
        data = read_keys()
        if not data:  # the terminal is gone
            self._end(SessionEnd(how=How.DETACHED, begun=self._begun, signal=signal.SIGHUP))
            return
        for each in self._keyboard.typed(data):
            if isinstance(each, Escape):
                self._obey(each)
            elif self._is_attached:
                self._typed += each
        if self._typed:
            self._has_typed.set()
        if len(self._typed) > MAX_TYPED_BYTES:
            self._stop_keys()

    def _obey(self, escape: Escape) -> None:
        match escape:
            case Escape.HELP:
                for line in self._target.help:
                    self._say(line)
            case Escape.DETACH:
                self._end(SessionEnd(how=How.DETACHED, begun=self._begun))
            case Escape.ABORT if self._target.start and self._is_attached:
                self._send_soon(t.frame(FrameKind.HANG_UP))  # it says then that it has ended
            case Escape.ABORT:
                self._end(SessionEnd(how=How.ABORTED, begun=self._begun))

    def _send_soon(self, frame: bytes) -> None:
        if self._channel is not None:
            task = asyncio.ensure_future(self._channel.send_bytes(frame))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _type(self, channel: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._has_typed.wait()
            self._has_typed.clear()
            while self._typed:
                piece = bytes(self._typed[: t.MAX_CONTENT_BYTES])
                del self._typed[: len(piece)]
                await channel.send_bytes(t.frame(FrameKind.DATA, piece))
            self._start_keys()

    # --- the head ---

    async def _talk(self) -> SessionEnd:
        """Connect, again and again until it makes no sense any more."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + _SLOW_S
        pause_s, is_noted = PAUSE_FIRST_S, False
        while True:
            since_s = loop.time()
            try:
                ending = await self._connection()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                ending = SessionEnd(how=How.LOST, reason=lost_words(error))
            if ending.how is not How.LOST:
                return ending
            if self._is_attached or loop.time() - since_s > PAUSE_LONGEST_S:
                give_up_s, pause_s, is_noted = loop.time() + RECONNECT_S, PAUSE_FIRST_S, False
            self._is_attached = False
            if loop.time() >= give_up_s:
                return SessionEnd(how=How.LOST, begun=self._begun, reason=ending.reason)
            if not is_noted and (self._begun or self._waits_for):
                self._say(f"{ending.reason}: connecting again")
                is_noted = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    async def _connection(self) -> SessionEnd:
        path = self._target.path(start=self._target.start and not self._begun)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        closing = aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S)
        with contextlib.ExitStack() as stack:
            connector, base = connector_of(self._address, stack)
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as client,
                client.ws_connect(
                    URL(base + path, encoded=True),
                    max_msg_size=t.MAX_FRAME_BYTES,
                    compress=0,
                    timeout=closing,
                ) as channel,
            ):
                self._channel = channel
                typing = asyncio.create_task(self._type(channel))
                try:
                    return await self._read(channel)
                finally:
                    self._channel = None
                    typing.cancel()
                    await asyncio.gather(typing, return_exceptions=True)

    async def _read(self, channel: aiohttp.ClientWebSocketResponse) -> SessionEnd:
        async for message in channel:
            if message.type is aiohttp.WSMsgType.TEXT:
                ending = await self._hear(_event_decoder.decode(message.data), channel)
            elif message.type is aiohttp.WSMsgType.BINARY:
                ending = await self._take(*t.split(message.data))
            else:
                break
            if ending is not None:
                return ending
        return SessionEnd(how=How.LOST, reason="the connection to the head is lost")

    async def _hear(
        self, event: SessionNotice, channel: aiohttp.ClientWebSocketResponse
    ) -> SessionEnd | None:
        match event.what:
            case "waiting":
                self._wait(event.reason)
            case "ready":
                await self._attach(event.node, channel)
            case "ended":
                return SessionEnd(how=How.JOB_ENDED, begun=self._begun)
            case "lost":
                return SessionEnd(how=How.LOST, begun=self._begun, reason=event.reason)
            case "refused":
                if self._begun and event.code == "try_again":
                    return SessionEnd(how=How.LOST, begun=True, reason=event.reason)
                error = ErrorBody(code=event.code, message=event.reason, hint=event.hint)
                return SessionEnd(how=How.REFUSED, begun=self._begun, error=error)
            case _:  # of a newer head
                pass
        return None

    def _wait(self, reason: str) -> None:
        if not (self._waits_for or self._begun or self._target.announced):
            self._say(f"waiting for job {self._target.shown} to start")
        if reason and reason != self._waits_for:
            self._say(f"job {self._target.shown} waits: {reason}")
        self._waits_for = reason or self._waits_for or "its turn"

    async def _attach(self, node: str, channel: aiohttp.ClientWebSocketResponse) -> None:
        if not self._begun and not self._target.terminal:
            self._say(f"job {self._target.shown} ready on {node}")
        elif self._begun:
            self._say("connected again")
        self._begun = self._is_attached = True
        self._console.make_raw()
        self._typed.clear()
        await channel.send_bytes(t.attach_frame(self._console.window(), offset=self._seen))
        self._start_keys()

    async def _take(self, kind: FrameKind, content: bytes) -> SessionEnd | None:
        match kind:
            case FrameKind.OFFSET:
                begin = t.offset_of(content)
                if self._seen is not None and begin > self._seen:
                    self._say(f"{begin - self._seen} bytes of output are lost")
                self._seen = begin
            case FrameKind.DATA:
                self._seen = (self._seen or 0) + len(content)
                await asyncio.to_thread(write_all, content)
            case FrameKind.NOTE:
                self._say(content.decode("utf-8", "replace"))
            case FrameKind.TAKEN:
                return SessionEnd(how=How.TAKEN, begun=True)
            case FrameKind.END:
                return SessionEnd(how=How.PROGRAM_ENDED, status=t.end_of(content), begun=True)
            case _:
                raise t.FrameError(f"{kind} from the head")
        return None


def connector_of(
    address: HeadAddress, stack: contextlib.ExitStack
) -> tuple[aiohttp.BaseConnector | None, str]:
    """Return how to connect to the head, and the beginning of its URLs.

    Raises:
        UsageError: as `HeadAddress.check_sessions`.
    """
    address.check_sessions()
    if address.ssh is not None:
        return aiohttp.UnixConnector(stack.enter_context(local_socket(address.ssh))), _BASE
    if not address.path:
        return None, f"http://{address.host}:{address.port}"
    # The kernel takes 107 bytes; a directory's descriptor gives a long path a short name.
    directory, name = os.path.split(address.path)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, place)
    return aiohttp.UnixConnector(f"/proc/self/fd/{place}/{name}"), _BASE


def lost_words(error: Exception) -> str:
    """Return why there is no connection to the head."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        if error.status == BAD_GATEWAY:
            return f"the head cannot be reached: {error.message}"
        return f"the head refuses sessions: {error.message}"
    if isinstance(error, OSError) and error.strerror:
        return f"the head cannot be reached: {error.strerror.lower()}"
    return f"the connection to the head is lost: {str(error) or type(error).__name__}"
