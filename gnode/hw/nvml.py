"""NVIDIA's management library, where there is one: what GPUs there are and how busy they are."""

import logging
from dataclasses import dataclass

import pynvml

from gsched.model.resources import Gpu

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """How busy one GPU is now; ``process_memory_bytes`` is by process id."""

    util_percent: float
    memory_used_bytes: int
    process_memory_bytes: dict[int, int]


class Nvml:
    """The library, opened once; a machine without it has no GPUs."""

    def __init__(self) -> None:
        self._open = False
        try:
            pynvml.nvmlInit()
            self._open = True
        except pynvml.NVMLError as error:
            log.debug("no NVML here: %s", error)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs in the order of their PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        if not self._open:
            return ()
        found: list[Gpu] = []
        for index in range(int(pynvml.nvmlDeviceGetCount())):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            found.append(
                Gpu(
                    index=index,
                    type=_type_word(name if isinstance(name, str) else name.decode()),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                )
            )
        return tuple(found)

    def samples(self) -> tuple[GpuSample, ...]:
        """Return how busy each GPU is, by index; none where there is no NVML.

        It may take milliseconds, and on a broken driver much longer: call it in a thread.
        """
        if not self._open:
            return ()
        try:
            count = int(pynvml.nvmlDeviceGetCount())
            return tuple(_sample(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count))
        except pynvml.NVMLError as error:
            log.warning("NVML does not answer: %s", error)
            return ()


def _type_word(name: str) -> str:
    """Return a GPU's name as one word that a request can name: ``nvidia-h200`` becomes ``h200``."""
    return name.lower().removeprefix("nvidia ").strip().replace(" ", "-")


def _sample(handle: object) -> GpuSample:
    try:
        util_percent = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:  # not supported on every GPU, nor under MIG
        util_percent = 0.0
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        processes = []
    return GpuSample(
        util_percent=util_percent,
        memory_used_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        process_memory_bytes={
            int(process.pid): int(process.usedGpuMemory)
            for process in processes
            if process.usedGpuMemory is not None
        },
    )
