"""The node channel: one WebSocket for each node, and the effects that go down it."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Struct

from gsched.clock import Clock
from gsched.errors import BadStateError, GschedError, StorageError
from gsched.failpoint import failpoint
from gsched.logs import Complaints
from gsched.model.ids import short_job_id
from gsched.model.states import LaunchStage
from gsched.protocol import node as n
from gsched.protocol.framing import frames_from_head
from gsched.protocol.joining import CertificateState
from gsched.protocol.settings import SettingsRead, SettingsWanted
from gschedd.core.state import effects as e
from gschedd.engine.loop import Engine
from gschedd.http.handshake import Introduced
from gschedd.http.launches import Launches
from gschedd.http.unreadable import Unreadables

log = logging.getLogger("gschedd.nodes")

HANDSHAKE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
PING_TIMEOUT_RATIO = 1.5  # a ping every T, and half of T for its answer: aiohttp's heartbeat
ANSWER_TIMEOUT_S = 5.0  # for a connected gnode, when another one wants its place
#: So many nodes hear of each commit at once, before it is answered; all others soon after.
PROMPT_WITNESSES = 3
HIGH_WATER_S = 2.0
MAX_OUTBOX = 50_000  # messages a slow node may have waiting before it is cut off
#: By which message a node answers a request.
_ANSWERS: Final[dict[type[Struct], type[Struct]]] = {
    n.ReadOutput: n.OutputRead,
    SettingsWanted: SettingsRead,
}


async def stop(sender: asyncio.Task[None]) -> None:
    """Cancel the task that sends, and wait for its end.

    A cancellation of the waiting task itself is raised: when the head stops, who swallowed it would
    go on, and could wait for ever for an engine that has ended.
    """
    sender.cancel()
    await asyncio.wait({sender})
    if not sender.cancelled():
        with contextlib.suppress(ConnectionError):
            sender.result()


class Link:
    """A connected node: an outbox, and one task that sends it, many messages to a frame.

    Attributes:
        call: which of all connections this is, in the order in which they were opened.
        is_gone: it has ended.
        twins: how often another gnode wanted its place while it answered.
        witnessed: how far the head had come when the node heard of it last: event and next job.
        late: the node comes from a history whose loss was accepted.
        surveyed: the node is asked what it knows, and does not obey.
        incomplete: what the node's registration lacks, as it could not be read.
        peer: who the node is by its certificate or the kernel.
        features: of the node, as it has registered.
        packs: it reads packed frames, and takes pieces of a file one behind the other.
        certificate: what the node has told of its certificate; None: it has none.
    """

    def __init__(self, who: Introduced, socket: web.WebSocketResponse, *, call: int) -> None:
        self.node = who.node
        self.boot_id = who.registration.boot_id
        self.features = frozenset(who.registration.inventory.features)
        self.packs = who.registration.packs
        self.call = call
        self.witnessed = (0, 0)
        self.surveyed = False
        self.incomplete = who.incomplete
        self.late = False
        self.socket = socket
        self.peer = who.peer
        self.certificate: CertificateState | None = None
        self.is_gone = False
        self.twins = 0
        self._answered = asyncio.Event()
        self._pinged = self._ponged = 0
        self._outbox: list[n.HeadMessage] = []
        self._passing: dict[int, asyncio.Future[None]] = {}
        self._filled = asyncio.Event()

    def tell(self, reached: tuple[int, int]) -> None:
        """Let the node know how far the head has come, unless it knows."""
        if reached != self.witnessed and not self.surveyed:
            self.witnessed = reached
            self.send(n.HighWater(seq=reached[0], next_job=reached[1]))

    def send(self, message: n.HeadMessage) -> None:
        """Put a message into the outbox; a node that does not read is cut off."""
        if len(self._outbox) >= MAX_OUTBOX:
            log.warning("%s does not read: cut off", self.node)
            self.abort()
            return
        self._outbox.append(message)
        self._filled.set()

    async def pass_on(self, message: n.HeadMessage) -> None:
        """Send a message, and wait until it has gone or the connection has ended."""
        if self.is_gone:
            return
        gone = asyncio.get_running_loop().create_future()
        self._passing[id(message)] = gone
        self.send(message)
        await gone

    def _passed(self, messages: Sequence[n.HeadMessage]) -> None:
        for each in messages if self._passing else ():
            gone = self._passing.pop(id(each), None)
            if gone is not None and not gone.done():
                gone.set_result(None)

    def abort(self) -> None:
        """End the connection at once; what was to be sent is lost."""
        transport = self.socket._req.transport if self.socket._req else None  # noqa: SLF001 # aiohttp has no public abort
        if transport is not None:
            transport.abort()

    async def answers(self) -> bool:
        """Return whether the gnode at the other end still answers."""
        if self._pinged == self._ponged:  # else another one is asking already
            self._pinged += 1
            self._answered.clear()
            self.send(n.Ping(number=self._pinged))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._answered.wait()
        return self._ponged == self._pinged and not self.is_gone

    def on_pong(self, pong: n.Pong) -> None:
        """Take in an answer."""
        if pong.number == self._pinged:
            self._ponged = pong.number
            self._answered.set()

    def end(self) -> None:
        """Note that the connection has ended."""
        self.is_gone = True
        self._answered.set()
        for gone in self._passing.values():
            if not gone.done():
                gone.set_result(None)
        self._passing.clear()

    async def sender(self, set_aside: Callable[[n.HeadMessage, str], None]) -> None:
        """Send the outbox for ever, what waits in as few frames as its bytes allow.

        ``set_aside`` takes what the node could not read, with the reason; it is not sent.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            batch, self._outbox = self._outbox, []
            for frame in frames_from_head(batch, set_aside, packs=self.packs):
                await self.socket.send_bytes(frame.payload)
                self._passed(frame.messages)
            self._passed(batch)  # also what was set aside
            if any(isinstance(message, n.Launch) for message in batch):
                failpoint("head.launch.after_send")
            if any(isinstance(message, n.ExitAck) for message in batch):
                failpoint("head.exit.after_ack")

    async def refuse(self, text: str, *, fatal: bool) -> None:
        """Send the node away; it was not welcomed yet, so nothing else is being sent."""
        frame = n.encode([n.Refused(message=text, fatal=fatal)])
        with contextlib.suppress(ConnectionError):
            await self.socket.send_bytes(frame)
        await self.socket.close()


