"""How fast this machine's cores are: a figure that is the same at every start."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

_BASE_CLOCK = re.compile(r"@ *([0-9.]+) *GHz", re.IGNORECASE)
_ROUND_MHZ = 10.0  # a measured clock differs a little from boot to boot


def cpu_clock_mhz(
    cpus: Iterable[int] | None = None,
    *,
    devices: Path = Path("/sys/devices/system/cpu"),
    cpuinfo: Path = Path("/proc/cpuinfo"),
) -> float:
    """Return the clock of the given cores, on average, MHz; 0 if the machine does not say.

    The highest clock that the frequency driver knows counts, since the present one depends on what
    runs. Without a driver it is the base clock in the processor's name, or, in a virtual machine,
    the constant one that the kernel counts time by.

    Args:
        cpus: by number; None: those that this process may use.
        devices: the kernel's directory of processors.
        cpuinfo: the kernel's description of them.
    """
    numbers = os.sched_getaffinity(0) if cpus is None else cpus
    highest_khz = [_number(devices / f"cpu{n}" / "cpufreq" / "cpuinfo_max_freq") for n in numbers]
    known_khz = [khz for khz in highest_khz if khz > 0]
    if known_khz:
        return sum(known_khz) / len(known_khz) / 1000
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    return _stated_mhz(text)


def _number(path: Path) -> float:
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


def _stated_mhz(cpuinfo: str) -> float:
    """Return what the description of the first processor says, MHz; 0 if nothing that lasts."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    match = _BASE_CLOCK.search(fields.get("model name", ""))
    if match is not None:
        return float(match[1]) * 1000
    # With "aperfmperf" the kernel shows what a core has just run at; without, its constant clock.
    flags = fields.get("flags", "").split()
    if "constant_tsc" not in flags or "aperfmperf" in flags:
        return 0.0
    try:
        return round(float(fields.get("cpu MHz", "")) / _ROUND_MHZ) * _ROUND_MHZ
    except ValueError:
        return 0.0
