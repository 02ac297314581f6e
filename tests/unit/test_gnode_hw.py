"""Inventory and samples of this machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gnode.hw import cgroups
from gnode.hw.confinement import Confinement, CpuQuota, MemoryLimit
from gnode.hw.inventory import take_inventory, usable_cores
from gnode.hw.nvml import GpuSample, Nvml
from gnode.hw.sampling import Sampler, SamplingTarget
from gsched.config.nodes import GpuConfig, NodeConfig
from gsched.errors import BadResourceError

FREE = Confinement()


def confined(cores: float, limit_bytes: int = 1 << 20) -> Confinement:
    return Confinement(
        cpu=CpuQuota(cores=cores, path=Path("/nowhere"), usage_file=None),
        memory=MemoryLimit(limit_bytes=limit_bytes, path=Path("/nowhere")),
    )


def test_an_undeclared_machine_offers_what_it_has() -> None:
    found = take_inventory(NodeConfig(), Nvml(), FREE)

    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.cpu_capacity_cores == 0
    assert found.memory_bytes == psutil.virtual_memory().total


def test_a_confined_node_offers_what_its_group_may_use() -> None:
    """Enough CPUs that the whole quota can be requested, and how much they really are."""
    found = take_inventory(NodeConfig(), Nvml(), confined(0.4))

    assert (found.cpus, found.cpu_capacity_cores, found.memory_bytes) == (1, 0.4, 1 << 20)


def test_what_is_declared_is_offered_instead() -> None:
    config = NodeConfig(
        cpus=64,
        memory="2gb",
        gpu=(GpuConfig(count=2, type="a100", memory="40gb"), GpuConfig(count=1, rate_mhz=5000.0)),
        gpu_rate_mhz=1000.0,
        cpu_clock_mhz=1234.0,
        features=("fast",),
        resources={"z": 1, "license": 3, "none": 0},
    )

    found = take_inventory(config, Nvml(), confined(0.4))

    assert (found.cpus, found.memory_bytes, found.cpu_clock_mhz) == (64, 2 * 1024**3, 1234)
    assert [(gpu.index, gpu.type, gpu.rate_mhz) for gpu in found.gpus] == [
        (0, "a100", 1000),
        (1, "a100", 1000),
        (2, "declared", 5000),
    ]
    assert found.gpus[0].memory_bytes == 40 * 1024**3
    assert found.generic == (("license", 3), ("z", 1))


def test_capacity_is_what_there_is_however_many_cpus_are_offered() -> None:
    """Unless it is declared, too; offering less than there is means that."""
    there = float(len(os.sched_getaffinity(0)))
    many = take_inventory(NodeConfig(cpus=1000), Nvml(), FREE)
    declared = take_inventory(NodeConfig(cpus=8, cpu_capacity_cores=6.5), Nvml(), confined(0.4))

    assert (many.cpus, many.cpu_capacity_cores) == (1000, there)
    assert (declared.cpus, declared.cpu_capacity_cores) == (8, 6.5)
    assert usable_cores(NodeConfig(cpus=1), FREE) == 1
    assert usable_cores(NodeConfig(cpus=8, cpu_capacity_cores=6.5), confined(0.4)) == 0.4


def test_a_declared_size_that_is_none_is_refused() -> None:
    with pytest.raises(BadResourceError, match="much"):
        take_inventory(NodeConfig(memory="much"), Nvml(), FREE)


def at(pid: int, wall_s: float, gpus: tuple[int, ...] = ()) -> "SamplingTarget[str]":
    return SamplingTarget(key="a", supervisor_pid=pid, cgroup=None, gpu_indices=gpus, wall_s=wall_s)


def target(pid: int, cgroup: str | None = None) -> "SamplingTarget[str]":
    return SamplingTarget(key="a", supervisor_pid=pid, cgroup=cgroup, gpu_indices=(), wall_s=3.0)


def test_a_sample_counts_grandchildren_and_keeps_what_the_dead_used() -> None:
    burn = "sum(range(3_000_000))"
    grandchild = f"{burn}; print('hot', flush=True); input()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"hot\n"
        sampler: Sampler[str] = Sampler(Nvml())
        first, _ = sampler.sample([target(os.getpid())])
        assert first["a"].cpu_s > 0
        assert first["a"].memory_peak_bytes > 1 << 20
        process.communicate(b"\n")

    second, _ = sampler.sample([target(os.getpid())])

    assert second["a"].samples == 2
    assert second["a"].cpu_s >= first["a"].cpu_s
    assert second["a"].memory_peak_bytes >= first["a"].memory_peak_bytes
    assert second["a"].memory_mean_bytes <= second["a"].memory_peak_bytes
    assert second["a"].wall_s == 3.0


@contextmanager
def burner() -> Iterator[tuple[int, Callable[[], None]]]:
    """Give a process with one child, and what makes that burn half a second or so of CPU time.

    Not this process: what other tests have started may run below it.
    """
    burn_on = "while input(): sum(range(80_000_000)); print('hot', flush=True)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn_on!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def burn() -> None:
            stdin.write(b"go\n")
            stdin.flush()
            assert stdout.readline() == b"hot\n"

        yield process.pid, burn
        process.communicate(b"\n")


def test_the_peak_is_the_busiest_time_between_two_samples() -> None:
    """Nothing for 10 s, some burning within 2 s; what comes within 0.1 s more is averaged later."""
    sampler: Sampler[str] = Sampler(Nvml())
    with burner() as (pid, burn):
        first, _ = sampler.sample([at(pid, 10.0)])
        burn()
        busy, _ = sampler.sample([at(pid, 12.0)])
        burn()
        soon, _ = sampler.sample([at(pid, 12.1)])
        later, _ = sampler.sample([at(pid, 112.0)])

    burnt_s = busy["a"].cpu_s - first["a"].cpu_s
    assert burnt_s > 0.1
    assert soon["a"].cpu_s > busy["a"].cpu_s
    assert busy["a"].cpu_peak_cores == pytest.approx(burnt_s / 2)
    assert soon["a"].cpu_peak_cores == busy["a"].cpu_peak_cores
    assert later["a"].cpu_peak_cores == busy["a"].cpu_peak_cores


def test_a_clock_that_is_set_back_makes_no_peak() -> None:
    """The interval begins anew."""
    sampler: Sampler[str] = Sampler(Nvml())
    with burner() as (pid, burn):
        sampler.sample([at(pid, 1000.0)])
        back, _ = sampler.sample([at(pid, 0.0)])
        burn()
        usage, _ = sampler.sample([at(pid, 4.0)])

    burnt_s = usage["a"].cpu_s - back["a"].cpu_s
    assert usage["a"].cpu_peak_cores == pytest.approx(burnt_s / 4)


def test_gpu_memory_has_a_mean_beside_its_peak() -> None:
    """Of all GPUs of the attempt together."""
    nvml = Replay([(8, 0), (2, 4), (2, 2)])
    sampler: Sampler[str] = Sampler(nvml)
    *_, (usage, _) = [sampler.sample([at(os.getpid(), 1.0, gpus=(0, 1))]) for _ in range(3)]

    assert usage["a"].gpu_memory_peak_bytes == 8
    assert usage["a"].gpu_memory_mean_bytes == 6


class Replay(Nvml):
    """GPUs whose used memory a test says, sample by sample."""

    def __init__(self, memory_bytes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self._left = memory_bytes

    def samples(self, *, by_process: Collection[int] = ()) -> tuple[GpuSample, ...]:
        del by_process
        return tuple(
            GpuSample(util_percent=0.0, memory_used_bytes=used, process_memory_bytes={})
            for used in self._left.pop(0)
        )


def test_an_attempt_that_is_no_target_any_more_is_forgotten() -> None:
    sampler: Sampler[str] = Sampler(Nvml())
    sampler.sample([target(os.getpid())])
    sampler.sample([])

    usage, _ = sampler.sample([target(os.getpid())])

    assert usage["a"].samples == 1


def test_a_process_that_is_gone_has_used_nothing_more() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        usage, _ = Sampler[str](Nvml()).sample([target(process.pid, "/nowhere")])

    assert (usage["a"].cpu_s, usage["a"].memory_peak_bytes) == (0.0, 0)


def test_none_means_no_control_groups(tmp_path: Path) -> None:
    assert cgroups.find_roots("none", str(tmp_path)) == cgroups.Roots()


def test_a_directory_that_is_no_control_group_is_not_taken(tmp_path: Path) -> None:
    assert cgroups.find_roots(str(tmp_path), str(tmp_path)).tracking is None


@pytest.mark.root
def test_a_group_is_found_filled_killed_and_removed(tmp_path: Path) -> None:
    roots = cgroups.find_roots("auto", str(tmp_path))
    if roots.tracking is None:
        pytest.skip("no control groups of version 2 that we may make here")
    try:
        inner = Path(roots.tracking, "1.1", "inner")
        inner.mkdir(parents=True)
        group = str(inner.parent)
        assert not cgroups.is_populated(group)
        with subprocess.Popen(["sleep", "600"]) as process:
            (inner / "cgroup.procs").write_text(str(process.pid))
            assert cgroups.is_populated(group)
            assert cgroups.members(group) == [process.pid]
            assert cgroups.cpu_s(group) is not None

            cgroups.kill(group)

            assert process.wait(10) == -9
        assert not cgroups.is_populated(group)
        cgroups.remove(group)
        assert cgroups.children(roots.tracking) == []
    finally:
        cgroups.remove_if_empty(roots)
    assert not Path(roots.tracking).exists()
