"""Whether the GPUs of this machine work, as NVML tells: the built-in health check of gnode.

Errors of memory, links and the driver are signs of broken hardware, whatever jobs do. A GPU that
cannot tell one of them (not supported, an old driver) passes that part.

Source: NVML API Reference; "XID Errors" in NVIDIA's GPU Deployment and Management documentation.
"""

import logging
from types import ModuleType
from typing import Any, Final

import pynvml

log = logging.getLogger(__name__)

#: Xids that programs cause by their own faults: exceptions and faults of their memory accesses, and
#: what follows from their end. All others are faults of the hardware, the driver or the bus.
_XIDS_OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
_EVENTS_MAX: Final = 1000  # that are read at a look
#: Looks in a row at which the hardware has slowed a GPU down before that counts.
_SLOWDOWNS: Final = 2


class GpuHealth:
    """Looks at all GPUs, and remembers what it has to compare with.

    Args:
        count: GPUs that the node offers.
        library: the binding, or what stands for it; it is open.
    """

    def __init__(self, count: int, library: ModuleType = pynvml) -> None:
        self._library = library
        self._count = count
        self._slow: dict[int, int] = {}
        self._links: dict[tuple[int, int], int] = {}  # recoveries of each link that was active
        self._xids: dict[int, int] = {}
        self._events = self._register()

    def look(self) -> str:
        """Return what is wrong, in words; empty: nothing. It may take long: call it in a thread."""
        self._read_events()
        found: list[str] = []
        for index in range(self._count):
            found += self._faults(index)
        return "; ".join(found)

    def _faults(self, index: int) -> list[str]:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            return [f"GPU {index} is lost: {error}"]
        faults = [
            self._memory(handle),
            self._remapping(handle),
            self._clocks(index, handle),
            *self._nvlink(index, handle),
        ]
        if index in self._xids:
            faults.append(
                f"Xid {self._xids[index]} (restart gnode when the GPU is repaired or reset)"
            )
        return [f"GPU {index}: {fault}" for fault in faults if fault]

    def _ask(self, name: str, *arguments: object) -> Any:
        """Return what a function of the library tells; None: it cannot tell."""
        library = self._library
        try:
            return getattr(library, name)(*arguments)
        except library.NVMLError as error:
            log.debug("%s: %s", name, error)
            return None

    def _memory(self, handle: object) -> str:
        library = self._library
        kind, since = library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
        count = self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, since)
        return f"uncorrectable memory errors (ECC): {count}; it needs a reset" if count else ""

    def _remapping(self, handle: object) -> str:
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        return "a row of its memory could not be remapped" if rows and rows[3] else ""

    def _clocks(self, index: int, handle: object) -> str:
        library = self._library
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        by_hardware = {
            "temperature": library.nvmlClocksThrottleReasonHwThermalSlowdown,
            "power brake": library.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            "hardware": library.nvmlClocksThrottleReasonHwSlowdown,
        }
        why = [word for word, bit in by_hardware.items() if reasons & bit]
        self._slow[index] = self._slow.get(index, 0) + 1 if why else 0
        if self._slow[index] < _SLOWDOWNS:
            return ""
        return f"its clocks are slowed down by {why[0]}"

    def _nvlink(self, index: int, handle: object) -> list[str]:
        library = self._library
        faults: list[str] = []
        for link in range(library.NVML_NVLINK_MAX_LINKS):
            active = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if active is None and (index, link) not in self._links:
                break  # it has no more
            if not active:
                if (index, link) in self._links:
                    faults.append(f"NVLink {link} is down")
                continue
            kind = library.NVML_NVLINK_ERROR_DL_RECOVERY
            now = self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, kind) or 0
            before = self._links.get((index, link), now)
            self._links[index, link] = now
            if now > before:
                faults.append(f"NVLink {link} had {now - before} recovery errors")
        return faults

    def _register(self) -> object | None:
        """Return where critical Xids of all GPUs are collected; None: the driver does not tell."""
        library = self._library
        events = self._ask("nvmlEventSetCreate")
        if events is None:
            return None
        for index in range(self._count):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                kind = library.nvmlEventTypeXidCriticalError
                self._ask("nvmlDeviceRegisterEvents", handle, kind, events)
        return events  # type: ignore[no-any-return]  # whatever the library makes

    def _read_events(self) -> None:
        if self._events is None:
            return
        library = self._library
        for _ in range(_EVENTS_MAX):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                return
            xid = int(event.eventData)
            index = self._ask("nvmlDeviceGetIndex", event.device)
            if event.eventType & library.nvmlEventTypeXidCriticalError and index is not None:
                log.warning("GPU %d: Xid %d", index, xid)
                if xid not in _XIDS_OF_PROGRAMS:
                    self._xids.setdefault(int(index), xid)
