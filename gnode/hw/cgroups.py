"""Control groups: find where this node may make them, look into them, kill what is in them.

Tracking and killing need version 2 but none of its controllers, so they work in the hybrid layout,
too. The memory limit needs the memory controller, of either version.
"""

import hashlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Directories below which attempts get their groups.

    Attributes:
        tracking: of version 2, or None: processes are then tracked by descent.
        memory: version and directory for the memory limit, or None: then there is no limit.
        processes: of either version, for the limit on processes; None: there is no controller for
            it, or no limit is wanted.
        cpuset: version and directory for the limit to particular CPUs, or None.
        devices: version and directory for the fence around GPUs, or None.
    """

    tracking: str | None = None
    memory: tuple[int, str] | None = None
    processes: str | None = None
    cpuset: tuple[int, str] | None = None
    devices: tuple[int, str] | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """Return the directories, each once."""
        found = (
            self.tracking,
            self.memory[1] if self.memory else None,
            self.processes,
            self.cpuset[1] if self.cpuset else None,
            self.devices[1] if self.devices else None,
        )
        return tuple(dict.fromkeys(path for path in found if path))


def find_roots(
    setting: str,
    state_dir: str,
    *,
    limit_processes: bool = False,
    limit_cpus: bool = False,
    gpu_fence: str = "none",
    attach: Callable[[str, Sequence[str]], None] | None = None,
) -> Roots:
    """Make and return the groups of this node.

    Args:
        setting: ``auto``, ``none`` or a version 2 directory.
        state_dir: of the node; two nodes on one machine get different groups.
        limit_processes: jobs have a limit on their processes.
        limit_cpus: jobs are confined to CPUs.
        gpu_fence: ``bpf``, ``devices``, ``auto`` for the first of them that works, or ``none``.
        attach: attaches a BPF program that denies these devices to a group, see
            `gnode.supervisor.fence`; None: that is not tried.
    """
    if setting == "none":
        return Roots()
    name = "gsched-" + hashlib.sha256(os.path.abspath(state_dir).encode()).hexdigest()[:12]
    paths = own_paths()
    parent = Path(setting) if setting != "auto" else _version2_parent(paths)
    tracking = _make(parent / name) if parent else None
    memory = (2, tracking) if tracking and _pass_down("memory", tracking) else None
    if memory is None and "memory" in paths and setting == "auto":
        made = _make(MOUNT / "memory" / paths["memory"].lstrip("/") / name)
        memory = (1, made) if made else None
    processes = None
    if limit_processes:
        processes = tracking if tracking and _pass_down("pids", tracking) else None
        if processes is None and "pids" in paths and setting == "auto":
            processes = _make(MOUNT / "pids" / paths["pids"].lstrip("/") / name)
    cpuset = _cpuset(setting, name, paths, tracking) if limit_cpus else None
    if tracking is None:
        found = "none can be made" if setting == "auto" else f"none can be made below {setting}"
        log.warning("no control groups: %s; jobs' processes are tracked by descent", found)
    devices = None
    if tracking and attach is not None and gpu_fence in {"auto", "bpf"}:
        devices = _bpf(tracking, attach)
    if devices is None and gpu_fence in {"auto", "devices"} and setting == "auto":
        devices = _version1_devices(name, paths)
    return Roots(
        tracking=tracking, memory=memory, processes=processes, cpuset=cpuset, devices=devices
    )


def _bpf(tracking: str, attach: Callable[[str, Sequence[str]], None]) -> tuple[int, str] | None:
    """Return version and directory of the group below which BPF keeps attempts from devices."""
    try:
        attach(tracking, ())  # it denies nothing; each attempt has a program of its own
    except OSError as error:
        log.debug("%s: BPF programs for devices: %s", tracking, error)
        return None
    return 2, tracking


def _version1_devices(name: str, paths: dict[str, str]) -> tuple[int, str] | None:
    if "devices" not in paths:
        return None
    made = _make(MOUNT / "devices" / paths["devices"].lstrip("/") / name)
    return (1, made) if made and os.access(f"{made}/devices.deny", os.W_OK) else None


def _cpuset(
    setting: str, name: str, paths: dict[str, str], tracking: str | None
) -> tuple[int, str] | None:
    """Return version and directory of the group below which attempts are confined to CPUs."""
    if tracking and _pass_down("cpuset", tracking):
        return 2, tracking
    if "cpuset" not in paths or setting != "auto":
        return None
    parent = MOUNT / "cpuset" / paths["cpuset"].lstrip("/")
    made = _make(parent / name)
    try:
        return (1, made) if made and _inherit_cpuset(parent, Path(made)) else None
    except OSError as error:
        log.debug("%s: %s", made, error)
        return None


def _inherit_cpuset(parent: Path, group: Path) -> bool:
    """Let a group of version 1 have the CPUs and memory of its parent: a new one has none.

    Returns:
        Whether it has any.
    """
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text(encoding="ascii").strip():
            (group / name).write_text((parent / name).read_text(encoding="ascii"))
    return all((group / name).read_text().strip() for name in ("cpuset.cpus", "cpuset.mems"))


def own_paths(proc: Path = Path("/proc/self")) -> dict[str, str]:
    """Return this process's group in each hierarchy, by controller; version 2 is under ``""``."""
    try:
        text = (proc / "cgroup").read_text(encoding="utf-8")
    except OSError:
        return {}
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def group_name(directory: str) -> str:
    """Return a version 2 group as /proc/PID/cgroup names it, by its directory."""
    for mount in (MOUNT / "unified", MOUNT):
        if (mount / "cgroup.procs").exists() and Path(directory).is_relative_to(mount):
            return f"/{Path(directory).relative_to(mount)}"
    return ""


