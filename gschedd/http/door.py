"""Who gets a connection, and how long it may say nothing.

A connection is counted for its source from the moment it is accepted: for the user at the other end
of a Unix socket, as the kernel tells it, or for an address. Nobody's connections can shut others
out: each source has a limit, some descriptors are kept for operators and for nodes, and a
connection that is silent, slow or does not read is closed. All of that happens before a byte of a
request is looked at.
"""

import asyncio
import contextlib
import errno
import json
import logging
import select
import socket
import ssl
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web
from msgspec import Struct

from gsched.clock import Clock
from gsched.errors import forget_frames
from gsched.logs import Complaints
from gsched.pki.contexts import explain
from gsched.protocol.tokens import Scope
from gschedd.http.pace import Slots
from gschedd.http.tls import begins_tls, shake_hands

log = logging.getLogger("gschedd.http")

ACCEPTS_AT_ONCE: Final = 64  # then others get their turn
NO_DESCRIPTORS_PAUSE_S: Final = 0.2
QUIET_MS: Final = 1000  # who has sent nothing for so long makes room where there is none
FULL_PAUSE_S: Final = 0.05
LINGERING_S: Final = 2.0  # for the rest of a request that was refused
MAX_LINE: Final = 8190  # a request line; the client keeps to it
_ENDED_BY_PEER: Final = (
    "the host ended it, perhaps as it does not trust the authority of this head: its gnode's log "
    "says why"
)
_QUIET_AT: Final = 52  # tcpi_last_data_recv in struct tcp_info: ms since the peer sent something
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Rules(Struct, frozen=True, kw_only=True):
    """What connections are allowed.

    Attributes:
        of_source: open connections of one source.
        in_all: open connections of all sources.
        reserved: how many of ``in_all`` are for operators only.
        header_s: from the connection, or from the last answer, to the end of a request's header.
        stall_s: a peer that takes less than ``least_read_bytes`` of an answer in that time is cut
            off.
        least_read_bytes: see above.
        unproven_bytes: of all connections that have not proven who they are, together.
        evict: a connection beyond the limits takes the place of the oldest that has not proven who
            it is, instead of being refused; beyond ``in_all`` it waits a moment before.
        handshakes: of TLS at the same time, each about 1 ms of CPU time: the next one waits.
        handshake_s: after which a handshake no longer counts for that.
    """

    of_source: int
    in_all: int
    reserved: int = 0
    header_s: float = 10.0
    stall_s: float = 30.0
    least_read_bytes: int = 64 * 1024
    unproven_bytes: int = 128 * 1024 * 1024
    evict: bool = False
    handshakes: int = 8
    handshake_s: float = 0.05


class Source(Struct, frozen=True, kw_only=True):
    """Where a connection comes from: ``uid 1001``, ``uid 1001 on login1`` or an address.

    Attributes:
        uid, gid: of a user's process, by a kernel, or of a token; -1: it is an address.
        host: of which the kernel said it, a node or login host; empty: this machine.
        token: number of the token that tells the user; empty: a kernel does.
        scope: what that token allows.
    """

    name: str
    operator: bool = False
    uid: int = -1
    gid: int = -1
    host: str = ""
    token: str = ""
    scope: Scope = "operate"


