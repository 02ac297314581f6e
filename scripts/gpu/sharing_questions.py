"""What is to be known of a machine, its driver and its GPU before sharing is trusted on it."""

import importlib.metadata
import os
import platform
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gnode.compiling import find_compiler
from gnode.core.gpu_access import GpuAccess
from gnode.core.task import AttemptKey
from gnode.gpushare import ShareClass
from gnode.gpushare.build import LIBRARY, NATIVE, exported_functions, version_of
from gnode.hw import cgroups
from gnode.hw.gpu_files import find_gpu_access
from gnode.hw.outside import OutsideWatch
from gnode.supervisor import fence as fences
from gsched.config.nodes import NodeConfig, OutsideConfig
from scripts.gpu.sharing_answers import Answer, Question, table
from scripts.gpu.sharing_node import GIB, Node

LIMIT: Final = 8 * GIB
SYMBOLS: Final = NATIVE / "cuda_symbols.txt"
#: The watchdog looks once a second, and wants three samples in a row.
WATCHDOG_S: Final = 1.0
WATCHED_S: Final = 30.0
PACKAGES: Final = (
    *("msgspec", "psutil", "nvidia-ml-py", "torch", "triton", "cupy-cuda13x", "jax", "numba"),
)
VARIABLES: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING")


def inventory(node: Node) -> Answer:
    """The machine: GPUs, modes, versions, paths, rights. Other modes than the default ones fail."""
    compiler = find_compiler()
    library = node.library_of_nvml
    handle = library.nvmlDeviceGetHandleByIndex(0)
    modes: Answer = {}
    for name, call in (
        ("compute_mode", library.nvmlDeviceGetComputeMode),
        ("persistence", library.nvmlDeviceGetPersistenceMode),
        ("mig", library.nvmlDeviceGetMigMode),
    ):
        try:
            modes[name] = call(handle)
        except library.NVMLError as error:
            modes[name] = f"not told: {error}"
    return {
        "ok": bool(node.gpus) and modes["compute_mode"] == 0 and not node.nvml.mig_instances(),
        "gpus": [f"{one.type}, {one.memory_bytes / GIB:.0f} GiB" for one in node.gpus],
        "rate_mhz": [one.rate_mhz for one in node.gpus],
        **modes,
        "busy_percent": [one.util_percent for one in node.nvml.samples()],
        "driver": node.driver,
        "driver_file": os.path.realpath(node.driver),
        "driver_version": _text(library.nvmlSystemGetDriverVersion()),
        "compiler": version_of(compiler).splitlines()[0] if compiler else None,
        "nvcc": shutil.which("nvcc"),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "kernel": f"{platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "uid": os.geteuid(),
        "device_files": sorted(path.name for path in Path("/dev").glob("nvidia*")),
        "mps": os.path.exists("/tmp/nvidia-mps"),
    }


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def symbols(node: Node) -> Answer:
    """Has the library all entry points of this driver, and what has it that the driver lacks?"""
    names = set(exported_functions(Path(node.driver)))
    known = set(exported_functions(node.main.runtime.library() / LIBRARY))
    newer = sorted(name for name in names - known if name[:2] == "cu" and name[2:3].isupper())
    return {
        "ok": not newer,
        "exported": len(names),
        "not_in_the_library": newer,
        "not_in_the_driver": sorted(known - names),
    }


def speed(node: Node) -> Answer:
    """How fast is the device? Kernels take as long as they are told from now on."""
    return {**node.calibrate()}


def start(node: Node) -> Answer:
    """Does the driver load through the library, and is the device as large as the limit?"""
    plain = node.ask(node.plain(), "device")
    shared = node.ask(node.shared(ShareClass.LOW, LIMIT), "device")
    return {
        "ok": shared["name"] == plain["name"] and shared["total_bytes"] == LIMIT,
        "name": plain["name"],
        "cuda": plain["cuda"],
        "start_s": plain["start_s"],
        "start_with_library_s": shared["start_s"],
    }


def lookups(node: Node) -> Answer:
    """Are the addresses of cuGetProcAddress those of dlsym, for all controlled entry points?"""
    found: Answer = node.probe(node.plain(), "lookups", node.driver, str(SYMBOLS))
    return {"ok": not found["differing"] and not found["missing"], **found}


def libraries(node: Node) -> Answer:
    """Does the driver load itself again by name? One copy of it, and the library before it."""
    paths = sorted(set(node.ask(node.shared(ShareClass.LOW), "libraries")))
    own = [path for path in paths if path.startswith(f"{node.library}/")]
    drivers = [path for path in paths if path not in own and "libcuda.so" in path]
    return {"ok": bool(own) and len(drivers) == 1, "own": own, "drivers": drivers, "all": paths}


