"""The load of a node: over sensible intervals, of the machine or of its group."""

import os
from pathlib import Path

import psutil
import pytest

from gnode.daemon.measuring import LoadAfterEnds
from gnode.hw.confinement import Confinement, CpuQuota, MemoryLimit
from gnode.hw.load import LEAST_INTERVAL_S, LoadMeter
from gnode.hw.nvml import GpuSample
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


def test_the_load_after_ends_is_sent_once_per_turn(tmp_path: Path) -> None:
    """Two ended in one turn; nothing did in the next."""
    group = Group(tmp_path, cores=2)
    ends = LoadAfterEnds(group.meter)
    told = []
    for ended in (2, 0, 1):
        for _ in range(ended):
            ends.note(None, None)
        told.append([measured.usage for measured in ends.take()])

    assert told == [[{}], [], [{}]]


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


def test_what_has_ended_is_not_in_the_load_of_its_end(tmp_path: Path) -> None:
    """Two jobs kept a core each busy for 10 s; one ends, then the other 0.4 s later."""
    group = Group(tmp_path, cores=4)
    group.use(cpu_s=1020.0)
    group.clock.now_s += 10
    group.meter.note_end(1.0, 10.0, ())
    first = group.load_after(0.0)
    group.use(cpu_s=1020.4)
    group.clock.now_s += 0.4
    group.meter.note_end(1.0, 10.4, ())
    second = group.load_after(0.0)
    group.use(cpu_s=1021.9)
    third = group.load_after(1.6)  # something else has begun, of 1.5 s in these 2 s

    assert first.cpu_percent == pytest.approx(25)
    assert second.cpu_percent == pytest.approx(0, abs=1e-9)
    assert third.cpu_percent == pytest.approx(100 * 1.5 / 2 / 4)


def test_a_short_job_is_taken_out_as_far_as_it_was_counted(tmp_path: Path) -> None:
    """It ran for 2 s of the 10 s that were measured, beside a job that goes on."""
    group = Group(tmp_path, cores=2)
    group.use(cpu_s=1012.0)
    group.clock.now_s += 10

    group.meter.note_end(1.0, 2.0, ())

    assert group.load_after(0.0).cpu_percent == pytest.approx(50)


def test_many_short_jobs_in_a_row_leave_the_load_of_the_rest(tmp_path: Path) -> None:
    """Each runs for 50 ms, all within one interval; a long one keeps half of a core busy."""
    group = Group(tmp_path, cores=1)
    used_s = 1000.0
    seen: list[float] = []
    for _ in range(100):
        used_s += 0.05
        group.use(cpu_s=used_s)
        group.clock.now_s += 0.1
        group.meter.note_end(0.5, 0.05, ())
        seen.append(group.load_after(0.0).cpu_percent)

    assert seen[:9] == [0] * 9
    assert seen[20:] == [pytest.approx(25, abs=3)] * 80


def test_the_gpus_of_what_has_ended_are_idle(tmp_path: Path) -> None:
    """Until the next sample says otherwise."""
    group = Group(tmp_path, cores=1)
    busy = GpuSample(util_percent=90.0, memory_used_bytes=7, process_memory_bytes={})
    group.meter.note_gpus((busy, busy, busy))
    group.meter.note_end(0.0, 5.0, (0, 2, 9))

    load = group.load_after(0.0)

    assert list(load.gpu_util_percent) == [0, 90, 0]
    assert list(load.gpu_memory_used_bytes) == [0, 7, 0]


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


def test_the_machines_memory_is_read_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([(1000, 400), (1000, 300)])

    class Memory:
        def __init__(self) -> None:
            self.total, self.available = next(figures)

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    clock = Hand()
    meter = LoadMeter(clock, Confinement(), cores=1)
    seen = []
    for _ in range(4):
        seen.append(meter.load().memory_used_bytes)
        clock.now_s += 0.04

    assert seen == [600, 600, 600, 700]


def test_the_utilisation_of_the_last_minute_is_the_mean_of_its_samples() -> None:
    """Of each GPU; older samples do not count. A node whose GPUs nobody shares does not tell it."""
    clock = Hand()
    meter = LoadMeter(clock, Confinement(), cores=1, per_minute=True)
    plain = LoadMeter(clock, Confinement(), cores=1)
    assert meter.load().gpu_minute_percent == ()
    for busy in (100.0, 40.0, 20.0):
        clock.now_s += 30.0
        for each in (meter, plain):
            each.note_gpus((sample(busy), sample(0.0)))

    assert meter.load().gpu_minute_percent == (30.0, 0.0)
    assert meter.load().gpu_util_percent == (20.0, 0.0)
    assert plain.load().gpu_minute_percent == ()
    clock.now_s += 60.0
    assert meter.load().gpu_minute_percent == ()


def sample(busy: float) -> GpuSample:
    return GpuSample(util_percent=busy, memory_used_bytes=0, process_memory_bytes={})