class Visitor(web.RequestHandler):
    """One connection; aiohttp speaks HTTP on it, this class watches how it behaves."""

    __slots__ = (
        *("_closed_early", "_door", "_drained", "_request", "_timer"),
        *("arriving", "connection", "is_handed_over", "proven", "received", "source"),
    )

    def __init__(
        self, door: "Door", source: Source, server: web.Server, connection: socket.socket
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=door.rules.header_s,
            logger=log,
            access_log=None,  # type: ignore[arg-type] # aiohttp means none by it
            lingering_time=LINGERING_S,
            auto_decompress=False,
            max_line_size=MAX_LINE,
        )
        self._door = door
        self.source = source
        self.received = 0
        self.proven = False
        self.connection = connection
        self.arriving: asyncio.Task[None] | None = None  # until there is a transport
        self.is_handed_over = False  # to asyncio, which closes it
        self._closed_early = False  # cut off before there was a transport
        self._drained = 0
        self._request: web.BaseRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        self.arriving = None
        super().connection_made(transport)
        if self._closed_early and isinstance(transport, asyncio.Transport):
            transport.abort()
            return
        self._await_header()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        self._stop()
        self._request = None
        self._door.left(self)
        handling = self._task_handler
        super().connection_lost(exc)
        # Requests that have come and are not handled have this object in their bodies.
        if handling is not None:
            handling.add_done_callback(partial(_forget_requests, self._messages))
        else:
            self._messages.clear()
        # aiohttp keeps it: a WebSocket and its connection would hold each other until a full
        # collection of garbage, which a head hardly ever makes.
        self._data_received_cb = None

    def data_received(self, data: bytes) -> None:
        """Count what comes in before the peer has proven who it is."""
        if not self.proven:
            self.received += len(data)
            self._door.received(self, len(data))
        super().data_received(data)
        for message, _ in self._messages:  # aiohttp keeps the error of a malformed request
            forget_frames(getattr(message, "exc", None))

    def log_exception(self, *args: object, **more: object) -> None:
        """Complain of a peer in one line: aiohttp has a traceback for each malformed request."""
        text, error = str(args[0]) if args else "", more.get("exc_info")
        if len(args) > 1:
            text %= args[1:]
        if isinstance(error, BaseException):
            text = f"{text}: {type(error).__name__}: {error}"
        self._door.complaints.say(self.source.name, text)

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request's header is complete and it is being answered."""
        if self.transport is None:  # it was lost after this request had come
            return
        self._request = request
        self._drained = 0
        self._watch()

    def end(self) -> None:
        """Note that a request was handled: its answer leaves, and the next one may come."""
        self._watch()

    def prove(self) -> None:
        """Note that the peer has proven who it is: from now on others watch the connection."""
        self._stop()
        self.proven = True
        self._door.proved(self)

    def complain(self, text: str) -> None:
        """Log a line about this connection's source; many of one source become one."""
        self._door.complaints.say(self.source.name, text)

    def become(self, source: Source) -> bool:
        """Count the connection for a user who has proven who they are; see `Door.becomes`."""
        return self._door.becomes(self, source)

    def cut_off(self, why: str) -> None:
        """Close the connection at once and log why."""
        self._stop()
        self._door.complaints.say(self.source.name, why)
        if self.transport is not None:
            self.transport.abort()
        else:
            self._closed_early = True
            if self.arriving is not None:
                self.arriving.cancel()

    def forget(self) -> None:
        """Let go of the parser, which has this object: aiohttp does so only after a transport."""
        self._parser = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_header(self) -> None:
        self._stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._door.rules.header_s, self._too_slow)

    def _too_slow(self) -> None:
        self.cut_off(f"no whole request within {self._door.rules.header_s:g} s: closed")

    def _watch(self) -> None:
        self._stop()
        if self.transport is None:  # a timer would keep what belongs to it
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._door.rules.stall_s, self._look)

    def _look(self) -> None:
        """Cut off a peer that does not read its answer; an idle one gets the time of a header."""
        request, transport = self._request, self.transport
        if request is None or transport is None:
            return
        left = transport.get_write_buffer_size()
        drained = request.writer.output_size - left
        rules = self._door.rules
        if left and drained - self._drained < rules.least_read_bytes:
            self.cut_off(f"does not read its answer ({left} bytes are left): closed")
            return
        self._drained = drained
        self._watch()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the connection of a request when it begins and has been handled."""
    visitor = request.protocol
    if isinstance(visitor, Visitor):
        visitor.begin(request)
    try:
        return await handler(request)
    finally:
        if isinstance(visitor, Visitor):
            visitor.end()


class Door:
    """Accepts connections on a listening socket.

    Args:
        listener: bound, listening or not yet; owned from now on.
        server: aiohttp's, as `web.AppRunner.server` gives it.
        source_of: who is at the other end of an accepted socket.
        rules: what is allowed.
        clock: for the log's limits.
        tls: returns the context for the next connection; None: the kernel says who is there. What
            begins as no TLS connection is served in clear text, for an answer that refuses it.
    """

    def __init__(  # what a listening socket needs
        self,
        *,
        listener: socket.socket,
        server: web.Server,
        source_of: Callable[[socket.socket], Source],
        rules: Rules,
        clock: Clock,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._tls = tls
        self._listener = listener
        self._server = server
        self._source_of = source_of
        self.rules = rules
        self.complaints = Complaints(log, clock)
        self._open: Counter[str] = Counter()
        self._visitors: dict[Visitor, None] = {}  # a set in the order of arrival
        self._unproven_bytes = 0
        self._arriving: set[asyncio.Task[object]] = set()
        self._handshakes = Slots(rules.handshakes, hold_s=rules.handshake_s)
        self._resume: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Return how many connections are counted."""
        return self._open.total()

    @property
    def unproven_bytes(self) -> int:
        """Return the bytes of all connections that have not proven who they are."""
        return self._unproven_bytes

    def open(self) -> None:
        """Begin to accept."""
        self._listener.settimeout(0.0)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept nobody any more; connections that are open stay."""
        if self._resume is not None:
            self._resume.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()

    # --- accepting ---

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if not self._has_room():
                self._pause(FULL_PAUSE_S)  # hundreds that come at once are served in turn
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self.complaints.say("this process", f"cannot accept a connection: {error.strerror}")
                self._pause(NO_DESCRIPTORS_PAUSE_S)
                return
            self.welcome(connection, self._source_of(connection))

    def _pause(self, wait_s: float) -> None:
        """Let those that are there finish; the kernel keeps who waits."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._resume = loop.call_later(wait_s, self.open)

    def _has_room(self) -> bool:
        """Return whether one more connection may come; make room for it, if anyone only waits."""
        if not self.rules.evict or self._open.total() < self.rules.in_all:
            return True
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        if not waiting.poll(0):
            return True  # nobody waits
        unproven = [each for each in self._visitors if not each.proven]
        if not unproven:
            return True  # it is refused in words
        quiet = next((each for each in unproven if _is_quiet(each.connection)), None)
        if quiet is not None:
            self._cut_off(quiet)
        return quiet is not None

    def welcome(self, connection: socket.socket, source: Source) -> None:
        """Serve a connection of this source, or refuse it; it is owned from now on."""
        connection.settimeout(0.0)
        refusal = self._refusal(source)
        if refusal is not None:
            status, text = refusal
            self.complaints.say(source.name, f"refused: {text}")
            with contextlib.suppress(OSError):
                connection.send(_refusal_bytes(status, text))
            connection.close()
            return
        self._open[source.name] += 1
        visitor = Visitor(self, source, self._server, connection)
        self._visitors[visitor] = None
        loop = asyncio.get_running_loop()
        task = visitor.arriving = loop.create_task(self._take_in(visitor, connection))
        self._arriving.add(task)
        task.add_done_callback(partial(self._arrived, visitor, connection))

    async def _take_in(self, visitor: Visitor, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.rules.header_s):
                is_tls = self._tls is not None and await begins_tls(connection)
            if self._tls is None or not is_tls:
                visitor.is_handed_over = True
                await loop.connect_accepted_socket(lambda: visitor, connection)
                return
            async with self._handshakes.slot():
                context = self._tls()
                visitor.is_handed_over = True
                await shake_hands(visitor, connection, context, self.rules.header_s)
        except OSError as error:  # TimeoutError and ssl.SSLError are some
            why = explain(error, is_head=True) or error.strerror or _ENDED_BY_PEER
            if isinstance(error, TimeoutError | ConnectionAbortedError):  # asyncio's own
                why = "too slow"
            self.complaints.say(visitor.source.name, f"no TLS connection: {why}")
            forget_frames(error)
            self._drop(visitor, connection)

    def _arrived(
        self, visitor: Visitor, connection: socket.socket, task: "asyncio.Task[None]"
    ) -> None:
        self._arriving.discard(task)
        visitor.arriving = None  # it has the frames of its cancellation, which have the visitor
        if task.cancelled():  # it was cut off, perhaps before the task began
            self._drop(visitor, connection)
        elif (error := task.exception()) is not None:  # a fault: its place must not stay taken
            self.complaints.say(visitor.source.name, f"not served: {type(error).__name__}: {error}")
            self._drop(visitor, connection)

    def _drop(self, visitor: Visitor, connection: socket.socket) -> None:
        self.left(visitor)
        visitor.forget()
        if not visitor.is_handed_over:  # a transport would have a descriptor that others get
            connection.close()

    def _refusal(self, source: Source) -> tuple[int, str] | None:
        """Return why a connection is refused; make room for it where rules say so."""
        of_source, in_all = self._open[source.name], self._open.total()
        if of_source >= self.rules.of_source:
            if self.rules.evict and self._evict(source):
                return None
            text = f"{source.name} has {of_source} open connections, the limit"
            return 429, text
        most = self.rules.in_all if source.operator else self.rules.in_all - self.rules.reserved
        if in_all >= most:
            if self.rules.evict and self._evict(None):
                return None
            return 503, f"the head has {in_all} open connections, the limit"
        return None

    def _evict(self, source: Source | None) -> bool:
        """Close the oldest connection (of a source) that has not proven who it is, if any."""
        for visitor in self._visitors:
            if not visitor.proven and (source is None or visitor.source == source):
                self._cut_off(visitor)
                return True
        return False

    def _cut_off(self, visitor: Visitor) -> None:
        visitor.cut_off("closed: too many unauthenticated connections")
        self._forget(visitor)

    # --- what visitors tell ---

    def received(self, visitor: Visitor, count: int) -> None:
        """Count bytes of a connection that has not proven who it is."""
        if not self.rules.evict:
            return  # a user's: the kernel has said who it is
        if visitor not in self._visitors:
            return  # it was cut off, and its bytes are no longer counted
        self._unproven_bytes += count
        if self._unproven_bytes > self.rules.unproven_bytes:
            largest = max(
                (each for each in self._visitors if not each.proven),
                key=lambda each: each.received,
                default=visitor,
            )
            largest.cut_off(f"closed after {largest.received} bytes without authentication")
            self._forget(largest)

    def proved(self, visitor: Visitor) -> None:
        """Count a connection no longer: it belongs to a node."""
        self._forget(visitor)

    def becomes(self, visitor: Visitor, source: Source) -> bool:
        """Count a connection for another source from now on.

        Returns:
            whether that source may have one more.
        """
        before = visitor.source.name
        if visitor in self._visitors and source.name != before:
            if self._open[source.name] >= self.rules.of_source:
                return False
            self._open.update({source.name: 1, before: -1})
            if not self._open[before]:
                del self._open[before]
            self._unproven_bytes -= visitor.received if self.rules.evict else 0
            visitor.received, visitor.proven = 0, True
        visitor.source = source
        return True

    def left(self, visitor: Visitor) -> None:
        """Give the place of a connection back."""
        self._forget(visitor)

    def _forget(self, visitor: Visitor) -> None:
        if visitor not in self._visitors:
            return
        del self._visitors[visitor]
        self._unproven_bytes -= visitor.received if self.rules.evict else 0
        name = visitor.source.name
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