def footprint(node: Node) -> Answer:
    """What does NVML show of a process beyond what the library has counted?"""
    task = node.main.task(ShareClass.LOW, LIMIT)
    process = node.ready(node.main.admitted(task), "hold", bytes=GIB)
    counted = node.main.row(task)["used_bytes"]
    shown = node.nvml.samples()[0].process_memory_bytes.get(process.pid)
    if shown is None:
        return {"counted_bytes": counted, "shown": "NVML does not show this process"}
    return {"ok": counted >= GIB, "counted_bytes": counted, "context_bytes": shown - counted}


def membarrier(node: Node) -> Answer:
    """Has the kernel the barrier with which a closed gate is seen by all threads?"""
    found: Answer = node.probe(node.plain(), "membarrier")
    return {"ok": found.get("private_expedited", False), **found}


def confined(node: Node) -> Answer:
    """A job without GPUs sees none."""
    environment = {**node.plain(), "CUDA_VISIBLE_DEVICES": ""}
    if node.rehearsal is not None:
        return {"skipped": "the driver without a GPU reads no CUDA_VISIBLE_DEVICES"}
    said = _refusal(node, environment, [])
    return {"ok": "CUDA error 100" in said, "said": said}


def _refusal(node: Node, environment: Mapping[str, str], before: list[str]) -> str:
    try:
        node.start(environment, [*before, *node.command("device")]).answer()
    except subprocess.SubprocessError as error:
        return str(error)
    return "it has used a GPU"


def watchdog(node: Node) -> Answer:
    """Is a process killed that opens the driver by its path, around the library?"""
    begun_s = time.monotonic()
    with node.site(watchdog_s=WATCHDOG_S) as site:
        environment = {**site.shared(ShareClass.LOW, LIMIT), "GPU_DRIVER": node.driver}
        process = node.ready(environment, "around")
        code = process.wait(WATCHED_S - 5)
    return {"ok": code == -9, "exit": code, "after_s": time.monotonic() - begun_s}


def outside(node: Node) -> Answer:
    """Is a process of no job on the GPU seen by NVML, named, and gone when it has ended?"""
    watch = OutsideWatch(OutsideConfig(action="warn"))
    process = node.ready(node.plain(), "hold", bytes=GIB)
    rows = [_rows(node, watch) for _ in range(2)]
    mine = [row for row in rows[1] if row.pid == process.pid]
    process.kill()
    left = any(row.pid == process.pid for _ in range(3) for row in _rows(node, watch))
    user = pwd.getpwuid(os.geteuid()).pw_name
    good = [row for row in mine if (row.program, row.user) == (node.program.name, user)]
    return {
        "ok": not rows[0] and len(good) == 1 and not left,
        "at_first": len(rows[0]),
        "shown": [f"{row.program} of {row.user}, {row.memory_bytes / GIB:.2f} GiB" for row in mine],
        "after_its_end": left,
    }


def _rows(node: Node, watch: OutsideWatch) -> tuple[Any, ...]:
    use = watch.look(node.nvml.samples(), (), time.time())
    time.sleep(0.2)
    return use.outside if use is not None else ()


def fence(node: Node) -> Answer:
    """Does a job's control group keep it from a GPU that it does not have, and from no other?"""
    if node.rehearsal is not None:
        return {"skipped": "the driver without a GPU opens no device file"}
    if os.geteuid() != 0:
        return {"skipped": "only root makes control groups"}
    state = str(node.folder / "fence")
    roots = cgroups.find_roots("auto", state, gpu_fence="auto", attach=fences.attach)
    try:
        config = NodeConfig(gpu_fence="auto", state_dir=state)
        access = find_gpu_access(config, node.nvml, node.gpus, roots)
        if not access.version:
            return {"skipped": access.words}
        denied = _behind(node, access, AttemptKey(1, 1), [])
        allowed = _behind(node, access, AttemptKey(2, 1), [0])
    finally:
        node.end_processes()
        cgroups.remove_if_empty(roots)
    return {
        "ok": "CUDA error" in denied and allowed == "it has used a GPU",
        "by": access.words,
        "files": sorted(access.files.all),
        "denied": denied,
        "allowed": allowed,
    }


def _behind(node: Node, access: GpuAccess, key: AttemptKey, whole: list[int]) -> str:
    """Return what becomes of a process in the group of an attempt with these GPUs."""
    made = access.fence(key, whole)
    assert made is not None
    os.makedirs(made.path, exist_ok=True)
    fences.set_up(made)
    enter = f'echo $$ > "{made.path}/cgroup.procs" && exec "$@"'
    try:
        return _refusal(node, node.plain(), ["/bin/sh", "-c", enter, "sh"])
    finally:
        node.end_processes()
        cgroups.remove(made.path)


QUESTIONS: Final = table(
    *(inventory, symbols, start, speed, lookups, libraries, membarrier, footprint),
    *(Question(watchdog, WATCHED_S), outside, confined, fence),
)
