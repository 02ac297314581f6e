"""NVIDIA's management library, where there is one: what GPUs there are and how busy they are."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Final

import pynvml

from gnode.hw.mig import MigGpu
from gsched.model.resources import Gpu

log = logging.getLogger(__name__)

#: NVML counts cores, but a GPU is compared by multiprocessors. Cores of one, by the compute
#: capability: "Arithmetic Instructions" in NVIDIA's CUDA C++ Programming Guide (32-bit floating
#: point). The next older one stands for those that are not here.
_CORES_OF_ONE: Final = ((8, 6, 128), (7, 0, 64), (6, 1, 128), (6, 0, 64), (5, 0, 128))
_CORES_OF_ONE_BEFORE: Final = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """How busy one GPU is now.

    Attributes:
        process_memory_bytes: by process id, where the GPU tells.
        pids: of all compute processes.
        process_util_percent: likewise, since the sample before; None: the GPU does not tell.
        tells_util: the GPU tells its utilisation; with MIG it does not.
        mps_pids: of compute processes that use it through an MPS server; they are not in ``pids``.
    """

    util_percent: float
    memory_used_bytes: int
    process_memory_bytes: dict[int, int]
    process_util_percent: dict[int, float] | None = None
    pids: frozenset[int] = frozenset()
    tells_util: bool = True
    mps_pids: frozenset[int] = frozenset()


class ComputeMode(IntEnum):
    """Which processes can use a GPU: ``nvmlComputeMode_t``; UNKNOWN: the GPU does not tell."""

    UNKNOWN = -1
    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG instance of a GPU; ``gpu_uuid`` is that of the whole GPU."""

    uuid: str
    gpu_uuid: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """Where a GPU is found on its machine.

    Attributes:
        index: as in the inventory.
        minor: number of its device file.
        pci: its address, as in /sys/bus/pci/devices; empty: not known.
        instances: UUID, GPU instance and compute instance of each MIG instance of it.
    """

    index: int
    minor: int
    pci: str
    instances: tuple[tuple[str, int, int], ...] = ()


