"""Nodes without machines: they speak the node channel with a real head, and pretend to run jobs.

Written from docs/protocol.md. A `SimulatedNode` is what one node knows and answers, without any
I/O; `serve` is its connection. A job takes a fixed time, or none, and exits with 0.
"""

import asyncio
import heapq
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256

import aiohttp

from gsched.model.ids import submitted_number
from gsched.model.job import ExitRecord
from gsched.model.resources import Inventory, LiveUse, Load, Usage
from gsched.model.states import OutcomeKind, PartState, StopReason
from gsched.protocol import node as n
from gsched.protocol.uses import Uses
from tests.support.dialler import Dialler

RECONNECT_S = 1.0
VERSION = "simulated"

Key = tuple[int, int, str]
Connect = Callable[[], Awaitable[aiohttp.ClientWebSocketResponse]]


class RefusedError(Exception):
    """The head does not want this node, and says that it need not try again."""


@dataclass(kw_only=True)
class Tally:
    """What some nodes have seen.

    Attributes:
        gaps_s: from the end of a part to the next launch on its node, one for each launch that
            followed an end.
        reports: of loads and uses that were sent.
    """

    launches: int = 0
    ends: int = 0
    connected: set[str] = field(default_factory=set)
    gaps_s: list[float] = field(default_factory=list)
    reports: int = 0


@dataclass(kw_only=True)
class _Part:
    """A part of an attempt here, until the head has acknowledged its end."""

    launch: n.Launch
    started_s: float
    record: ExitRecord | None = None


