"""Simulated nodes that go to the head that rules, and note what they start and what has ended."""

import asyncio
import math
import threading
import time
from contextlib import suppress
from typing import Final, Self

import aiohttp

from gsched.model.resources import Inventory
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol import node as n
from gsched.protocol.node import MAX_FRAME_BYTES
from scripts.reproduce.failover_history import Operation
from tests.support.simulated_nodes import Key, RefusedError, SimulatedNode, serve

JOB_S: Final = 0.5
CONNECT_S: Final = 2.0
HEARTBEAT_S: Final = 4.0
PAUSE_S: Final = 0.5
STUCK_S: Final = 10.0


class _Node(SimulatedNode):
    """One that keeps what it has done."""

    def __init__(self, name: str, done: "Nodes") -> None:
        super().__init__(name, inventory=Inventory(cpus=4, memory_bytes=1 << 34), job_s=JOB_S)
        self._done = done
        self._seen: set[Key] = set()
        self._ended_s: dict[Key, float] = {}

    def hear(self, message: n.HeadMessage, now_s: float) -> list[n.NodeMessage]:
        """Return the answers to a message; note the first launch of an attempt, and its end."""
        if isinstance(message, n.Launch):
            key = (message.job, message.attempt, message.token)
            if key not in self._seen:
                self._done.note(message.job, "start", -math.inf, time.monotonic())
            self._seen.add(key)
        elif isinstance(message, n.ExitAck):
            key = (message.job, message.attempt, message.token)
            if key in self._ended_s:
                ended_s = self._ended_s.pop(key)
                self._done.note(message.job, "outcome", ended_s, time.monotonic())
        return super().hear(message, now_s)

    def _end(
        self,
        key: Key,
        now_s: float,
        kind: OutcomeKind = OutcomeKind.EXITED,
        reason: StopReason | None = None,
    ) -> list[n.NodeMessage]:
        self._ended_s.setdefault(key, time.monotonic())
        return super()._end(key, now_s, kind, reason)


class Nodes:
    """All nodes, in a thread with an event loop of its own.

    Args:
        sockets: of the heads' node channels.

    Attributes:
        operations: starts and outcomes.
    """

    def __init__(self, sockets: tuple[str, ...], count: int) -> None:
        self._sockets = sockets
        self.operations: list[Operation] = []
        self._nodes = [_Node(f"sim{number:03d}", self) for number in range(count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(STUCK_S)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def note(self, job: int, verb: str, begun_s: float, ended_s: float) -> None:
        """Keep what a node has done."""
        self.operations.append(
            Operation(job=str(job), verb=verb, result="ok", begun_s=begun_s, ended_s=ended_s)
        )

    @property
    def connected(self) -> int:
        """Return how many nodes a head has let in."""
        return sum(bool(node.tally.connected) for node in self._nodes)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        await asyncio.gather(*(self._keep(node) for node in self._nodes))

    async def _keep(self, node: _Node) -> None:
        sockets = list(self._sockets)
        sessions = {
            path: aiohttp.ClientSession(connector=aiohttp.UnixConnector(path, limit=0))
            for path in sockets
        }

        async def connect() -> aiohttp.ClientWebSocketResponse:
            sockets.reverse()
            async with asyncio.timeout(CONNECT_S):
                return await sessions[sockets[0]].ws_connect(
                    "http://head/v1/node",
                    compress=0,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=MAX_FRAME_BYTES,
                )

        try:
            while True:
                with suppress(RefusedError, ConnectionError):  # of a head that ruled before
                    await serve(node, connect, time.time)
                await asyncio.sleep(PAUSE_S)
        finally:
            for session in sessions.values():
                await session.close()
