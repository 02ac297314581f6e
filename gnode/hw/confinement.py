"""Which part of the machine is gnode's, and so its jobs': the limits of its control groups.

Jobs inherit gnode's groups of version 1, and in version 2 get groups below gnode's own, so what
confines gnode confines them together: then it is the group that is the node, not the machine.
Several gnodes on one machine, each in a group of its own, are so many unequal nodes.

The layout of the hierarchies is read from ``/proc/self/mountinfo`` (see proc(5) and cgroups(7)):
in a container what is mounted is often but a part of a tree.
"""

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from gnode.hw import cgroups

log = logging.getLogger(__name__)

_NANOSECOND_S = 1e-9
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """A control group that may use less CPU time than there is.

    Attributes:
        cores: seconds of CPU time in a second.
        path: of the group that has the quota: gnode's own or one above it.
        usage_file: counts the CPU time that the group has used; None where it is not counted.
    """

    cores: float
    path: Path
    usage_file: Path | None

    def used_s(self) -> float:
        """Return the CPU seconds that the group has used; only differences mean something."""
        if self.usage_file is None:
            return _members_cpu_s(self.path)
        text = _read(self.usage_file)
        if self.usage_file.name == "cpuacct.usage":
            return int(text or 0) * _NANOSECOND_S
        return _field(text, "usage_usec") / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A control group that may use less memory than there is.

    Attributes:
        path: of the group that has the limit: gnode's own or one above it.
    """

    limit_bytes: int
    path: Path

    def used_bytes(self) -> int:
        """Return what the group uses, without file pages that the kernel can drop at any time."""
        usage = _read(self.path / "memory.current")
        inactive = "inactive_file"
        if not usage:  # version 1, whose plain fields leave the groups below out
            usage, inactive = _read(self.path / "memory.usage_in_bytes"), "total_inactive_file"
        droppable_bytes = _field(_read(self.path / "memory.stat"), inactive)
        return max(0, int(usage or 0) - droppable_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What gnode is confined to; None where the machine is all there is to it."""

    cpu: CpuQuota | None = None
    memory: MemoryLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """A mounted hierarchy and our place in it.

    Attributes:
        own: our group, as the kernel names it.
        root: which group is mounted at ``mount``.
    """

    own: PurePosixPath
    root: PurePosixPath
    mount: Path

    @property
    def has_own(self) -> bool:
        """Return whether our group can be seen in it."""
        return self.own.is_relative_to(self.root)

    def groups(self) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield the name and directory of our group and of all above it that can be seen."""
        name = self.own if self.has_own else self.root
        for above in (name, *name.parents):
            if not above.is_relative_to(self.root):
                return
            yield above, self.mount / above.relative_to(self.root)


def find_confinement(
    proc: Path = Path("/proc/self"), *, cores: float | None = None, memory_bytes: int | None = None
) -> Confinement:
    """Return what this process is confined to.

    Of several limits on the way up the smallest counts, and of equal ones the nearest. One that is
    not below what the machine has anyway is none.

    Args:
        proc: where ``cgroup`` and ``mountinfo`` of this process lie.
        cores: that this process may use; None: by its affinity.
        memory_bytes: of the machine; None: as it says.
    """
    trees = _trees(proc)
    allowed = float(len(os.sched_getaffinity(0))) if cores is None else cores
    total_bytes = psutil.virtual_memory().total if memory_bytes is None else memory_bytes
    return Confinement(cpu=_cpu_quota(trees, allowed), memory=_memory_limit(trees, total_bytes))


# --- where we are ---


def _trees(proc: Path) -> dict[str, _Tree]:
    """Return our place in each hierarchy by controller; version 2 is under ``""``.

    A hierarchy may be mounted several times, also parts of it that are others': the first mount in
    which our group can be seen counts, or the first of all where it can be seen in none.
    """
    own = cgroups.own_paths(proc)
    trees: dict[str, _Tree] = {}
    for line in _read(proc / "mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind not in {"cgroup", "cgroup2"}:
            continue
        root, mount = (_unescape(word) for word in left.split(" ")[3:5])
        names = [""] if kind == "cgroup2" else options.rpartition(" ")[2].split(",")
        for name in names:
            if name not in own:
                continue
            tree = _Tree(own=PurePosixPath(own[name]), root=PurePosixPath(root), mount=Path(mount))
            if name not in trees or (tree.has_own and not trees[name].has_own):
                trees[name] = tree
    return trees


def _unescape(word: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)


# --- limits ---


def _cpu_quota(trees: dict[str, _Tree], cores: float) -> CpuQuota | None:
    """Return the smallest quota below ``cores``, None if there is none."""
    found: CpuQuota | None = None
    for controller, counter in (("cpu", "cpuacct"), ("", "")):
        for name, group in trees[controller].groups() if controller in trees else ():
            quota_cores = _quota_cores(group)
            if quota_cores is not None and quota_cores < cores:
                usage_file = _usage_file(trees.get(counter), name)
                found = CpuQuota(cores=quota_cores, path=group, usage_file=usage_file)
                cores = quota_cores
    return found


def _memory_limit(trees: dict[str, _Tree], total_bytes: int) -> MemoryLimit | None:
    """Return the smallest limit below ``total_bytes``, None if there is none."""
    found: MemoryLimit | None = None
    for controller in ("memory", ""):
        for _, group in trees[controller].groups() if controller in trees else ():
            limit_bytes = _memory_limit_bytes(group)
            if limit_bytes is not None and limit_bytes < total_bytes:
                found = MemoryLimit(limit_bytes=limit_bytes, path=group)
                total_bytes = limit_bytes
    return found


def _quota_cores(group: Path) -> float | None:
    """Return a group's quota of CPU time, seconds in a second; None for none."""
    words = _read(group / "cpu.max").split() or [
        _read(group / "cpu.cfs_quota_us").strip(),
        _read(group / "cpu.cfs_period_us").strip(),
    ]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None  # no such controller here, or "max" or -1: no limit
    return int(words[0]) / int(words[1])


def _memory_limit_bytes(group: Path) -> int | None:
    text = (_read(group / "memory.max") or _read(group / "memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() else None  # not there, or "max"


def _usage_file(tree: _Tree | None, name: PurePosixPath) -> Path | None:
    """Return where the CPU time of group ``name`` is counted.

    In version 1 the counter may be a hierarchy of its own, where the same processes need not be
    in a group of the same name: then its counts are about others, too.
    """
    for counted, group in tree.groups() if tree is not None else ():
        if counted == name:
            version1 = group / "cpuacct.usage"
            return version1 if version1.exists() else group / "cpu.stat"
    log.info("no group counts the CPU time of control group %s: its processes are asked", name)
    return None


def _members_cpu_s(path: Path) -> float:
    """Return the CPU seconds of a group's live processes and of all that they have reaped.

    What a process has used goes to its parent when it is reaped, and nobody from outside reaps a
    job's: so nothing is counted twice, and little is missed.
    """
    total_s = 0.0
    for pid in cgroups.members(str(path)):
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:  # it ended while we looked
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


# --- files ---


def _read(path: Path) -> str:
    """Return a small file's content, the empty string where it is not there or not ours."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    """Return the number behind ``name`` in lines of "name number", 0 if it is not there."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0
