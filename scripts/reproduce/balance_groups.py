"""Control groups that confine a node to a part of this machine, and measure what it uses.

Version 1 where its cpu, cpuacct and memory controllers are mounted, else version 2 with cpu and
memory. Groups lie below this process's own (version 1) or at the top (version 2), are named after
this process, and are removed in the end; those of a run that was killed go with the next one.
"""

import os
import re
import signal
import time
from pathlib import Path

from gnode.hw import cgroups
from gsched.errors import CannotWriteError, NotPermittedError, UsageError

PREFIX = "gsched-balance-"
PERIOD_US = 100_000
#: Of CPU time when others want it too, beside 1024 of any other process: the quota is to be what a
#: node gets, not the most that it can get.
SHARES = 16_384
REMOVE_TIMEOUT_S = 10.0
VERSION_1 = ("cpu", "cpuacct", "memory")


def parents() -> dict[str, Path]:
    """Return the directories in which groups can be made: by controller, or ``unified`` alone.

    Raises:
        NotPermittedError: we are not root.
        UsageError: no control groups that limit CPU and memory are mounted.
    """
    if os.geteuid() != 0:
        raise NotPermittedError(
            "CPU time is limited by control groups, which only root may make",
            hint="run it as root",
        )
    own = cgroups.own_paths()
    places = {name: cgroups.MOUNT / name for name in VERSION_1}
    if all(name in own and path.is_dir() for name, path in places.items()):
        return {name: path / own[name].lstrip("/") for name, path in places.items()}
    controllers = _text(cgroups.MOUNT / "cgroup.controllers").split()
    if {"cpu", "memory"} <= set(controllers):
        return {"unified": cgroups.MOUNT}
    raise UsageError(
        f"control groups for CPU and memory are needed, and {cgroups.MOUNT} has none",
        hint="mount them: version 2, or cpu, cpuacct and memory of version 1",
    )


def remove_leftovers(found: dict[str, Path]) -> None:
    """Remove the groups of earlier runs whose process is gone, with whatever runs in them."""
    for parent in found.values():
        for path in parent.glob(f"{PREFIX}*"):
            match = re.match(rf"{PREFIX}([0-9]+)-", path.name)
            if match and not Path("/proc", match[1]).exists():
                _remove(path)


class NodeGroups:
    """The control groups of one node.

    Args:
        name: of the node.
        cores: CPU seconds that it may use in a second.
        memory_bytes: that it may use.
        period_us: in which it gets this part of the CPU time, microseconds.
        found: where groups can be made.

    Raises:
        CannotWriteError: they cannot be made.
    """

    def __init__(
        self,
        name: str,
        *,
        cores: float,
        memory_bytes: int,
        found: dict[str, Path],
        period_us: int = PERIOD_US,
    ) -> None:
        self.cores = cores
        self.limit_bytes = memory_bytes
        self._paths = {each: at / f"{PREFIX}{os.getpid()}-{name}" for each, at in found.items()}
        quota_us = round(cores * period_us)
        try:
            for path in self._paths.values():
                path.mkdir(exist_ok=True)  # cpu and cpuacct may be one hierarchy
            if "unified" in self._paths:
                self._write("unified", "cpu.max", f"{quota_us} {period_us}")
                self._write("unified", "cpu.weight", "1000")
                self._write("unified", "memory.max", str(memory_bytes))
            else:
                self._write("cpu", "cpu.cfs_period_us", str(period_us))
                self._write("cpu", "cpu.cfs_quota_us", str(quota_us))
                self._write("cpu", "cpu.shares", str(SHARES))
                self._write("memory", "memory.limit_in_bytes", str(memory_bytes))
        except OSError as error:
            self.remove()
            raise CannotWriteError(
                f"control group {error.filename}: {error.strerror}",
                hint="this machine does not let its groups be made, so it cannot run here",
            ) from error

    def _write(self, controller: str, file: str, value: str) -> None:
        (self._paths[controller] / file).write_text(value, encoding="ascii")

    def entrances(self) -> list[str]:
        """Return the files to which a process writes its number to be in these groups."""
        return [str(path / "cgroup.procs") for path in self._paths.values()]

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        if "unified" in self._paths:
            return _field(self._paths["unified"] / "cpu.stat", "usage_usec") / 1e6
        return int(_text(self._paths["cpuacct"] / "cpuacct.usage") or 0) / 1e9

    def memory_bytes(self) -> int:
        """Return the memory in use, without file pages that can be dropped at any time."""
        if "unified" in self._paths:
            path, inactive = self._paths["unified"], "inactive_file"
            used = int(_text(path / "memory.current") or 0)
        else:
            path, inactive = self._paths["memory"], "total_inactive_file"
            used = int(_text(path / "memory.usage_in_bytes") or 0)
        return max(0, used - _field(path / "memory.stat", inactive))

    def remove(self) -> None:
        """Kill whatever runs in the groups, and remove them."""
        for path in self._paths.values():
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a group with those below it; what runs there is killed.

    Raises:
        CannotWriteError: it is still there after `REMOVE_TIMEOUT_S`.
    """
    deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
    while path.exists():
        for pid in cgroups.members(str(path)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        cgroups.remove(str(path))
        if path.exists():
            if time.monotonic() > deadline_s:
                raise CannotWriteError(
                    f"control group {path} cannot be removed",
                    hint=f"look at what is in {path}/cgroup.procs, then rmdir {path}",
                )
            time.sleep(0.05)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _field(path: Path, name: str) -> int:
    """Return a number of a file with a name and a number in each line; 0 if it is not there."""
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
