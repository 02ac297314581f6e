"""How busy the node is: the machine, or what gnode is confined to."""

import os
from collections.abc import Callable
from typing import Final

import psutil

from gnode.hw.confinement import Confinement
from gnode.hw.nvml import GpuSample
from gsched.clock import Clock
from gsched.model.resources import Load

#: The least time over which CPU use is averaged, seconds. CPU time counts in ticks of 10 ms, and
#: many jobs may end within a few: a figure of those would say all or nothing.
LEAST_INTERVAL_S: Final = 1.0


class LoadMeter:
    """The node's load: cheap enough for the event loop, GPU figures are of the last sample.

    Args:
        clock: tells the intervals.
        confinement: what counts instead of the machine.
        cores: that the node has: what all of its CPU time is, per second.
    """

    def __init__(self, clock: Clock, confinement: Confinement, *, cores: float) -> None:
        self._clock = clock
        self._cores = cores
        quota, limit = confinement.cpu, confinement.memory
        self._busy_s: Callable[[], float] = quota.used_s if quota is not None else _machine_busy_s
        self._memory_bytes: Callable[[], int] = (
            limit.used_bytes if limit is not None else _machine_memory_bytes
        )
        self._gpus: tuple[GpuSample, ...] = ()
        self._mark = (clock.monotonic_s(), self._busy_s())
        # Nothing is measured yet: the machine's run queue is the best guess, a group has none.
        waiting = psutil.getloadavg()[0] if quota is None else 0.0
        self._cpu_percent = self._percent(waiting)

    def note_gpus(self, gpus: tuple[GpuSample, ...]) -> None:
        """Keep the GPUs' figures for the loads that follow."""
        self._gpus = gpus

    def load(self) -> Load:
        """Return the load.

        ``cpu_percent`` is the mean since the last measurement, or that one again if that is less
        than `LEAST_INTERVAL_S` ago. Memory is as it is now.
        """
        self._measure()
        return Load(
            load1=psutil.getloadavg()[0],
            cpu_percent=self._cpu_percent,
            memory_used_bytes=self._memory_bytes(),
            gpu_util_percent=tuple(gpu.util_percent for gpu in self._gpus),
            gpu_memory_used_bytes=tuple(gpu.memory_used_bytes for gpu in self._gpus),
        )

    def _measure(self) -> None:
        now_s = self._clock.monotonic_s()
        marked_s, busy_before_s = self._mark
        interval_s = now_s - marked_s
        if interval_s < LEAST_INTERVAL_S:
            return
        busy_s = self._busy_s()
        self._mark = (now_s, busy_s)
        self._cpu_percent = self._percent((busy_s - busy_before_s) / interval_s)

    def _percent(self, busy_cores: float) -> float:
        # What others keep busy beside the CPUs that are offered cannot make these busier than busy.
        return 100.0 * min(1.0, max(0.0, busy_cores / self._cores))


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


def _machine_memory_bytes() -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)
