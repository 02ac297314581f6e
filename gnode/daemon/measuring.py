"""Measures the node and what its attempts use, again and again."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gnode.core.agent import Agent
from gnode.core.inputs import Input, Measured, SharingStatus
from gnode.core.table import NodeAttempt
from gnode.core.task import AttemptKey
from gnode.core.transitions import Phase
from gnode.daemon.health import HealthChecks
from gnode.daemon.sharing import Sharing
from gnode.daemon.space import SpoolSpace
from gnode.hw.load import LoadMeter
from gnode.hw.nvml import GpuSample
from gnode.hw.outside import OutsideWatch
from gnode.hw.sampling import Sampler, SamplingTarget
from gsched.clock import Clock
from gsched.model.job import ExitRecord
from gsched.model.resources import Usage


@dataclass(slots=True, kw_only=True)
class Meters:
    """What measures the node and its attempts.

    Attributes:
        sample_s: seconds between two samples of the attempts.
        space: what is left of the spool's file system.
        outside: who is on the GPUs beside the jobs.
        health: whether the node is fit for jobs.
    """

    load: LoadMeter
    attempts: Sampler[AttemptKey]
    sample_s: float
    space: SpoolSpace
    outside: OutsideWatch
    health: HealthChecks


class LoadAfterEnds:
    """Tells the node's load once for all attempts that have ended in a turn of the event loop."""

    def __init__(self, meter: LoadMeter) -> None:
        self._meter = meter
        self._is_due = False

    def note(self, attempt: NodeAttempt | None, record: ExitRecord | None) -> None:
        """Take what an attempt that has ended was using out of the load, if that is known."""
        if record is not None and attempt is not None and attempt.live:
            cores = attempt.busy_cores_at_end(record)
            self._meter.note_end(cores, record.wall_s, attempt.gpu_indices)
        self._is_due = True

    def take(self) -> Iterator[Measured]:
        """Yield the load if attempts have ended since the last time."""
        if self._is_due:
            self._is_due = False
            yield Measured(load=self._meter.load(), usage={})


async def measure(
    agent: Agent, meters: Meters, sharing: Sharing, clock: Clock, post: Callable[[Input], None]
) -> None:
    """Post `Measured` every ``sample_s`` seconds, until it is cancelled."""
    while True:
        await asyncio.sleep(meters.sample_s)
        wall_s = clock.wall_s()
        targets = [
            SamplingTarget(
                key=attempt.key,
                supervisor_pid=attempt.pid,
                cgroup=attempt.task.cgroup if attempt.task is not None else None,
                gpu_indices=attempt.gpu_indices,
                wall_s=max(0.0, wall_s - attempt.info.started_s),
                shared_gpus=tuple(share.index for share in attempt.gpu_shares),
            )
            for attempt in agent.live()
            if attempt.phase is Phase.RUNNING and attempt.info is not None
        ]
        supervisors = {attempt.pid for attempt in agent.live() if attempt.pid}
        usage, gpus = await asyncio.to_thread(_sample, meters, sharing, targets)
        meters.load.note_gpus(gpus)
        use = await asyncio.to_thread(meters.outside.look, gpus, supervisors, wall_s)
        post(Measured(load=meters.load.load(), usage=usage, live=meters.attempts.live, gpu_use=use))
        await look_at_sharing(sharing, post)


async def look_at_sharing(sharing: Sharing, post: Callable[[Input], None]) -> None:
    """Post how jobs share GPUs here, if any does or is to."""
    status = await asyncio.to_thread(sharing.look)
    if status is not None:
        post(SharingStatus(sharing=status))


def _sample(
    meters: Meters, sharing: Sharing, targets: Sequence[SamplingTarget[AttemptKey]]
) -> tuple[dict[AttemptKey, Usage], tuple[GpuSample, ...]]:
    shares = any(target.shared_gpus for target in targets)
    return meters.attempts.sample(targets, sharing.held_s() if shares else {})
