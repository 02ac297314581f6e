"""What gnode makes of what NVML says, with a library that says what a test wants."""

from types import ModuleType, SimpleNamespace

import pytest

from gnode.hw.nvml import Nvml


class SaidError(Exception):
    """What the library raises."""


def library(**changes: object) -> ModuleType:
    """Return a library that sees two H200; a change that is an exception is raised instead."""
    answers: dict[str, object] = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 << 30, used=7 << 30),
        "nvmlDeviceGetNumGpuCores": 16896,
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=35),
        "nvmlDeviceGetComputeRunningProcesses": [
            SimpleNamespace(pid=11, usedGpuMemory=5 << 30),
            SimpleNamespace(pid=12, usedGpuMemory=None),  # another user's, in a container
        ],
        **changes,
    }
    made = ModuleType("fake_nvml")
    made.__dict__.update(NVMLError=SaidError, NVML_CLOCK_SM=1)
    made.__dict__["nvmlDeviceGetHandleByIndex"] = lambda index: index
    for name, answer in answers.items():
        made.__dict__[name] = _answering(answer)
    return made


def _answering(answer: object) -> object:
    def function(*_: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return function


def test_a_gpu_is_named_measured_and_rated() -> None:
    """An H200 has 132 multiprocessors of 128 cores."""
    gpus = Nvml(library()).gpus()

    assert [(gpu.index, gpu.type, gpu.uuid) for gpu in gpus] == [
        (0, "h200", "GPU-1"),
        (1, "h200", "GPU-1"),
    ]
    assert (gpus[0].memory_bytes, gpus[0].rate_mhz) == (141 << 30, 132 * 1980)


@pytest.mark.parametrize(
    ("cores", "capability", "multiprocessors"),
    [
        (6912, (8, 0), 108),  # A100
        (10752, (8, 6), 84),  # A40
        (18176, (8, 9), 142),  # L40S
        (5120, (7, 0), 80),  # V100
        (2560, (7, 5), 40),  # T4
        (3584, (6, 0), 56),  # P100
        (3840, (6, 1), 30),  # P40
        (3072, (5, 2), 24),  # M40
        (2880, (3, 5), 15),  # K40
        (20480, (12, 0), 160),  # a later one
    ],
)
def test_multiprocessors_follow_from_cores(
    cores: int, capability: tuple[int, int], multiprocessors: int
) -> None:
    """As NVIDIA's data sheets have them."""
    changes = {
        "nvmlDeviceGetNumGpuCores": cores,
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlDeviceGetMaxClockInfo": 1,
    }

    assert Nvml(library(**changes)).gpus()[0].rate_mhz == multiprocessors


@pytest.mark.parametrize(
    "name",
    [
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMaxClockInfo",
    ],
)
def test_a_driver_that_does_not_tell_the_rate_leaves_it_unknown(name: str) -> None:
    nvml = Nvml(library(**{name: SaidError("Function Not Found")}))

    assert [gpu.rate_mhz for gpu in nvml.gpus()] == [0, 0]
    assert [gpu.rate_mhz for gpu in nvml.gpus(rate_mhz=9.0)] == [9, 9]


def test_samples_say_how_busy_each_gpu_is() -> None:
    samples = Nvml(library()).samples()

    assert len(samples) == 2
    assert (samples[0].util_percent, samples[0].memory_used_bytes) == (35, 7 << 30)
    assert samples[0].process_memory_bytes == {11: 5 << 30}


def test_what_a_gpu_does_not_support_counts_as_nothing() -> None:
    """Under MIG there is no utilisation."""
    missing = SaidError("Not Supported")
    nvml = Nvml(
        library(nvmlDeviceGetUtilizationRates=missing, nvmlDeviceGetComputeRunningProcesses=missing)
    )

    (sample, _) = nvml.samples()
    assert (sample.util_percent, sample.process_memory_bytes) == (0, {})
    assert sample.memory_used_bytes == 7 << 30


def test_without_the_library_there_are_no_gpus() -> None:
    nvml = Nvml(library(nvmlInit=SaidError("Shared Library Not Found")))

    assert (nvml.gpus(), nvml.samples()) == ((), ())


def test_a_driver_that_breaks_later_gives_no_samples() -> None:
    assert Nvml(library(nvmlDeviceGetMemoryInfo=SaidError("GPU is lost"))).samples() == ()