class Nvml:
    """The library, opened once; a machine without it has no GPUs.

    Args:
        library: the binding, or what stands for it.
    """

    def __init__(self, library: ModuleType = pynvml) -> None:
        self._library = library
        self._open = False
        self._seen_us: dict[int, int] = {}  # the newest sample of processes, by GPU
        try:
            library.nvmlInit()
            self._open = True
        except library.NVMLError as error:
            log.debug("no NVML here: %s", error)

    def gpus(self, *, rate_mhz: float = 0.0) -> tuple[Gpu, ...]:
        """Return the GPUs in the order of their PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Args:
            rate_mhz: what each can do; 0: as the library tells it.
        """
        if not self._open:
            return ()
        library = self._library
        found: list[Gpu] = []
        for index in range(int(library.nvmlDeviceGetCount())):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            name = library.nvmlDeviceGetName(handle)
            found.append(
                Gpu(
                    index=index,
                    type=_type_word(name if isinstance(name, str) else name.decode()),
                    memory_bytes=int(library.nvmlDeviceGetMemoryInfo(handle).total),
                    uuid=str(library.nvmlDeviceGetUUID(handle)),
                    rate_mhz=rate_mhz or self._rate_mhz(handle),
                )
            )
        return tuple(found)

    def _rate_mhz(self, handle: object) -> float:
        """Return multiprocessors times their highest clock, MHz; 0 where that is not told."""
        library = self._library
        try:
            cores = int(library.nvmlDeviceGetNumGpuCores(handle))
            capability = library.nvmlDeviceGetCudaComputeCapability(handle)
            clock_mhz = float(library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM))
        except library.NVMLError as error:  # an old driver, or not supported
            log.info("NVML does not tell what a GPU can do: %s", error)
            return 0.0
        return cores // _cores_of_one(*capability) * clock_mhz

    def samples(self, *, by_process: Collection[int] = ()) -> tuple[GpuSample, ...]:
        """Return how busy each GPU is, by index; none where there is no NVML.

        It may take milliseconds, and on a broken driver much longer: call it in a thread.

        Args:
            by_process: GPUs of which the utilisation of each process is requested. What is told is
                what has come since the call before, so one caller alone may ask.
        """
        if not self._open:
            return ()
        library = self._library
        try:
            count = int(library.nvmlDeviceGetCount())
            handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            return tuple(
                self._sample(handle, self._process_util(index, handle, wanted=index in by_process))
                for index, handle in enumerate(handles)
            )
        except library.NVMLError as error:
            log.warning("NVML does not answer: %s", error)
            return ()

    def compute_modes(self) -> tuple[ComputeMode, ...]:
        """Return how many processes can use each GPU at a time, by index."""
        if not self._open:
            return ()
        library, found = self._library, list[ComputeMode]()
        for index in range(int(library.nvmlDeviceGetCount())):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                found.append(ComputeMode(int(library.nvmlDeviceGetComputeMode(handle))))
            except (library.NVMLError, ValueError):  # not supported, or a mode of a newer driver
                found.append(ComputeMode.UNKNOWN)
        return tuple(found)

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Return the MIG instances of all GPUs, by GPU; none where MIG is off or unknown."""
        if not self._open:
            return ()
        library = self._library
        found: list[MigInstance] = []
        for index in range(int(library.nvmlDeviceGetCount())):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            found += [
                MigInstance(
                    uuid=str(library.nvmlDeviceGetUUID(instance)),
                    gpu_uuid=str(library.nvmlDeviceGetUUID(handle)),
                    memory_bytes=int(library.nvmlDeviceGetMemoryInfo(instance).total),
                )
                for instance in self._mig_handles(handle)
            ]
        return tuple(found)

    def mig_gpu(self, index: int) -> MigGpu | None:
        """Return a GPU whose MIG instances can be made and removed; None: there is no such GPU."""
        if not self._open or not 0 <= index < int(self._library.nvmlDeviceGetCount()):
            return None
        return MigGpu(self._library, index)

    def places(self) -> tuple[GpuPlace, ...]:
        """Return where each GPU is found; none where there is no NVML.

        Raises:
            NVMLError: the driver does not tell: nobody could be kept from that GPU alone.
        """
        if not self._open:
            return ()
        library = self._library
        found: list[GpuPlace] = []
        for index in range(int(library.nvmlDeviceGetCount())):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            found.append(
                GpuPlace(
                    index=index,
                    minor=int(library.nvmlDeviceGetMinorNumber(handle)),
                    pci=_pci_address(library.nvmlDeviceGetPciInfo(handle).busId),
                    instances=tuple(
                        (
                            str(library.nvmlDeviceGetUUID(each)),
                            int(library.nvmlDeviceGetGpuInstanceId(each)),
                            int(library.nvmlDeviceGetComputeInstanceId(each)),
                        )
                        for each in self._mig_handles(handle)
                    ),
                )
            )
        return tuple(found)

    def _mig_handles(self, handle: object) -> list[object]:
        """Return the MIG instances of one GPU, none where MIG is off or unknown."""
        library, found = self._library, list[object]()
        for slot in range(self._mig_slots(handle)):
            try:
                found.append(library.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
            except library.NVMLError:  # no instance in this slot
                continue
        return found

    def _mig_slots(self, handle: object) -> int:
        library = self._library
        try:
            enabled = library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE
            return int(library.nvmlDeviceGetMaxMigDeviceCount(handle)) if enabled else 0
        except library.NVMLError:  # a GPU without MIG
            return 0

    def _process_util(self, index: int, handle: object, *, wanted: bool) -> dict[int, float] | None:
        """Return the mean utilisation by process since the call before; None: it is not told."""
        if not wanted:
            return None
        library, found = self._library, dict[int, list[float]]()
        since_us = self._seen_us.get(index, 0)
        try:
            samples = library.nvmlDeviceGetProcessUtilization(handle, since_us)
        except library.NVMLError as error:
            # Nothing new is an error, too: then nothing ran. Others: MIG, old GPUs, no right to.
            nothing = getattr(library, "NVML_ERROR_NOT_FOUND", None)
            return {} if nothing is not None and getattr(error, "value", None) == nothing else None
        for sample in samples:
            if int(sample.timeStamp) > since_us:
                found.setdefault(int(sample.pid), []).append(float(sample.smUtil))
                self._seen_us[index] = max(self._seen_us.get(index, 0), int(sample.timeStamp))
        return {pid: sum(each) / len(each) for pid, each in found.items()}

    def _sample(self, handle: object, process_util: dict[int, float] | None) -> GpuSample:
        library, tells_util = self._library, True
        try:
            util_percent = float(library.nvmlDeviceGetUtilizationRates(handle).gpu)
        except library.NVMLError:  # not supported on every GPU, nor under MIG
            util_percent, tells_util = 0.0, False
        try:
            processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
        except library.NVMLError:
            processes = []
        return GpuSample(
            util_percent=util_percent,
            memory_used_bytes=int(library.nvmlDeviceGetMemoryInfo(handle).used),
            process_memory_bytes={
                int(process.pid): int(process.usedGpuMemory)
                for process in processes
                if process.usedGpuMemory is not None
            },
            process_util_percent=process_util,
            pids=frozenset(int(process.pid) for process in processes),
            tells_util=tells_util,
            mps_pids=self._mps_pids(handle),
        )

    def _mps_pids(self, handle: object) -> frozenset[int]:
        """Return the clients of MPS servers on a GPU; none where the driver does not tell."""
        library = self._library
        ask = getattr(library, "nvmlDeviceGetMPSComputeRunningProcesses", None)
        # an old driver has no function of the version that the binding wants
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        try:
            return frozenset(int(process.pid) for process in ask(handle)) if ask else frozenset()
        except (library.NVMLError, mismatch):
            return frozenset()


def _type_word(name: str) -> str:
    """Return a GPU's name as one word that a request can name: ``nvidia-h200`` becomes ``h200``."""
    return name.lower().removeprefix("nvidia ").strip().replace(" ", "-")


def _pci_address(bus: str | bytes) -> str:
    """Return NVML's ``00000000:3B:00.0`` as the kernel writes it: ``0000:3b:00.0``."""
    text = (bus if isinstance(bus, str) else bus.decode()).lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}"


def _cores_of_one(major: int, minor: int) -> int:
    for first_major, first_minor, cores in _CORES_OF_ONE:
        if (major, minor) >= (first_major, first_minor):
            return cores
    return _CORES_OF_ONE_BEFORE