def _version2_parent(paths: dict[str, str]) -> Path | None:
    for mount in (MOUNT, MOUNT / "unified"):
        if (mount / "cgroup.procs").exists() and (mount / "cgroup.controllers").exists():
            return mount / paths.get("", "/").lstrip("/")
    return None


def _make(path: Path) -> str | None:
    """Make a group; None if we may not, or may not put processes in it."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        log.debug("%s: %s", path, error)
        return None
    return str(path) if os.access(path / "cgroup.procs", os.W_OK) else None


def _pass_down(controller: str, tracking: str) -> bool:
    """Pass a controller of version 2 down to the attempts' groups; return whether they have it."""
    path = Path(tracking)
    for group in (path.parent, path):
        try:
            if controller not in (group / "cgroup.controllers").read_text().split():
                return False
            if controller not in (group / "cgroup.subtree_control").read_text().split():
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:  # EBUSY: the group above holds processes of its own
            log.debug("%s: %s", group, error)
            return False
    return True


def is_populated(path: str) -> bool:
    """Return whether a version 2 group or one below it holds a process."""
    try:
        events = Path(path, "cgroup.events").read_text(encoding="ascii")
    except OSError:
        return False  # no such group: nothing is in it
    return "populated 1" in events.splitlines()


def members(path: str) -> list[int]:
    """Return the processes in a group, of either version, and in those below it."""
    found: list[int] = []
    for directory in _tree(path):
        try:
            words = Path(directory, "cgroup.procs").read_text(encoding="ascii").split()
        except OSError:
            continue  # removed meanwhile
        found.extend(int(word) for word in words)
    return found


def cpu_s(path: str) -> float | None:
    """Return the CPU seconds of all that ever was in a version 2 group; None if not counted."""
    try:
        lines = Path(path, "cpu.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) / 1e6
    return None


def kill(path: str) -> None:
    """Send KILL to everything in a version 2 group and below, at one stroke where possible."""
    try:
        Path(path, "cgroup.kill").write_text("1", encoding="ascii")
    except FileNotFoundError:
        pass  # no such group, or a kernel before 5.14
    except OSError as error:
        log.warning("%s/cgroup.kill: %s", path, error)
    else:
        return
    for pid in members(path):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def remove(path: str) -> None:
    """Remove an empty group and those below it; what is not empty stays."""
    for directory in reversed(list(_tree(path))):
        try:
            os.rmdir(directory)
        except OSError as error:
            log.debug("%s: %s", directory, error)


def remove_if_empty(roots: Roots) -> None:
    """Remove the node's own groups, unless attempts still have theirs below them."""
    for path in roots.all:
        try:
            os.rmdir(path)
        except OSError as error:
            log.debug("%s: %s", path, error)


def children(root: str) -> list[str]:
    """Return the names of the groups right below ``root``."""
    try:
        return [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _tree(path: str) -> Iterator[str]:
    yield path
    for name in children(path):
        yield from _tree(os.path.join(path, name))
