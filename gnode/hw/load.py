"""How busy the node is: the machine, or what gnode is confined to."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from gnode.hw.confinement import Confinement
from gnode.hw.nvml import GpuSample
from gsched.clock import Clock
from gsched.model.resources import Load

#: The least time over which CPU use is averaged, seconds. CPU time counts in ticks of 10 ms, and
#: many jobs may end within a few: a figure of those would say all or nothing.
LEAST_INTERVAL_S: Final = 1.0

#: How long the figure of the machine's memory counts as that of now, seconds. The kernel needs as
#: long to tell it as gnode for the rest of a job's end.
MEMORY_KEPT_S: Final = 0.1

#: Over which the utilisation of GPUs is averaged, seconds.
MINUTE_S: Final = 60.0

IDLE_GPU: Final = GpuSample(util_percent=0.0, memory_used_bytes=0, process_memory_bytes={})


class LoadMeter:
    """The node's load: cheap enough for the event loop, GPU figures are of the last sample.

    Args:
        clock: tells the intervals.
        confinement: what counts instead of the machine.
        cores: that the node has: what all of its CPU time is, per second.
        per_minute: tell the mean utilisation of each GPU in the last minute, too.
    """

    def __init__(
        self, clock: Clock, confinement: Confinement, *, cores: float, per_minute: bool = False
    ) -> None:
        self._clock = clock
        self._cores = cores
        quota, limit = confinement.cpu, confinement.memory
        self._busy_s: Callable[[], float] = quota.used_s if quota is not None else _machine_busy_s
        self._memory_bytes: Callable[[], int] = (
            limit.used_bytes if limit is not None else _MachineMemory(clock).used_bytes
        )
        self._gpus: tuple[GpuSample, ...] = ()
        self._per_minute = per_minute
        self._minute: deque[tuple[float, tuple[GpuSample, ...]]] = deque()
        # The interval of the present figure, and what was used by its end.
        self._began_s = self._until_s = clock.monotonic_s()
        self._used_s = self._busy_s()
        self._gone_s = 0.0  # of what was used since, by attempts that have ended
        # Nothing is measured yet: the machine's run queue is the best guess, a group has none.
        self._busy_cores = psutil.getloadavg()[0] if quota is None else 0.0

    def note_gpus(self, gpus: tuple[GpuSample, ...]) -> None:
        """Keep the GPUs' figures for the loads that follow."""
        self._gpus = gpus
        if self._per_minute:
            self._minute.append((self._clock.monotonic_s(), gpus))

    def note_end(self, cores: float, ran_s: float, gpu_indices: Sequence[int]) -> None:
        """Take what an attempt that has just ended was using out of the figures.

        The next regular report may be minutes away: till then the node would look as busy as it
        was with the attempt.

        Args:
            cores: that it kept busy at the end.
            ran_s: for how long it ran.
            gpu_indices: that it owned.
        """
        self._measure()
        now_s = self._clock.monotonic_s()
        started_s = now_s - ran_s
        counted_s = self._until_s - max(self._began_s, started_s)
        if counted_s > 0:
            self._busy_cores -= cores * counted_s / (self._until_s - self._began_s)
        self._gone_s += cores * (now_s - max(self._until_s, started_s))
        self._gpus = tuple(
            IDLE_GPU if index in gpu_indices else gpu for index, gpu in enumerate(self._gpus)
        )

    def load(self) -> Load:
        """Return the load.

        ``cpu_percent`` is the mean since the last measurement, or that one again if that is less
        than `LEAST_INTERVAL_S` ago, without what attempts used that have ended. Memory is as it is
        now, the machine's to 0.1 s.
        """
        self._measure()
        return Load(
            load1=psutil.getloadavg()[0],
            cpu_percent=100.0 * min(1.0, max(0.0, self._busy_cores / self._cores)),
            memory_used_bytes=self._memory_bytes(),
            gpu_util_percent=tuple(gpu.util_percent for gpu in self._gpus),
            gpu_memory_used_bytes=tuple(gpu.memory_used_bytes for gpu in self._gpus),
            gpu_minute_percent=self._minute_percent(),
        )

    def _minute_percent(self) -> tuple[float, ...]:
        old_s = self._clock.monotonic_s() - MINUTE_S
        while self._minute and self._minute[0][0] <= old_s:
            self._minute.popleft()
        count = len(self._minute)
        each = zip(*(gpus for _, gpus in self._minute), strict=False)
        return tuple(sum(gpu.util_percent for gpu in samples) / count for samples in each)

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        interval_s = now_s - self._until_s
        if interval_s < LEAST_INTERVAL_S:
            return
        used_s = self._busy_s()
        # What others keep busy beside the CPUs that are offered cannot make these busier than busy.
        self._busy_cores = min(self._cores, (used_s - self._used_s) / interval_s)
        self._busy_cores -= self._gone_s / interval_s
        self._began_s, self._until_s = self._until_s, now_s
        self._used_s, self._gone_s = used_s, 0.0


def _machine_busy_s() -> float:
    """Return the CPU seconds that the cores which we may use were busy since the boot."""
    each = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0)
    if len(allowed) < len(each):
        each = [times for number, times in enumerate(each) if number in allowed]
    # Guests' time is in user and nice already; what the host has stolen is not there to be used.
    return sum(
        times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        for times in each
    )


class _MachineMemory:
    """The memory that is in use on the machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_s = 0.0
        self._used_bytes: int | None = None

    def used_bytes(self) -> int:
        """Return the figure, of at most `MEMORY_KEPT_S` ago."""
        now_s = self._clock.monotonic_s()
        if self._used_bytes is None or now_s - self._read_s >= MEMORY_KEPT_S:
            memory = psutil.virtual_memory()
            self._used_bytes = int(memory.total - memory.available)
            self._read_s = now_s
        return self._used_bytes
