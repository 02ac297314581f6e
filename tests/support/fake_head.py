"""A head's side of the node channel, in the test's own process: shakes hands, records, sends."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from aiohttp import WSMsgType, web

from gsched.model.job import Owner
from gsched.model.resources import Share
from gsched.protocol.node import (
    PROTOCOL_VERSION,
    Challenge,
    ExitAck,
    Exited,
    HeadMessage,
    Hello,
    Launch,
    NodeMessage,
    Refused,
    Register,
    Renew,
    Renewed,
    Started,
    Welcome,
    decode_from_node,
    encode,
)
from tests.support.launches import launch_of
from tests.support.processes import PATIENCE_S, attempts

MessageT = TypeVar("MessageT")


class FakeHead:
    """Serves ``/v1/node`` in a thread of its own; nothing is acknowledged unless told to.

    Attributes:
        received: every message of every node, in order, handshakes included.
        acknowledge: whether each Exited is answered with ExitAck at once.
        epoch, cluster: what is said in the challenge; may be changed between connections.
        connections: how many nodes were welcomed so far.
        renews: whether each Renew is answered at once.
    """

    def __init__(self, path: Path, *, epoch: int = 1, cluster: str = "test-cluster") -> None:
        self.path, self.epoch, self.cluster = path, epoch, cluster
        self.acknowledge = False
        self.renews = True
        self.received: list[NodeMessage] = []
        self.connections = 0
        self.refusal: Refused | None = None
        self.on_message: Callable[[NodeMessage], None] | None = None
        self._sockets: set[web.WebSocketResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="fake head", daemon=True)
        self._stop: asyncio.Event | None = None

    @property
    def address(self) -> str:
        """Return what a node dials."""
        return f"unix:{self.path}"

    def start(self) -> None:
        """Listen on the Unix socket."""
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def stop(self) -> None:
        """Close everything."""
        stop = self._stop
        if stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(stop.set)
            self._thread.join(PATIENCE_S)

    def send(self, *messages: HeadMessage) -> None:
        """Send messages in one frame to the nodes that are connected."""
        self._call(self._send(list(messages)))

    def send_to_latest(self, frame: str) -> None:
        """Send any text as a binary frame."""
        self._call(self._send_payload(frame.encode()))

    def send_frame(self, frame: str | bytes) -> None:
        """Send a frame as it stands."""
        self._call(self._send_frame(frame))

    def disconnect(self) -> None:
        """Close all connections; nodes come back by themselves."""
        self._call(self._close_all())

    def wait_for(
        self,
        kind: type[MessageT],
        matches: Callable[[MessageT], bool] = lambda message: True,
        *,
        count: int = 1,
        timeout_s: float = PATIENCE_S,
    ) -> list[MessageT]:
        """Return the messages of a kind once there are ``count`` that match."""
        found: list[MessageT] = []
        for _ in attempts(timeout_s):
            found = [m for m in tuple(self.received) if isinstance(m, kind) and matches(m)]
            if len(found) >= count:
                return found
        raise AssertionError(
            f"{len(found)} of {count} {kind.__name__} within {timeout_s} s; the last messages: "
            f"{self.received[-5:]}"
        )

    def wait_for_exit(self, job: int, attempt: int = 1, *, count: int = 1) -> Exited:
        """Return the last Exited of an attempt once there are ``count``."""
        return self.wait_for(
            Exited,
            lambda m: (m.record.job, m.record.attempt) == (job, attempt),
            count=count,
        )[-1]

    def wait_for_start(self, job: int, attempt: int = 1, *, count: int = 1) -> Started:
        """Return the last Started of an attempt once there are ``count``."""
        return self.wait_for(Started, lambda m: (m.job, m.attempt) == (job, attempt), count=count)[
            -1
        ]

    def wait_for_connection(self, number: int) -> None:
        """Return once ``number`` connections were welcomed, and that one is still open."""
        for _ in attempts():
            if self.connections >= number and self._sockets:
                return
        raise AssertionError(f"{self.connections} connections instead of {number}")

    # --- in the thread ---

    def _call(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/node", self._node)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.UnixSite(runner, str(self.path)).start()
        self._ready.set()
        await self._stop.wait()
        await self._close_all()
        await runner.cleanup()

    async def _node(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=32 * 1024 * 1024, compress=False)
        await socket.prepare(request)
        if await self._shake_hands(socket):
            self.connections += 1
            async for frame in socket:
                if frame.type is WSMsgType.BINARY:
                    await self._take(socket, decode_from_node(frame.data))
        self._sockets.discard(socket)
        return socket

    async def _take(self, socket: web.WebSocketResponse, messages: list[NodeMessage]) -> None:
        acks: list[HeadMessage] = []
        for message in messages:
            self.received.append(message)
            if self.on_message is not None:
                self.on_message(message)
            if isinstance(message, Renew) and self.renews:
                acks.append(Renewed(number=message.number))
            if isinstance(message, Exited) and self.acknowledge:
                acks.append(ExitAck(job=message.record.job, attempt=message.record.attempt))
        if acks:
            await socket.send_bytes(encode(acks))

    async def _shake_hands(self, socket: web.WebSocketResponse) -> bool:
        frame = await socket.receive()
        if frame.type is not WSMsgType.TEXT:
            return False
        (hello,) = decode_from_node(frame.data)
        assert isinstance(hello, Hello)
        self.received.append(hello)
        if self.refusal is not None:
            await socket.send_str(encode([self.refusal]).decode())
            return False
        challenge = Challenge(version=PROTOCOL_VERSION, cluster=self.cluster, epoch=self.epoch)
        await socket.send_bytes(encode([challenge]))
        frame = await socket.receive()
        if frame.type is not WSMsgType.BINARY:
            return False
        (register,) = decode_from_node(frame.data)
        assert isinstance(register, Register)
        self.received.append(register)
        self._sockets.add(socket)
        await socket.send_bytes(encode([Welcome(cluster=self.cluster, epoch=self.epoch)]))
        return True

    async def _send(self, messages: list[HeadMessage]) -> None:
        await self._send_payload(encode(messages))

    async def _send_payload(self, payload: bytes) -> None:
        for socket in tuple(self._sockets):
            await socket.send_bytes(payload)

    async def _send_frame(self, frame: str | bytes) -> None:
        for socket in tuple(self._sockets):
            await (socket.send_str(frame) if isinstance(frame, str) else socket.send_bytes(frame))

    async def _close_all(self) -> None:
        for socket in tuple(self._sockets):
            await socket.close()


def launch_order(
    job: int,
    owner: Owner,
    workdir: Path,
    *,
    attempt: int = 1,
    node: str = "n1",
    gpus: tuple[int, ...] = (),
    **settings: object,
) -> Launch:
    """Return an order for a script (or, with ``arguments`` and ``launch``, something else)."""
    values: dict[str, object] = {
        "owner": owner,
        "name": f"job{job}",
        "share": Share(node=node, cpus=1, gpu_indices=gpus),
        "workdir": str(workdir),
        "script": "#!/bin/sh\n",
        "grace_s": 5.0,
        "environment": {"PATH": "/usr/bin:/bin"},
        **settings,
    }
    return launch_of(job, attempt, **values)
