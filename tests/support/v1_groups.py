"""Control groups of version 1 for one attempt, and its group for tracking."""

import pathlib
import uuid
from typing import Any

MOUNT = pathlib.Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpuset", "devices")
NULL, ZERO = "1:3", "1:5"  # device files


def missing() -> list[str]:
    """Return what this machine lacks for them."""
    wanted = [*(MOUNT / each / "tasks" for each in CONTROLLERS), MOUNT / "unified/cgroup.procs"]
    return [str(path) for path in wanted if not path.exists()]


class V1Groups:
    """The groups of an attempt, by controller; ``unified`` is that for tracking.

    Each method returns the fields of a task that has one of them.
    """

    def __init__(self) -> None:
        self.name = f"gsched-test-{uuid.uuid4().hex}"

    def path(self, controller: str) -> pathlib.Path:
        return MOUNT / controller / self.name

    def tracking(self) -> dict[str, Any]:
        return {"cgroup": str(self.path("unified"))}

    def memory(self, limit_bytes: int = 256 << 20) -> dict[str, Any]:
        limit = {"version": 1, "path": str(self.path("memory")), "limit_bytes": limit_bytes}
        return {"memory_cgroup": limit}

    def pids(self, processes: int = 40) -> dict[str, Any]:
        return {"processes": processes, "processes_cgroup": str(self.path("pids"))}

    def cpuset(self, cpus: list[int]) -> dict[str, Any]:
        return {"cpuset": {"version": 1, "path": str(self.path("cpuset"))}, "cpus": cpus}

    def fence(self, denied: list[str]) -> dict[str, Any]:
        devices = {"denied": denied, "allowed": [NULL]}
        return {"fence": {"version": 1, "path": str(self.path("devices")), **devices}}

    def all(self, cpus: list[int]) -> dict[str, Any]:
        """Return the fields of a task that has all of them."""
        limits = self.memory(1 << 30) | self.pids(4000) | self.cpuset(cpus) | self.fence([ZERO])
        return self.tracking() | limits

    def left(self) -> list[str]:
        """Return the controllers of the groups that are there."""
        return [each for each in (*CONTROLLERS, "unified") if self.path(each).exists()]

    def remove(self) -> None:
        """Remove those that are left."""
        for each in self.left():
            self.path(each).rmdir()
