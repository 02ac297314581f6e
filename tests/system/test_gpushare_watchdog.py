"""The watchdog of shared GPUs on real processes, with an NVML that says what the test wants."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gnode.gpushare.culprits import Culprits
from gnode.gpushare.node_tokens import hash_of
from gnode.gpushare.sampler import Sampler
from gnode.gpushare.watchdog import Offence, Watchdog
from gnode.hw.nvml import Nvml

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
    sampler = Sampler(
        nvml_with(memory),
        Watchdog(GIB),
        metrics=lambda: {"groups": {"7.1": row}},
        culprits=culprits,
        period_s=0.05,
    )
    sampler.start()
    try:
        assert stranger.wait(20) == -9
    finally:
        sampler.close()

    assert (known.poll(), foreign.poll()) == (None, None)
    assert [offence.group for offence in told[:1]] == ["7.1"]
    assert "around gsched's library" in told[0].reason