class SimulatedNode:
    """What a node knows and answers.

    Args:
        job_s: how long each job takes, in seconds; its walltime, if that is shorter.
        reports: what is told every ``every_s`` seconds: ``heartbeat``, ``uses`` (all jobs have
            changed) or nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        inventory: Inventory,
        job_s: float = 0.0,
        tally: Tally | None = None,
        reports: str = "",
        every_s: float = 5.0,
    ) -> None:
        self.name = name
        self.tally = tally if tally is not None else Tally()
        self._inventory = inventory
        self._job_s = job_s
        self._boot_id = str(uuid.uuid4())
        self._parts: dict[Key, _Part] = {}
        self._latest: dict[int, int] = {}
        self._tombstones: dict[Key, StopReason] = {}
        self._ends: list[tuple[float, Key]] = []
        self._reports, self._every_s, self._report_s = reports, every_s, 0.0
        self._idle_since: deque[float] = deque()
        self._epoch, self._epoch_id = 0, ""
        self._seq = self._next_job = 0

    def registration(self) -> n.Register:
        """Return what the node says of itself, its attempts included."""
        return n.Register(
            identity=sha256(self.name.encode()).hexdigest()[:32],
            boot_id=self._boot_id,
            incarnation=self._boot_id,
            address="127.0.0.1",
            gnode_version=VERSION,
            inventory=self._inventory,
            attempts=tuple(_report(part) for part in self._parts.values()),
            load=Load(),
            highest_epoch=self._epoch,
            epoch_id=self._epoch_id,
            seq=self._seq,
            next_job=self._next_job,
            highest_job=max(map(submitted_number, self._latest), default=0),
            probes=True,
        )

    def may_obey(self, challenge: n.Challenge) -> bool:
        """Return whether the head is the newest one that the node knows."""
        if challenge.epoch == self._epoch:
            return challenge.epoch_id == self._epoch_id
        return challenge.epoch > self._epoch

    def next_end_s(self) -> float | None:
        """Return when the next job ends or a report is due; None: nothing happens by itself."""
        times = [self._ends[0][0]] if self._ends else []
        if self._reports and self._report_s:
            times.append(self._report_s)
        return min(times, default=None)

    def end_due(self, now_s: float) -> list[n.NodeMessage]:
        """End the jobs whose time is over."""
        said: list[n.NodeMessage] = []
        if self._reports and self._report_s <= now_s:
            said += self._report(now_s)
        while self._ends and self._ends[0][0] <= now_s:
            _, key = heapq.heappop(self._ends)
            if key in self._parts and self._parts[key].record is None:
                said += self._end(key, now_s)
        return said

    def _report(self, now_s: float) -> list[n.NodeMessage]:
        """Return a report of all jobs, which have changed since the one before."""
        first, self._report_s = not self._report_s, now_s + self._every_s
        if first:  # the nodes report at different moments, as they were started
            self._report_s = now_s + self._every_s * (hash(self.name) % 1000) / 1000
            return []
        self.tally.reports += 1
        cores = now_s % 7.0
        keys = [(job, attempt) for job, attempt, _ in self._parts]
        load = self._load(cores, now_s)
        if self._reports == "heartbeat":
            usage = Usage(wall_s=now_s % 1e6, cpu_s=cores, memory_peak_bytes=1 << 30, samples=9)
            return [n.Heartbeat(load=load, usage=tuple((*key, usage) for key in keys))]
        use = LiveUse(cpu_s=now_s % 1e6, cpu_cores=cores, memory_bytes=1 << 30, gpus=0.5)
        return [Uses(load=load, uses=tuple((*key, use) for key in keys))]

    def _load(self, cores: float, now_s: float) -> Load:
        """Return a load with GPUs that are busy where jobs have them, each in its own way."""
        held = {
            gpu.index
            for part in self._parts.values()
            for share in part.launch.origin.allocation
            if share.node == self.name and part.record is None
            for gpu in share.gpus_held
        }
        busy = {
            index: 50.0 + 45.0 * math.sin(now_s / (40.0 + 7 * index) + len(self.name) + index)
            for index in held
        }
        gpus = self._inventory.gpus
        return Load(
            cpu_percent=10.0 * cores,
            memory_used_bytes=1 << 30,
            gpu_util_percent=tuple(busy.get(gpu.index, 0.0) for gpu in gpus),
            gpu_memory_used_bytes=tuple(
                gpu.memory_bytes * (gpu.index + 2) // 12 if gpu.index in held else 0 for gpu in gpus
            ),
        )

    def hear(self, message: n.HeadMessage, now_s: float) -> list[n.NodeMessage]:
        """Return the answers to a message of the head, in order."""
        match message:
            case n.Welcome() | n.HighWater():
                self._remember(message)
            case n.Refused() if message.fatal:
                raise RefusedError(message.message)
            case n.SurveyAttempts():
                return [n.KnownAttempts(attempts=(), done=True)]
            case n.Ping():
                return [n.Pong(number=message.number)]
            case n.Probe():
                return [n.Probed(request=message.request, passed=True)]
            case n.Launch():
                return self._launch(message, now_s)
            case n.StopAttempt():
                return self._stop(message, now_s)
            case n.ExitAck():
                self._parts.pop((message.job, message.attempt, message.token), None)
            case n.TakeCheckpoint() | n.ReadOutput():
                return _cannot(message)
            case _:
                pass
        return []

    def _remember(self, said: n.Welcome | n.HighWater) -> None:
        self._seq, self._next_job = said.seq, said.next_job
        if isinstance(said, n.Welcome):
            self._epoch, self._epoch_id = said.epoch, said.epoch_id
            self.tally.connected.add(self.name)

    def _launch(self, launch: n.Launch, now_s: float) -> list[n.NodeMessage]:
        key = (launch.job, launch.attempt, launch.token)
        if key in self._tombstones:
            return [_cancelled(key, self._tombstones[key], now_s)]
        part = self._parts.get(key)
        if part is not None:
            return [_exited(part)] if part.record is not None else [_started(part)]
        self._latest[launch.job] = launch.attempt
        self.tally.launches += 1
        if self._idle_since:
            self.tally.gaps_s.append(now_s - self._idle_since.popleft())
        part = self._parts[key] = _Part(launch=launch, started_s=now_s)
        started: n.NodeMessage = _started(part)
        job_s = self._job_s
        if launch.walltime_s is not None and launch.walltime_s < job_s:
            job_s = launch.walltime_s
        if job_s <= 0.0:
            return [started, *self._end(key, now_s)]
        heapq.heappush(self._ends, (now_s + job_s, key))
        return [started]

    def _stop(self, stop: n.StopAttempt, now_s: float) -> list[n.NodeMessage]:
        key = (stop.job, stop.attempt, stop.token)
        if key not in self._parts:
            if stop.attempt <= self._latest.get(stop.job, 0):
                return []
            self._tombstones[key] = stop.reason
            return [_cancelled(key, stop.reason, now_s)]
        return self._end(key, now_s, OutcomeKind.SIGNALLED, stop.reason)

    def _end(
        self,
        key: Key,
        now_s: float,
        kind: OutcomeKind = OutcomeKind.EXITED,
        reason: StopReason | None = None,
    ) -> list[n.NodeMessage]:
        part = self._parts[key]
        if part.record is not None:
            return [_exited(part)]
        wall_s = now_s - part.started_s
        part.record = ExitRecord(
            job=part.launch.job,
            attempt=part.launch.attempt,
            kind=kind,
            exit_code=0 if kind is OutcomeKind.EXITED else None,
            signal=15 if kind is OutcomeKind.SIGNALLED else None,
            stop_reason=reason,
            started_s=part.started_s,
            ended_s=now_s,
            wall_s=wall_s,
        )
        self.tally.ends += 1
        self._idle_since.append(now_s)
        return [_exited(part)]


def _report(part: _Part) -> n.AttemptReport:
    launch = part.launch
    return n.AttemptReport(
        job=launch.job,
        attempt=launch.attempt,
        state=PartState.RUNNING if part.record is None else PartState.ENDED,
        pid=1,
        started_s=part.started_s,
        exit=part.record,
        usage=None if part.record is None else Usage(wall_s=part.record.wall_s),
        token=launch.token,
    )


def _started(part: _Part) -> n.Started:
    launch = part.launch
    return n.Started(
        job=launch.job,
        attempt=launch.attempt,
        pid=1,
        started_s=part.started_s,
        stdout_path=launch.spec.stdout_path,
        stderr_path=launch.spec.stderr_path,
        token=launch.token,
    )


def _exited(part: _Part) -> n.Exited:
    record = part.record
    assert record is not None
    usage = Usage(wall_s=record.wall_s, samples=1)
    return n.Exited(record=record, usage=usage, load=Load(), token=part.launch.token)


def _cancelled(key: Key, reason: StopReason, now_s: float) -> n.Exited:
    job, attempt, token = key
    kind = OutcomeKind.CANCELLED
    record = ExitRecord(job=job, attempt=attempt, kind=kind, stop_reason=reason, ended_s=now_s)
    return n.Exited(record=record, usage=Usage(), load=Load(), token=token)


def _cannot(message: n.TakeCheckpoint | n.ReadOutput) -> list[n.NodeMessage]:
    reason = "a simulated node runs no processes"
    if isinstance(message, n.ReadOutput):
        return [n.OutputRead(request=message.request, error=reason)]
    return [
        n.CheckpointFailed(
            job=message.job, attempt=message.attempt, request=message.request, message=reason
        )
    ]


async def serve(node: SimulatedNode, connect: Connect, now_s: Callable[[], float]) -> None:
    """Keep a node connected until it is refused for good.

    Raises:
        RefusedError: the head refuses it, or is older than one that it has obeyed.
    """
    while True:
        try:
            async with await connect() as socket:
                await _converse(node, Dialler(socket, node=node.name), now_s)
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # the head is not there, or has ended the connection
        await asyncio.sleep(RECONNECT_S)


async def _converse(node: SimulatedNode, peer: Dialler, now_s: Callable[[], float]) -> None:
    """Register, then answer until the connection ends."""
    challenge = await peer.call()
    if not node.may_obey(challenge):
        raise RefusedError(f"the head has epoch {challenge.epoch}, and a newer one was obeyed")
    await peer.say(node.registration())
    try:
        while not peer.is_closed:
            due_s = node.next_end_s()
            messages = await peer.hear_all(None if due_s is None else max(0.0, due_s - now_s()))
            said = node.end_due(now_s())
            for message in messages:
                said += node.hear(message, now_s())
            if said:
                await peer.say(*said)
    finally:
        node.tally.connected.discard(node.name)