class Links:
    """The nodes that are connected, and the effects that go to them.

    Attributes:
        connected: by node.
        newest: how far the database has come: event and next job.
        unreadables: what becomes of messages that a node cannot read.
    """

    def __init__(self, *, engine: Engine, launches: Launches, clock: Clock) -> None:
        self._launches = launches
        self.connected: dict[str, Link] = {}
        self.newest = (0, 0)
        self.unreadables = Unreadables(engine, Complaints(log, clock))
        self._requests: dict[tuple[str, int], tuple[type[Struct], asyncio.Future[Any]]] = {}
        self._next_request = 1

    def reached(self, reached: tuple[int, int]) -> None:
        """Take in how far the database has come; some nodes hear of it at once."""
        self.newest = reached
        for link in itertools.islice(self.connected.values(), PROMPT_WITNESSES):
            link.tell(reached)

    async def keep_witnesses(self) -> None:
        """Let all nodes know, now and then, how far the database has come."""
        while True:
            await asyncio.sleep(HIGH_WATER_S)
            for link in list(self.connected.values()):
                link.tell(self.newest)

    def deliver(self, effects: Sequence[e.NodeEffect]) -> None:
        """Send effects to the nodes that are connected."""
        launched = False
        for effect in effects:
            link = self.connected.get(effect.node)
            if link is None or link.surveyed:
                continue
            if isinstance(effect, e.SendLaunch):
                if launched:
                    failpoint("head.launch.between_nodes")
                launched = True
            message = self._message(effect)
            if message is not None:
                link.tell(self.newest)  # so that it never knows a job beyond its mark
                link.send(message)

    def _message(self, effect: e.NodeEffect) -> n.HeadMessage | None:
        if isinstance(effect, e.SendLaunch | e.SendPrepare):
            return self._launch(effect)
        return effect.message

    def _launch(self, effect: e.SendLaunch | e.SendPrepare) -> n.Launch | n.Prepare | None:
        """Return the order; where the job's script is damaged, let the attempt fail instead."""
        try:
            return self._launches.order(effect)
        except StorageError as error:
            log.critical("job %s cannot be started: %s", short_job_id(effect.job), error)
            key = (effect.job, effect.attempt)
            self.unreadables.fail(effect.node, key, LaunchStage.FILES, error.message)
            return None

    def link(self, node: str) -> Link | None:
        """Return the connection of a node that is there and obeys."""
        link = self.connected.get(node)
        return None if link is None or link.surveyed else link

    async def read_output(self, node: str, order: n.ReadOutput) -> n.OutputRead:
        """Have a node read a part of a job's output, or append to it.

        Raises:
            BadStateError: the node is not connected or does not answer.
        """
        if node not in self.connected:
            raise BadStateError(
                f"node {node}, where the output is, is not connected", hint="see gnodes"
            )
        answer = await self._ask(node, order)
        assert isinstance(answer, n.OutputRead), "answer_request has checked it"
        return answer

    async def read_settings(self, node: str) -> SettingsRead:
        """Return with which settings a connected node runs.

        Raises:
            BadStateError: it does not answer.
        """
        answer = await self._ask(node, SettingsWanted(request=0))
        assert isinstance(answer, SettingsRead), "answer_request has checked it"
        return answer

    async def _ask(
        self, node: str, order: n.ReadOutput | SettingsWanted
    ) -> n.OutputRead | SettingsRead:
        """Return what a connected node answers; the request is numbered here.

        Raises:
            BadStateError: it does not answer.
        """
        number, self._next_request = self._next_request, self._next_request + 1
        future = asyncio.get_running_loop().create_future()
        self._requests[node, number] = (_ANSWERS[type(order)], future)
        self.connected[node].send(msgspec.structs.replace(order, request=number))
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await future  # type: ignore[no-any-return] # see answer_request
        except TimeoutError:
            raise BadStateError(f"node {node} did not answer in {READ_TIMEOUT_S:.0f} s") from None
        finally:
            self._requests.pop((node, number), None)

    def answer_request(self, node: str, message: n.OutputRead | SettingsRead) -> None:
        """Give whoever has asked a node what it has answered."""
        kind, waiting = self._requests.get((node, message.request), (None, None))
        if waiting is not None and kind is type(message) and not waiting.done():
            waiting.set_result(message)

    async def close(self) -> None:
        """Close all connections; the nodes go on by themselves."""
        for link in list(self.connected.values()):
            with contextlib.suppress(ConnectionError, GschedError):
                await link.socket.close()
