"""What this node has: measured, unless the configuration declares it; container runtimes, too."""

import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from gnode.core.containers import ContainerRuntime
from gnode.hw.confinement import Confinement
from gnode.hw.nvml import Nvml
from gsched.config.nodes import NodeConfig
from gsched.model.container import features_of
from gsched.model.resources import Gpu, Inventory
from gsched.model.units import parse_size_bytes

_BASE_CLOCK = re.compile(r"@ *([0-9.]+) *GHz", re.IGNORECASE)
_ROUND_MHZ = 10.0  # a measured clock differs a little from boot to boot
#: Where administrators install programs, whatever gnode's own PATH is.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_INITS: Final = (
    "/usr/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
    "/usr/local/libexec/podman/catatonit",
    "/usr/bin/catatonit",
)


def take_inventory(
    config: NodeConfig,
    nvml: Nvml,
    confinement: Confinement,
    runtimes: Sequence[ContainerRuntime] = (),
) -> Inventory:
    """Return what this node offers.

    Raises:
        BadResourceError: a declared size cannot be read.
    """
    cores = usable_cores(config, confinement)
    cpus = config.cpus or max(1, math.ceil(cores))
    capacity_cores = config.cpu_capacity_cores or cores
    return Inventory(
        cpus=cpus,
        cpu_capacity_cores=0.0 if capacity_cores == cpus else capacity_cores,
        cpu_clock_mhz=config.cpu_clock_mhz or cpu_clock_mhz(),
        memory_bytes=_memory_bytes(config, confinement),
        gpus=_declared_gpus(config) if config.gpu else nvml.gpus(rate_mhz=config.gpu_rate_mhz),
        features=tuple(
            dict.fromkeys((*config.features, *features_of(tuple(each.name for each in runtimes))))
        ),
        generic=tuple(sorted((name, count) for name, count in config.resources.items() if count)),
    )


def usable_cores(config: NodeConfig, confinement: Confinement) -> float:
    """Return the cores' worth of CPU time that jobs here can really use.

    More CPUs may be offered than there are, for jobs that mostly wait: they share what there is.
    """
    cores = float(len(os.sched_getaffinity(0)))
    if confinement.cpu is not None:
        cores = min(cores, confinement.cpu.cores)
    return min(cores, config.cpus) if config.cpus else cores


def _memory_bytes(config: NodeConfig, confinement: Confinement) -> int:
    if config.memory:
        return parse_size_bytes(config.memory)
    if confinement.memory is not None:
        return confinement.memory.limit_bytes
    return int(psutil.virtual_memory().total)


def _declared_gpus(config: NodeConfig) -> tuple[Gpu, ...]:
    found: list[Gpu] = []
    for declared in config.gpu:
        memory_bytes = parse_size_bytes(declared.memory)
        for _ in range(declared.count):
            found.append(
                Gpu(
                    index=len(found),
                    type=declared.type,
                    memory_bytes=memory_bytes,
                    rate_mhz=declared.rate_mhz or config.gpu_rate_mhz,
                )
            )
    return tuple(found)


def find_runtimes(names: Sequence[str], *, path: str = "") -> tuple[ContainerRuntime, ...]:
    """Return those of the runtimes that are installed, in this order.

    Args:
        names: of `gsched.model.container.RUNTIMES`.
        path: where they are looked for; empty: where administrators install programs.
    """
    found: list[ContainerRuntime] = []
    path = path or _PATH
    for name in names:
        program = shutil.which(name, path=path)
        if program is None and name == "apptainer":
            program = shutil.which("singularity", path=path)
        if program is not None:
            found.append(
                ContainerRuntime(
                    name=name, program=program, cdi=_has_cdi(), init=name == "podman" and _init()
                )
            )
    return tuple(found)


def _has_cdi() -> bool:
    """Return whether NVIDIA's devices are described for CDI."""
    for directory in _CDI_DIRECTORIES:
        try:
            if any("nvidia" in name for name in os.listdir(directory)):
                return True
        except OSError:
            continue
    return False


def _init() -> bool:
    return any(os.access(path, os.X_OK) for path in _INITS)


def cpu_clock_mhz(
    cpus: Iterable[int] | None = None,
    *,
    devices: Path = Path("/sys/devices/system/cpu"),
    cpuinfo: Path = Path("/proc/cpuinfo"),
) -> float:
    """Return the clock of the given cores, on average, MHz; 0 if the machine does not say.

    The highest clock that the frequency driver knows counts, since the present one depends on what
    runs. Without a driver it is the base clock in the processor's name, or, in a virtual machine,
    the constant rate of the kernel's clock source.

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
