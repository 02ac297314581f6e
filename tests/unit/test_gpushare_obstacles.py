"""Settings of a node that keep jobs from sharing a GPU, or would let them share more than it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.gpushare import Runtime, RuntimeSite, ShareClass, SharedTask
from gnode.gpushare.hami import HamiRuntime
from gnode.gpushare.interception import InterceptionRuntime
from gnode.gpushare.mig import MigRuntime
from gnode.gpushare.mps import ColocateRuntime, MpsRuntime
from gnode.gpushare.obstacles import CONTROL_PROGRAM, mps_runs
from gnode.hw.nvml import ComputeMode, MigInstance, Nvml
from gsched.config.nodes import GpuShareConfig

DEFAULT, PROHIBITED = ComputeMode.DEFAULT, ComputeMode.PROHIBITED
EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


class Modes(Nvml):
    """NVML of a machine whose GPUs have these compute modes, and one MIG instance."""

    def __init__(self, *modes: ComputeMode) -> None:
        self._modes = modes

    def compute_modes(self) -> tuple[ComputeMode, ...]:
        """Return them."""
        return self._modes

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Return one."""
        return (MigInstance(uuid="MIG-1", gpu_uuid="GPU-1", memory_bytes=1 << 33),)


def interception(site: RuntimeSite) -> Runtime:
    return InterceptionRuntime(
        site.config, site.directory, compiler=lambda: "/bin/true", nvml=site.nvml
    )


def mps(site: RuntimeSite) -> Runtime:
    return MpsRuntime(site, path=str(site.directory.parent / "bin"))


Make = Callable[[RuntimeSite], Runtime]
OTHERS: tuple[Make, ...] = (ColocateRuntime, HamiRuntime, MigRuntime, interception)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with all that runtimes look for."""
    for name in ("driver", "libvgpu.so"):
        (tmp_path / name).touch()
    for name in ("bin", "mps"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / CONTROL_PROGRAM).write_text("#!/bin/sh\n")
    (tmp_path / "bin" / CONTROL_PROGRAM).chmod(0o755)
    return tmp_path


def site(folder: Path, *modes: ComputeMode) -> RuntimeSite:
    config = GpuShareConfig(
        driver=str(folder / "driver"),
        hami_library=str(folder / "libvgpu.so"),
        mps_pipe_dir=str(folder / "mps"),
    )
    return RuntimeSite(config=config, directory=folder / "gpushare", nvml=Modes(*modes))


@pytest.mark.parametrize("make", [ColocateRuntime, HamiRuntime, interception])
def test_a_gpu_for_one_process_is_not_shared(make: Make, folder: Path) -> None:
    said = make(site(folder, DEFAULT, EXCLUSIVE)).missing()

    assert said == (
        "the compute mode of GPU 1 is EXCLUSIVE_PROCESS: one process can use it at a time; set it "
        "with `nvidia-smi -i 1 -c DEFAULT`"
    )
    assert make(site(folder, DEFAULT, ComputeMode.UNKNOWN)).missing() is None


@pytest.mark.parametrize("make", [MigRuntime, mps])
def test_the_server_of_mps_and_an_instance_need_one_process_alone(make: Make, folder: Path) -> None:
    if make is mps:
        (folder / "mps" / "control").touch()

    assert make(site(folder, EXCLUSIVE)).missing() is None
    said = make(site(folder, PROHIBITED)).missing()
    assert "GPU 0 is PROHIBITED: no process can use it" in (said or "")


@pytest.mark.parametrize("make", OTHERS)
def test_a_running_mps_daemon_is_told_and_no_job_finds_its_pipes(make: Make, folder: Path) -> None:
    runtime = make(site(folder, DEFAULT))
    assert runtime.missing() is None
    (folder / "mps" / "control").touch()
    assert f"an MPS control daemon runs with its pipes in {folder}/mps" in (runtime.missing() or "")

    if make is interception:
        return  # its admission needs a compiler: tests/system/test_gpushare_processes.py
    task = SharedTask(
        job="7",
        attempt=1,
        gpu_index=0,
        gpu_uuid="GPU-1",
        percent=30,
        memory_bytes=1 << 30,
        share_class=ShareClass.LOW,
    )
    pipes = runtime.admit(task)["CUDA_MPS_PIPE_DIRECTORY"]
    assert pipes == str(folder / "gpushare" / "no-mps")
    assert os.listdir(pipes) == []


def test_a_daemon_that_was_killed_serves_no_pipes(folder: Path) -> None:
    """Its files stay; the process id in one of them may be that of another program."""
    pipes = folder / "mps"
    (pipes / "control").touch()
    program = shutil.which("sleep")
    assert program is not None
    shutil.copy(program, folder / CONTROL_PROGRAM)
    daemon = subprocess.Popen([folder / CONTROL_PROGRAM, "60"])
    number = pipes / f"{CONTROL_PROGRAM}.pid"
    try:
        number.write_text(f"{daemon.pid}\n")
        assert mps_runs(str(pipes))
        number.write_text(f"{os.getpid()}\n")
        assert not mps_runs(str(pipes))
    finally:
        daemon.kill()
        daemon.wait()
    number.write_text(f"{daemon.pid}\n")
    assert not mps_runs(str(pipes))
    said = mps(site(folder, DEFAULT)).missing()
    assert said == (
        f"no MPS control daemon listens in {pipes}: start it with "
        f"`CUDA_MPS_PIPE_DIRECTORY={pipes} {CONTROL_PROGRAM} -d`"
    )
