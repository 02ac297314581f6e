"""The load of a node: over sensible intervals, of the machine or of its group."""

import os
from pathlib import Path

import psutil
import pytest

from gnode.hw.confinement import Confinement, CpuQuota, MemoryLimit
from gnode.hw.load import LEAST_INTERVAL_S, LoadMeter
from gsched.clock import SystemClock
from gsched.model.resources import Load


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


class Group:
    """A control group whose counters a test sets."""

    def __init__(self, directory: Path, cores: float) -> None:
        self._usage = directory / "cpuacct.usage"
        self._memory = directory / "memory.current"
        self.use(cpu_s=1000.0)
        self.clock = Hand()
        cpu = CpuQuota(cores=cores, path=directory, usage_file=self._usage)
        memory = MemoryLimit(limit_bytes=1 << 30, path=directory)
        confinement = Confinement(cpu=cpu, memory=memory)
        self.meter = LoadMeter(self.clock, confinement, cores=cores)

    def use(self, *, cpu_s: float, memory_bytes: int = 0) -> None:
        self._usage.write_text(f"{round(cpu_s * 1e9)}\n")
        self._memory.write_text(f"{memory_bytes}\n")

    def load_after(self, interval_s: float) -> Load:
        self.clock.now_s += interval_s
        return self.meter.load()


def test_a_groups_load_is_what_it_uses_of_its_quota(tmp_path: Path) -> None:
    """Half a core, of which a quarter of a core was used for 10 s: a half."""
    group = Group(tmp_path, cores=0.5)
    first = group.load_after(0.0)
    group.use(cpu_s=1002.5, memory_bytes=77)

    second = group.load_after(10.0)

    assert first.cpu_percent == 0
    assert second.cpu_percent == pytest.approx(50)
    assert second.memory_used_bytes == 77


def test_completions_in_a_row_share_one_measurement(tmp_path: Path) -> None:
    """Ten within 50 ms would say all or nothing; memory is always that of now."""
    group = Group(tmp_path, cores=2)
    group.use(cpu_s=1001.0)
    seen = [group.load_after(LEAST_INTERVAL_S)]
    for number in range(1, 10):
        group.use(cpu_s=1001.0 + 0.01 * number, memory_bytes=number)
        seen.append(group.load_after(0.005))

    assert [load.cpu_percent for load in seen] == [pytest.approx(50)] * 10
    assert [load.memory_used_bytes for load in seen] == list(range(10))


def test_the_next_measurement_goes_back_to_the_last(tmp_path: Path) -> None:
    """Looks in between do not cut the interval."""
    group = Group(tmp_path, cores=1)
    group.load_after(LEAST_INTERVAL_S)
    group.use(cpu_s=1000.5)
    for _ in range(4):
        assert group.load_after(LEAST_INTERVAL_S / 5).cpu_percent == 0

    assert group.load_after(LEAST_INTERVAL_S / 5).cpu_percent == pytest.approx(50)


def test_a_load_is_never_beyond_its_bounds(tmp_path: Path) -> None:
    """A burst above the quota is all of it; a counter that fell back is nothing."""
    group = Group(tmp_path, cores=1)
    group.use(cpu_s=1100.0)
    above = group.load_after(10.0)
    group.use(cpu_s=0.0)

    assert above.cpu_percent == 100
    assert group.load_after(10.0).cpu_percent == 0


def test_an_unconfined_load_is_of_this_machine() -> None:
    """Burning one core for a while is seen: at least that core was busy."""
    cores = len(os.sched_getaffinity(0))
    clock = SystemClock()
    meter = LoadMeter(clock, Confinement(), cores=cores)
    until_s = clock.monotonic_s() + 1.5 * LEAST_INTERVAL_S
    used_before_s = sum(os.times()[:2])
    while clock.monotonic_s() < until_s:
        sum(range(10_000))
    used_s = sum(os.times()[:2]) - used_before_s

    load = meter.load()

    assert 0 < load.memory_used_bytes <= psutil.virtual_memory().total
    # Both count in ticks; the first ones of the interval may have been counted before.
    busy_s = load.cpu_percent / 100 * cores * 1.5 * LEAST_INTERVAL_S
    assert used_s * 0.8 <= busy_s <= cores * 1.5 * LEAST_INTERVAL_S
