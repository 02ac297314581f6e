"""NVML on a real GPU: ``pytest tests/gpu`` on a machine that has one."""

import pytest

from gnode.hw.nvml import Nvml


def test_nvml_names_the_gpus_and_says_how_busy_they_are() -> None:
    nvml = Nvml()
    gpus = nvml.gpus()
    if not gpus:
        pytest.skip("no GPU that NVML sees")

    samples = nvml.samples()

    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert all(gpu.uuid.startswith(("GPU-", "MIG-")) and " " not in gpu.type for gpu in gpus)
    assert all(gpu.rate_mhz > 10_000 for gpu in gpus)
    assert len(samples) == len(gpus)
    assert all(
        0 <= sample.memory_used_bytes <= gpu.memory_bytes
        for gpu, sample in zip(gpus, samples, strict=True)
    )
