"""A driver without a GPU and an NVML that shows it, for `sharing.py --rehearse`."""

import os
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

from tests.support.gpu_device import BUILDS, FAKE_DRIVER, Device, build_driver

GIB = 1 << 30
UUID = "GPU-rehearsed"
TOTAL_BYTES = 80 * GIB
SECOND_NS = 1_000_000_000


class Rehearsal:
    """The device that stands for a GPU.

    With the directory GSCHED_TEST_GPU_BUILDS, of `tests.support.gpu_fixtures`, its library and that
    of the runtime are those there.

    Attributes:
        driver: path of its library.
        builds: directory of the runtime's builds.
        device: what it has logged.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        built = os.environ.get("GSCHED_TEST_GPU_BUILDS")
        if built:
            self.driver, self.builds = Path(built, *FAKE_DRIVER), Path(built, BUILDS)
        else:
            (folder / "driver").mkdir()
            self.driver, self.builds = build_driver(folder / "driver"), folder / "lib"
        self.device = Device(folder / "device", total_bytes=TOTAL_BYTES)

    def library(self) -> ModuleType:
        """Return NVML's binding as it would show this device."""
        library = ModuleType("rehearsed_nvml")
        library.__dict__.update(
            NVMLError=type("NVMLError", (Exception,), {}),
            NVML_CLOCK_SM=1,
            NVML_DEVICE_MIG_ENABLE=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=int,
            nvmlDeviceGetName=lambda _: "Rehearsed GPU",
            nvmlDeviceGetUUID=lambda _: UUID,
            nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(
                total=TOTAL_BYTES, used=self.device.used_bytes
            ),
            nvmlDeviceGetNumGpuCores=lambda _: 16896,
            nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
            nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
            nvmlDeviceGetMigMode=lambda _: (0, 0),
            nvmlDeviceGetComputeMode=lambda _: 0,
            nvmlDeviceGetPersistenceMode=lambda _: 1,
            nvmlSystemGetDriverVersion=lambda: "0.0",
            nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=self.busy_percent()),
            nvmlDeviceGetComputeRunningProcesses=lambda _: [
                SimpleNamespace(pid=pid, usedGpuMemory=used)
                for pid, used in self.device.used_by_process().items()
                if Path(f"/proc/{pid}").exists()
            ],
        )
        return library

    def busy_percent(self) -> float:
        """Return how busy the device was in the last second."""
        now_ns = time.monotonic_ns()
        since_ns = now_ns - SECOND_NS
        busy_ns = sum(
            max(0, min(one.ended_ns, now_ns) - max(one.started_ns, since_ns))
            for one in self.device.newest()
        )
        return 100.0 * busy_ns / SECOND_NS

    def environment(self) -> dict[str, str]:
        """Return what a process needs to use this device."""
        return {"GSCHED_FAKE_STATE": str(self.device.path)}

    def library_path(self) -> dict[str, str]:
        """Return what a process needs to find the driver itself."""
        old = os.environ.get("LD_LIBRARY_PATH")
        folder = str(self.driver.parent)
        return {"LD_LIBRARY_PATH": f"{folder}:{old}" if old else folder}
