"""Inventory, load and samples of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gnode.hw import cgroups
from gnode.hw.inventory import take_inventory
from gnode.hw.nvml import Nvml
from gnode.hw.sampling import LoadMeter, Sampler, Target
from gsched.config import GpuConfig, NodeConfig
from gsched.errors import BadResourceError


def test_an_undeclared_machine_offers_what_it_has() -> None:
    found = take_inventory(NodeConfig(), Nvml())

    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.memory_bytes == psutil.virtual_memory().total


def test_what_is_declared_is_offered_instead() -> None:
    config = NodeConfig(
        cpus=64,
        memory="2gb",
        gpu=(GpuConfig(count=2, type="a100", memory="40gb"), GpuConfig(count=1)),
        features=("fast",),
        resources={"z": 1, "license": 3, "none": 0},
    )

    found = take_inventory(config, Nvml())

    assert (found.cpus, found.memory_bytes) == (64, 2 * 1024**3)
    assert [(gpu.index, gpu.type) for gpu in found.gpus] == [
        (0, "a100"),
        (1, "a100"),
        (2, "declared"),
    ]
    assert found.gpus[0].memory_bytes == 40 * 1024**3
    assert found.generic == (("license", 3), ("z", 1))


def test_a_declared_size_that_is_none_is_refused() -> None:
    with pytest.raises(BadResourceError, match="much"):
        take_inventory(NodeConfig(memory="much"), Nvml())


def test_the_load_is_of_this_machine() -> None:
    load = LoadMeter().load()

    assert 0 < load.memory_used_bytes <= psutil.virtual_memory().total
    assert 0 <= load.cpu_percent <= 100 * (os.cpu_count() or 1)


def target(pid: int, cgroup: str | None = None) -> "Target[str]":
    return Target(key="a", supervisor_pid=pid, cgroup=cgroup, gpu_indices=(), wall_s=3.0)


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


@pytest.mark.gpu
def test_nvml_names_the_gpus_and_says_how_busy_they_are() -> None:
    nvml = Nvml()
    gpus = nvml.gpus()
    if not gpus:
        pytest.skip("no GPU that NVML sees")

    samples = nvml.samples()

    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert all(gpu.uuid.startswith(("GPU-", "MIG-")) and " " not in gpu.type for gpu in gpus)
    assert len(samples) == len(gpus)
    assert all(
        0 <= sample.memory_used_bytes <= gpu.memory_bytes
        for gpu, sample in zip(gpus, samples, strict=True)
    )
