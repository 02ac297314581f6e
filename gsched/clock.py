"""The only module that reads a clock; everything else takes ``now_s`` or a `Clock`."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell gets its time from."""

    def wall_s(self) -> float:
        """Return seconds since the epoch: for people, deadlines and records."""

    def monotonic_s(self) -> float:
        """Return seconds that never jump: for intervals."""


class SystemClock:
    """The machine's own clocks."""

    def wall_s(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds of CLOCK_BOOTTIME: it goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def thread_cpu_s() -> float:
    """Return the CPU time of this thread: for work that others must not wait for."""
    return time.thread_time()
