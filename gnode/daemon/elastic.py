"""The socket of elastic training jobs at gnode: orders down, checkpoints and progress up.

Programs that start tasks on other nodes of their job, and step agents, come by it, too: they are
`gnode.daemon.steps`'s.

Any process of this machine can connect, so that nothing of what comes in is believed before the
kernel has said whose process it is, and nothing can make gnode wait, grow or fall: lines,
connections and their rate are bounded, and who breaks the rules is cut off with a word why.

A training may lose its connection, and gnode may be restarted. The last order to an attempt is
therefore said again to whoever connects as it (orders have numbers, so that twice is like once),
and an order to one that is not connected waits for some seconds where it may yet come.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gnode.core.effects import TellJob
from gnode.core.inputs import Input, TrainingMessage
from gnode.core.table import NodeAttempt
from gnode.core.task import AttemptKey
from gnode.daemon.steps import StepServer
from gsched.clock import Clock
from gsched.logs import Complaints
from gsched.model.limits import (
    MAX_TRAINING_CONNECTIONS,
    MAX_TRAINING_LINES,
    MAX_USER_TRAINING_CONNECTIONS,
)
from gsched.protocol import training as wire
from gsched.protocol.node import CheckpointFailed, GoOn, Prepared, TakeCheckpoint, TuneTraining
from gsched.unix_address import address_of

log = logging.getLogger(__name__)

CONNECT_S = 15.0  # importing torch takes some seconds; a training that does not come by then won't
HELLO_TIMEOUT_S = 10.0
LINES_PER_S = 5.0
UNSENT_BYTES_MAX = 64 * 1024
BIND_PAUSE_S = 1.0
SOCKET_MODE = 0o666  # anybody may connect; whose process it is, the kernel says
LISTEN_BACKLOG = 100
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)

NOT_CONNECTED = "it is not connected to gnode: does the script use gsched.elastic?"
CONNECTION_LOST = "it has lost its connection to gnode and has not come back"


def socket_path(state_dir: str) -> str:
    """Return the path of the socket of the gnode with this state directory.

    Nobody but gnode can write that directory, so while gnode is away nobody can listen in its
    place; an abstract name would belong to whoever takes it first.
    """
    return os.path.join(os.path.realpath(state_dir), wire.SOCKET_NAME)


def listen(path: str) -> socket.socket:
    """Return a socket that everybody can connect to, in place of that of an earlier gnode.

    It gets its mode under another name, so that nobody is ever refused by the old one.

    Raises:
        OSError: the directory cannot be written.
    """
    new = f"{path}.new"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        with address_of(new) as address:
            listener.bind(address)
        os.chmod(new, SOCKET_MODE)
        listener.listen(LISTEN_BACKLOG)
        os.rename(new, path)
    except BaseException:
        listener.close()
        raise
    return listener


Introduction = (
    wire.TrainingHello
    | wire.Ready
    | wire.StepCall
    | wire.StepAgentHello
    | wire.CodeHello
    | wire.StageHello
)


class _RefusedError(Exception):
    """The peer is not talked to; the message says why."""


@dataclass(slots=True, kw_only=True)
class _Peer:
    """One connection that has said which attempt it is of, and on how many ranks that can run."""

    key: AttemptKey
    writer: asyncio.StreamWriter
    world_sizes: tuple[int, ...] = ()
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, kw_only=True)
class _Order:
    """The last order to an attempt; with a timer while it is not sure that it can be obeyed."""

    message: TakeCheckpoint | GoOn
    answered: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, kw_only=True)
class _Rate:
    """How many lines of an attempt may still be heard at once, whatever connection they are on."""

    clock: Clock
    left: float = MAX_TRAINING_LINES
    at_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.at_s = self.clock.monotonic_s()

    def pause_s(self) -> float:
        """Count a line and return how long to wait before it is heard, seconds."""
        now_s = self.clock.monotonic_s()
        self.left = min(MAX_TRAINING_LINES, self.left + LINES_PER_S * (now_s - self.at_s)) - 1.0
        self.at_s = now_s
        return 0.0 if self.left >= 0 else -self.left / LINES_PER_S


class ElasticServer:
    """Serves the socket.

    Args:
        path: of the socket, as `socket_path` gives it.
        attempts: what gnode knows of its attempts; only read.
        post: takes inputs for the agent.
        steps: serves programs that start tasks on other nodes, step agents, and what unpacks code.
        clock: for the age of attempts and the rate of lines.
    """

    def __init__(
        self,
        *,
        path: str,
        attempts: Mapping[AttemptKey, NodeAttempt],
        post: Callable[[Input], None],
        steps: StepServer,
        clock: Clock,
    ) -> None:
        self._path = path
        self._attempts = attempts
        self._post = post
        self._steps = steps
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self._peers: dict[AttemptKey, _Peer] = {}
        self._orders: dict[AttemptKey, _Order] = {}
        self._tunes: dict[AttemptKey, TuneTraining] = {}
        self._rates: dict[AttemptKey, _Rate] = {}
        self._late: dict[AttemptKey, tuple[_Peer, wire.TrainingLine]] = {}
        self._open: Counter[int] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._complaints = Complaints(log, clock)

    async def run(self) -> None:
        """Serve until cancelled; a disk that is full is waited for."""
        while True:
            try:
                server = await asyncio.start_unix_server(
                    self._serve, sock=listen(self._path), limit=wire.MAX_LINE_BYTES
                )
            except OSError as error:
                self._complaints.say(
                    "this node", f"the socket {self._path} of training jobs: {error}"
                )
                await asyncio.sleep(BIND_PAUSE_S)
                continue
            try:
                await server.serve_forever()
            finally:
                server.close()
                self._close_all()

    def _close_all(self) -> None:
        for order in self._orders.values():
            _stop(order)
        for writer in tuple(self._writers):
            writer.transport.abort()

    # --- orders ---

    def tell(self, effect: TellJob) -> None:
        """Pass an order on; one that reaches nobody is answered, but for a batch size."""
        key, message = effect.key, effect.message
        self._forget_ended()
        if isinstance(message, TuneTraining):
            self._tunes[key] = message
            if key in self._peers:
                self._send(self._peers[key], message)
            return
        known = self._orders.get(key)
        if known is not None:
            _stop(known)
        order = self._orders[key] = _Order(message=message, answered=isinstance(message, GoOn))
        peer = self._peers.get(key)
        if peer is not None:
            self._send(peer, message)
        elif not order.answered:
            self._await_peer(key, order, self._patience_s(key), NOT_CONNECTED)

    def _send(self, peer: _Peer, message: TakeCheckpoint | GoOn | TuneTraining) -> None:
        transport = peer.writer.transport
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            transport.abort()  # it does not read; when it comes back it is told again
            return
        peer.writer.write(wire.encode_order(message))

    def _patience_s(self, key: AttemptKey) -> float:
        """Return how long an attempt may yet take to connect, seconds."""
        now_s = self._clock.monotonic_s()
        patience_s = self._begun_s + CONNECT_S - now_s  # it has not noticed yet that we are back
        attempt = self._attempts.get(key)
        if attempt is not None:
            started_s = attempt.info.started_s if attempt.info else self._clock.wall_s()
            age_s = max(0.0, self._clock.wall_s() - started_s)
            patience_s = max(patience_s, CONNECT_S - age_s)
        return max(0.0, patience_s)

    def _await_peer(self, key: AttemptKey, order: _Order, wait_s: float, why: str) -> None:
        _stop(order)
        if wait_s <= 0:
            self._give_up(key, order, why)
        else:
            loop = asyncio.get_running_loop()
            order.timer = loop.call_later(wait_s, self._give_up, key, order, why)

    def _give_up(self, key: AttemptKey, order: _Order, why: str) -> None:
        if self._orders.get(key) is order:
            del self._orders[key]  # it would save its state for nothing, should it come yet
        self._post(
            TrainingMessage(
                message=CheckpointFailed(
                    job=key.job, attempt=key.attempt, request=order.message.request, message=why
                )
            )
        )

    def _forget_ended(self) -> None:
        for key in [key for key in self._orders if not self._lives(key)]:
            _stop(self._orders.pop(key))
        self._tunes = {key: tune for key, tune in self._tunes.items() if self._lives(key)}

    def _lives(self, key: AttemptKey) -> bool:
        attempt = self._attempts.get(key)
        return attempt is not None and attempt.live

    # --- connections ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _peer_uid(writer)
        self._open[uid] += 1
        self._writers.add(writer)
        try:
            await self._converse(reader, writer, uid)
        except (_RefusedError, wire.BadLineError, ValueError) as error:
            # ValueError is asyncio's word for a line that is too long
            self._complaints.say(f"uid {uid}", f"on the socket of training jobs: {error}")
            writer.write(wire.encode_refusal(str(error)[:500]))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it has gone, or never said anything
        finally:
            self._writers.discard(writer)
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]
            writer.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int
    ) -> None:
        if (
            self._open[uid] > MAX_USER_TRAINING_CONNECTIONS
            or len(self._writers) > MAX_TRAINING_CONNECTIONS
        ):
            raise _RefusedError("too many connections")
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            first = await _line(reader)
        if first.ready is not None:
            self._hear_ready(first.ready, uid)
            return
        if await self._serve_steps(first, reader, writer, uid):
            return
        if first.hello is None:
            raise _RefusedError("the first line is no hello")
        peer = self._admit(first.hello, writer, uid)
        try:
            rate = self._rate(peer.key)
            while self._peers.get(peer.key) is peer:
                line = await _line(reader)
                if not self._lives(peer.key):
                    raise _RefusedError(f"attempt {peer.key.name} has ended")
                pause_s = rate.pause_s()
                if pause_s and await _happens(peer.replaced, pause_s):
                    rate.left += 1  # it is here anew, and has said in its hello what it saved last
                    return
                self._hear(peer, line)
        finally:
            self._leave(peer)

    async def _serve_steps(
        self,
        first: wire.TrainingLine,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        uid: int,
    ) -> bool:
        """Serve who is no training, to the end; return False for others.

        Raises:
            _RefusedError: that user has no such attempt here, or may not ask.
        """
        if first.step is not None:
            key = self._key_of(first.step, uid)
            await self._steps.serve_call(key, first.step, reader, writer)
        elif first.login is not None:
            if uid not in {0, os.geteuid()}:
                raise _RefusedError("only root may ask for logins")
            await self._steps.serve_login(first.login, reader, writer)
        elif (hello := first.code or first.stage) is not None:
            await self._steps.pieces.serve(self._key_of(hello, uid), uid, reader, writer)
        elif first.agent is not None:
            await self._steps.serve_agent(self._key_of(first.agent, uid), reader, writer)
        else:
            return False
        return True

    def _admit(self, hello: wire.TrainingHello, writer: asyncio.StreamWriter, uid: int) -> _Peer:
        """Return the peer that a connection is, after its attempt has been told what it missed.

        Raises:
            _RefusedError: that user has no such attempt here.
        """
        key = self._key_of(hello, uid)
        older = self._peers.get(key)
        if older is not None:
            older.replaced.set()
            older.writer.transport.abort()
        peer = _Peer(key=key, writer=writer, world_sizes=hello.world_sizes)
        self._peers[key] = peer
        if hello.saved is not None:
            self._hear_hello(peer, wire.TrainingLine(checkpointed=hello.saved))
        order = self._orders.get(key)
        if order is not None:
            _stop(order)
            self._send(peer, order.message)
        if key in self._tunes:
            self._send(peer, self._tunes[key])
        return peer

    def _key_of(self, hello: Introduction, uid: int) -> AttemptKey:
        """Return the attempt that somebody says to be of.

        Raises:
            _RefusedError: that user has no such attempt here.
        """
        key = AttemptKey(hello.job, hello.attempt)
        attempt = self._attempts.get(key)
        # one answer for both, so that nobody learns which attempts there are
        task = attempt.task if attempt is not None and attempt.live else None
        if task is None or uid not in {0, task.uid}:
            raise _RefusedError(f"attempt {key.name} of uid {uid} does not run here")
        if hello.version != wire.VERSION:
            raise _RefusedError(
                f"this gnode speaks version {wire.VERSION}, the job {hello.version}: "
                "install the same gsched for both"
            )
        return key

    def _hear_ready(self, hello: wire.Ready, uid: int) -> None:
        """Hear that all ranks of a prepared attempt wait at their gates.

        Raises:
            _RefusedError: that user has no such attempt here.
        """
        key = self._key_of(hello, uid)
        self._post(TrainingMessage(message=Prepared(job=key.job, attempt=key.attempt)))

    def _rate(self, key: AttemptKey) -> _Rate:
        if len(self._rates) > MAX_TRAINING_CONNECTIONS:
            self._rates = {each: rate for each, rate in self._rates.items() if self._lives(each)}
        return self._rates.setdefault(key, _Rate(clock=self._clock))

    def _hear_hello(self, peer: _Peer, line: wire.TrainingLine) -> None:
        """Hear what an attempt says to have saved: now, or as soon as it may say something again.

        Of all that it says until then the newest is heard, so that the newest is always known.
        """
        key = peer.key
        if key in self._late:
            self._late[key] = (peer, line)
            return
        pause_s = self._rate(key).pause_s()
        if not pause_s:
            self._hear(peer, line)
            return
        self._late[key] = (peer, line)
        asyncio.get_running_loop().call_later(pause_s, self._hear_late, key)

    def _hear_late(self, key: AttemptKey) -> None:
        peer, line = self._late.pop(key)
        if self._lives(key):
            self._hear(peer, line)

    def _leave(self, peer: _Peer) -> None:
        if self._peers.get(peer.key) is not peer:
            return
        del self._peers[peer.key]
        order = self._orders.get(peer.key)
        if order is not None and not order.answered and self._lives(peer.key):
            self._await_peer(peer.key, order, CONNECT_S, CONNECTION_LOST)

    def _hear(self, peer: _Peer, line: wire.TrainingLine) -> None:
        if line.progress is not None and line.progress.world_sizes:
            peer.world_sizes = line.progress.world_sizes
        key, sizes = peer.key, peer.world_sizes
        if line.checkpointed is not None:
            self._answered(key, line.checkpointed.request)
            report = wire.checkpointed(key.job, key.attempt, line.checkpointed, sizes)
            self._post(TrainingMessage(message=report))
        if line.checkpoint_failed is not None:
            failed = line.checkpoint_failed
            self._answered(key, failed.request)
            self._post(
                TrainingMessage(
                    message=CheckpointFailed(
                        job=key.job,
                        attempt=key.attempt,
                        request=failed.request,
                        message=failed.message or "it does not say why",
                    )
                )
            )
        if line.progress is not None:
            self._post(
                TrainingMessage(message=wire.progress(key.job, key.attempt, line.progress, sizes))
            )

    def _answered(self, key: AttemptKey, request: int) -> None:
        order = self._orders.get(key)
        if order is not None and order.message.request == request:
            order.answered = True


async def _happens(event: asyncio.Event, timeout_s: float) -> bool:
    """Return whether something happens within a time; return as soon as it does."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _stop(order: _Order) -> None:
    if order.timer is not None:
        order.timer.cancel()
        order.timer = None


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    """Return the uid that the kernel saw when the other side connected."""
    peer = writer.get_extra_info("socket")
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])


async def _line(reader: asyncio.StreamReader) -> wire.TrainingLine:
    """Return the next line.

    Raises:
        BadLineError: it cannot be read.
        ValueError: it is too long.
        IncompleteReadError: the other side has closed.
    """
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    return wire.decode_line(line)