def _forget_requests(requests: deque[Any], task: "asyncio.Task[None]") -> None:
    del task
    requests.clear()


class Doors:
    """Listening sockets, each with the application that answers there.

    Args:
        clock: for the log's limits.
        shutdown_s: how long requests may still take when connections are closed.
    """

    def __init__(self, clock: Clock, *, shutdown_s: float = 60.0) -> None:
        self._clock = clock
        self._shutdown_s = shutdown_s
        self._doors: list[Door] = []
        self._runners: list[web.AppRunner] = []

    async def serve(
        self,
        app: web.Application,
        listener: socket.socket,
        source_of: Callable[[socket.socket], Source],
        rules: Rules,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> Door:
        """Return a door that accepts on a socket; the arguments are those of `Door`."""
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=self._shutdown_s
        )
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None, "it was set up"
        door = Door(
            listener=listener,
            server=runner.server,
            source_of=source_of,
            rules=rules,
            clock=self._clock,
            tls=tls,
        )
        door.open()
        self._doors.append(door)
        return door

    def close(self) -> None:
        """Accept nobody any more; connections that are open stay."""
        for door in self._doors:
            door.close()

    def cut_off(self, why: str) -> None:
        """Close all connections at once, requests under way with them; accept others."""
        for runner in self._runners:
            assert runner.server is not None, "it was set up"
            for visitor in list(runner.server.connections):
                assert isinstance(visitor, Visitor), "a door makes no others"
                visitor.cut_off(why)

    async def cleanup(self) -> None:
        """Close all connections."""
        for runner in self._runners:
            await runner.cleanup()


def _is_quiet(connection: socket.socket) -> bool:
    """Return whether the peer is to say something, and has said nothing for a while."""
    try:
        with contextlib.suppress(BlockingIOError):
            return not connection.recv(1, socket.MSG_PEEK)  # the peer waits for us, or has ended
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _QUIET_AT + 4)
    except OSError:  # it has ended, or is a Unix socket
        return True
    return int.from_bytes(info[_QUIET_AT:], sys.byteorder) >= QUIET_MS


def _refusal_bytes(status: int, text: str) -> bytes:
    body = json.dumps(
        {"error": {"code": "try_again", "message": text, "hint": "try again in a moment"}}
    ).encode()
    reason = "Too Many Requests" if status == 429 else "Service Unavailable"
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
