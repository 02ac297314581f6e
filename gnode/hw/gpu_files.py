"""The device files of this node's GPUs: what a process has to open to use one.

NVIDIA's driver has ``/dev/nvidiaMINOR`` for each GPU and, for MIG instances, capability files whose
minor numbers ``/proc/driver/nvidia-caps/mig-minors`` lists (MIG User Guide, "Device Nodes and
Capabilities"). Graphics goes through ``/dev/dri``. ``/dev/nvidiactl`` and ``/dev/nvidia-uvm``
belong to all GPUs together, and open none of them alone.
"""

import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pynvml

from gnode.core.gpu_access import GpuAccess, GpuFiles, Instance
from gnode.hw.cgroups import Roots
from gnode.hw.nvml import Nvml
from gsched.config.nodes import NodeConfig, expanded
from gsched.errors import ConfigError
from gsched.model.resources import Gpu
from gsched.model.wording import FENCE_NO_FILES, FENCE_OFF

log = logging.getLogger(__name__)

_GPU_FILE = re.compile(r"nvidia[0-9]+")
_NVIDIA = "0x10de"  # the vendor's PCI id


def find_gpu_access(config: NodeConfig, nvml: Nvml, gpus: Sequence[Gpu], roots: Roots) -> GpuAccess:
    """Return how jobs reach this node's GPUs, and what keeps them from those of others.

    Raises:
        ConfigError: a configured file is no character device, or ``gpu_fence`` names a way that
            does not work here.
    """
    names = tuple(gpu.uuid for gpu in gpus)
    if config.gpu_fence == "none":
        return GpuAccess(names=names, words=FENCE_OFF if gpus else "")
    try:
        files = find_gpu_files(config, nvml)
    except pynvml.NVMLError as error:
        return GpuAccess(names=names, words=f"none: NVML does not tell the device files: {error}")
    if not files.all:
        return GpuAccess(names=names, words=FENCE_NO_FILES if gpus else "")
    if roots.devices is None:
        why, todo = "gnode may not set up control groups for devices", "run gnode as root"
        if roots.tracking is None and config.cgroup != "auto":
            why = f"there are no control groups, cgroup in [node] is {config.cgroup}"
            todo = 'set cgroup = "auto"'
        if config.gpu_fence != "auto":
            raise ConfigError(
                f'gpu_fence = "{config.gpu_fence}" in [node] cannot be set up here: {why}',
                hint=f'{todo}, or set gpu_fence = "auto"',
            )
        return GpuAccess(names=names, words=f"none: {why}")
    version, root = roots.devices
    words = "bpf" if version == 2 else "devices"
    return GpuAccess(names=names, version=version, root=root, files=files, words=words)


def find_gpu_files(config: NodeConfig, nvml: Nvml, root: Path = Path("/")) -> GpuFiles:
    """Return the device files of the GPUs that the node offers, and of those that it does not.

    Args:
        config: of the node: files of declared GPUs.
        nvml: knows all others.
        root: where ``dev``, ``proc`` and ``sys`` lie.

    Raises:
        ConfigError: a configured file is no character device.
    """
    if config.gpu:
        of_gpu = _declared(config)
        if not all(of_gpu.values()):
            return GpuFiles()  # which file belongs to which GPU is not known
        return GpuFiles(of_gpu=of_gpu, others=_present(root) - frozenset().union(*of_gpu.values()))
    of_gpu, of_instance = {}, {}
    places = nvml.places()
    capabilities = _capabilities(root)  # of all MIG instances that there may be, as well
    for place in places:
        of_gpu[place.index] = frozenset(
            [*_device(root / f"dev/nvidia{place.minor}"), *_graphics(root, place.pci)]
        )
        for uuid, gpu_instance, compute_instance in place.instances:
            below = f"gpu{place.minor}/gi{gpu_instance}"
            names = (f"{below}/access", f"{below}/ci{compute_instance}/access")
            files = frozenset(capabilities[name] for name in names if name in capabilities)
            of_instance[uuid] = Instance(gpu=place.index, files=files)
    known = frozenset().union(*of_gpu.values(), *(each.files for each in of_instance.values()))
    others = (_present(root) | frozenset(capabilities.values())) - known
    return GpuFiles(of_gpu=of_gpu, of_instance=of_instance, others=others)


def _declared(config: NodeConfig) -> dict[int, frozenset[str]]:
    """Return the files of declared GPUs by index; a GPU for which none is configured has none."""
    found: dict[int, frozenset[str]] = {}
    for declared in config.gpu:
        paths = expanded(declared)
        for index in range(declared.count):
            each = len(paths) // declared.count
            own = paths[index * each : (index + 1) * each]
            found[len(found)] = frozenset(_configured(own))
    return found


def _configured(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        device = _device(Path(path))
        if not device:
            raise ConfigError(
                f"files of [[node.gpu]]: {path} is no character device",
                hint="name device files as /dev/nvidia[0-3], or leave files out",
            )
        yield from device


def _present(root: Path) -> frozenset[str]:
    files = [path for path in _listed(root / "dev") if _GPU_FILE.fullmatch(path.name)]
    found = {device for path in files for device in _device(path)}
    for card in _listed(root / "sys/bus/pci/devices"):
        if _read(card / "vendor") == _NVIDIA:
            found.update(_graphics(root, card.name))
    return frozenset(found)


def _capabilities(root: Path) -> dict[str, str]:
    """Return the capabilities of MIG by name, as ``gpu0/gi1/access``: the device of each."""
    major = _caps_major(root)
    found: dict[str, str] = {}
    for line in _read(root / "proc/driver/nvidia-caps/mig-minors").splitlines():
        name, _, minor = line.partition(" ")
        if major and minor.isdigit():
            found[name] = f"{major}:{minor}"
    return found


def _caps_major(root: Path) -> str:
    for line in _read(root / "proc/devices").splitlines():
        major, _, name = line.strip().partition(" ")
        if name == "nvidia-caps":
            return major
    return ""


def _graphics(root: Path, pci: str) -> list[str]:
    nodes = _listed(root / "sys/bus/pci/devices" / pci / "drm")
    return [device for node in nodes if (device := _read(node / "dev"))]


def _device(path: Path) -> list[str]:
    """Return ``MAJOR:MINOR`` of a character device, nothing for anything else."""
    try:
        status = os.stat(path)
    except OSError as error:
        log.debug("%s: %s", path, error)
        return []
    if not stat.S_ISCHR(status.st_mode):
        return []
    return [f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"]


def _listed(directory: Path) -> Iterable[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
