"""The watchdog of shared GPUs on real processes, with an NVML that says what the test wants."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.watchdog import Culprits, Offence, Watchdog, WatchdogSampler
from gnode.hw import cgroups
from gnode.hw.nvml import Nvml
from tests.support.processes import PATIENCE_S

GIB = 1 << 30


def nvml_with(memory: dict[int, int]) -> Nvml:
    """Return NVML with one GPU on which processes use so much memory."""
    library = ModuleType("fake_nvml")
    library.__dict__.update(
        NVMLError=type("NVMLError", (Exception,), {}),
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=141 * GIB, used=9 * GIB),
        nvmlDeviceGetNumGpuCores=lambda _: 16896,
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
        nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=1),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in memory.items()
        ],
    )
    return Nvml(library)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return processes that wait, two of a shared job and one of nobody."""
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    secret = {"GSCHED_SHARE_SECRET": "secret of 7"}
    made = [subprocess.Popen(wait, stdin=subprocess.PIPE, env=env) for env in (secret, secret, {})]
    yield made
    for process in made:
        process.kill()
        process.communicate()


def test_a_process_around_the_library_is_killed_and_others_are_not(
    processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    known, stranger, foreign = processes
    memory = {process.pid: GIB for process in processes}
    row = {"gpu": "GPU-1", "memory_bytes": 8 * GIB, "pids": [known.pid]}
    culprits = Culprits({hash_of("secret of 7"): "7.1"})
    told: list[Offence] = []
    culprits.notify = told.append
    sampler = WatchdogSampler(
        nvml_with(memory),
        Watchdog(GIB),
        metrics=lambda: {"groups": {"7.1": row}},
        culprits=culprits,
        period_s=0.05,
    )
    sampler.start()
    try:
        assert stranger.wait(PATIENCE_S) == -9
    finally:
        sampler.close()

    assert (known.poll(), foreign.poll()) == (None, None)
    assert [offence.group for offence in told[:1]] == ["7.1"]
    assert "around gsched's library" in told[0].reason


@pytest.fixture
def tracking(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of the node's control group."""
    roots = cgroups.find_roots("auto", str(tmp_path))
    if roots.tracking is not None:
        yield Path(roots.tracking)
    for root in roots.all:
        cgroups.remove(root)
    if roots.tracking is None:
        pytest.skip("needs control groups of version 2 that may be made")


def test_a_process_that_hides_its_secret_is_known_by_its_control_group(
    tracking: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """As one below the job's group is; what the environment of a process claims is second."""
    with_secret, _, hiding = processes
    culprits = Culprits({hash_of("secret of 7"): "7.1", hash_of("secret of 8"): "8.1"})
    culprits.tracking = cgroups.group_name(str(tracking))
    assert culprits.group_of(hiding.pid) is None
    step = tracking / "8.1" / "step"
    step.mkdir(parents=True)
    for process in (hiding, with_secret):
        (step / "cgroup.procs").write_text(str(process.pid))

    assert culprits.group_of(hiding.pid) == "8.1"
    assert culprits.group_of(with_secret.pid) == "8.1"
    reason = "it uses the GPU around the library"
    culprits.kill(Offence(group="8.1", pids=(hiding.pid,), reason=reason))
    assert hiding.wait(PATIENCE_S) == -9


def test_a_process_of_a_job_that_shares_nothing_is_of_no_shared_job(
    tracking: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    culprits = Culprits({hash_of("secret of 7"): "7.1"})
    culprits.tracking = cgroups.group_name(str(tracking))
    (tracking / "9.1").mkdir()
    (tracking / "9.1" / "cgroup.procs").write_text(str(processes[2].pid))

    assert culprits.group_of(processes[2].pid) is None
    processes[2].kill()
    processes[2].wait()
