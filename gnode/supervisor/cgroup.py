"""Control groups of one attempt: tracking, killing, limits of memory and CPUs, the GPU fence."""

import contextlib
import os

from gnode.supervisor import fence
from gnode.supervisor.errors import LaunchError, reason
from gnode.task import MemoryCgroup, Task, TaskCgroups
from gsched.failpoint import failpoint

_MORE_BYTES = 16 << 20


def _read(path: str) -> str:
    """Return a control file's content, the empty string where the kernel has no such file."""
    content = b""  # by hand: every attempt reads two, and a file object costs ten calls
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(fd, 1 << 16):
                content += part
        finally:
            os.close(fd)
    except OSError:  # missing in this version, or the group is gone
        return ""
    return content.decode("utf-8", "surrogateescape")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def _field(text: str, name: str) -> int:
    """Return the number behind ``name`` in lines of "name number", 0 if it is not there."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _groups(task: Task | TaskCgroups) -> list[str]:
    memory = task.memory_cgroup
    cpuset, kept = task.cpuset, task.fence
    found = [
        task.cgroup,
        memory.path if memory else None,
        task.processes_cgroup,
        cpuset.path if cpuset else None,
        kept.path if kept else None,
    ]
    return list(dict.fromkeys(path for path in found if path))


def prepare(task: Task | TaskCgroups) -> None:
    """Make the attempt's groups and set the limit, before anything of the job runs.

    Raises:
        LaunchError: the kernel refuses; the job does not run without its limits.
    """
    try:
        for path in _groups(task):
            os.makedirs(path, mode=0o755, exist_ok=True)
        if task.memory_cgroup:
            _limit_memory(task.memory_cgroup)
        if group := task.processes_cgroup:
            _write(f"{group}/pids.max", str(task.processes))
        if cpuset := task.cpuset:
            if cpuset.version == 1:
                _open_cpuset(cpuset.path, has_cpus=bool(task.cpus))
            confine(task)
        fence.set_up(task.fence)
    except OSError as error:
        raise LaunchError(
            f"cannot set up the control group {error.filename}: {reason(error)}: see gsched doctor",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error


def _limit_memory(group: MemoryCgroup) -> None:
    path, limit = group.path, str(group.limit_bytes)
    if group.version == 1:
        _write(f"{path}/memory.limit_in_bytes", limit)
        swap = f"{path}/memory.memsw.limit_in_bytes"  # only where swap is accounted
    else:
        _write(f"{path}/memory.max", limit)
        # One rank killed for memory leaves the others hanging: all go together.
        _write(f"{path}/memory.oom.group", "1")
        swap, limit = f"{path}/memory.swap.max", "0"
    if os.path.exists(swap):
        _write(swap, limit)


def _open_cpuset(path: str, *, has_cpus: bool) -> None:
    """Give a group of version 1 what its parent has: no process can join it without.

    The scheduler balances load over the parent's CPUs, which include those of this group. So load
    balancing is turned off for this group: otherwise each change of its CPUs makes the kernel
    rebuild the scheduling domains of the machine, which takes 5 ms of CPU time and longer to
    complete on all processors.

    Args:
        path: of the group.
        has_cpus: it gets CPUs of its own.
    """
    with contextlib.suppress(OSError):  # it works without
        _write(f"{path}/cpuset.sched_load_balance", "0")  # while it has no CPUs
    for name in ("cpuset.mems",) if has_cpus else ("cpuset.mems", "cpuset.cpus"):
        _write(f"{path}/{name}", _read(f"{os.path.dirname(path)}/{name}"))


def confine(task: Task | TaskCgroups) -> None:
    """Confine the attempt's control group to its CPUs, also what runs in it already.

    Raises:
        OSError: the kernel refuses.
    """
    cpuset, cpus = task.cpuset, task.cpus
    if cpuset and cpus:
        _write(f"{cpuset.path}/cpuset.cpus", ",".join(map(str, cpus)))


def join(task: Task, pid: int = 0) -> None:
    """Move a process into the attempt's groups, first into that for tracking.

    A process that has one thread joins a group of version 1 as this thread: a move of processes
    waits for all processors, one of the calling thread does not.

    Args:
        task: of the attempt.
        pid: of the process; 0: the calling one, which has one thread.

    Raises:
        LaunchError: the kernel refuses. Once the attempt has ended, there is no such group.
    """
    for path in _groups(task):
        try:
            _write(f"{path}/{_file_of_joining(task, path, pid)}", str(pid))
        except OSError as error:
            raise LaunchError(
                f"cannot join the control group {path}: {reason(error)}: see gsched doctor",
                stage="group",
                subject="node",
                errno=error.errno or 0,
            ) from error


def _file_of_joining(task: Task, path: str, pid: int) -> str:
    if pid or path == task.cgroup or not os.path.exists(f"{path}/tasks"):
        return "cgroup.procs"
    return "tasks"


class Home:
    """The group this process lives in, so that it can come back from an attempt's."""

    __slots__ = ("_path",)

    def __init__(self) -> None:
        self._path = _own_path()

    @property
    def is_known(self) -> bool:
        """Return whether there is a version 2 tree, and we can write where we live in it."""
        return self._path is not None

    def go(self) -> None:
        """Move the calling process back.

        Raises:
            OSError: the kernel refuses.
        """
        assert self._path is not None, "only who left can come back"
        _write(self._path, "0")


def _own_path() -> str | None:
    """Return the file that takes processes into our own version 2 group, None if there is none."""
    groups = _read("/proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::/")), None)
    for line in _read("/proc/self/mounts").splitlines():
        _, mount, kind, *_ = line.split(" ")
        if kind == "cgroup2" and own is not None:
            path = f"{mount}{own.rstrip('/')}/cgroup.procs"
            return path if os.access(path, os.W_OK) else None
    return None


def members(task: Task) -> set[int]:
    """Return the processes in the attempt's groups (the limit's group holds the same ones)."""
    found: set[int] = set()
    for path in _groups(task):
        found.update(map(int, _read(f"{path}/cgroup.procs").split()))
    return found


def kill(task: Task) -> bool:
    """Kill everything in the tracking group at one stroke; False where that does not exist."""
    if not task.cgroup:
        return False
    try:
        _write(f"{task.cgroup}/cgroup.kill", "1")
    except OSError:  # kernels before 5.14 have no such file
        return False
    return True


def is_empty(task: Task) -> bool:
    """Return whether no process is left in the tracking group and the groups below it."""
    if not task.cgroup:
        return True
    return _field(_read(f"{task.cgroup}/cgroup.events"), "populated") == 0


def allow_more_memory(task: Task) -> None:
    """Raise the memory limit a little: files in memory that the job has left may fill it.

    Only for work that runs no program of the owner's.
    """
    group = task.memory_cgroup
    if group is None:
        return
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limit = str(group.limit_bytes + _MORE_BYTES)
    for each in ("memory.memsw.limit_in_bytes", name) if group.version == 1 else (name,):
        with contextlib.suppress(OSError):  # no such file: swap is not accounted
            _write(f"{group.path}/{each}", limit)


def remove(task: Task) -> bool:
    """Remove the groups; one that the job has made others in stays for gnode's clean-up.

    Nothing can join the attempt any more once its group for tracking is removed.

    Returns:
        False: somebody has come into that group (a login, see `login`) since nothing was left in
        it; all groups stay.
    """
    failpoint("supervisor.exit.before_groups")
    for path in _groups(task):
        try:
            os.rmdir(path)
        except OSError:
            if path == task.cgroup and not is_empty(task):
                return False
    return True


def out_of_memory_kills(task: Task) -> int:
    """Return how many processes the kernel has killed in the group for its memory limit."""
    group = task.memory_cgroup
    if group is None:
        return 0
    name = "memory.oom_control" if group.version == 1 else "memory.events"
    return _field(_read(f"{group.path}/{name}"), "oom_kill")


def memory_peak_bytes(task: Task) -> int:
    """Return the most memory the group has used, 0 if it cannot be told."""
    group = task.memory_cgroup
    if group is None:
        return 0
    name = "memory.max_usage_in_bytes" if group.version == 1 else "memory.peak"
    text = _read(f"{group.path}/{name}").strip()
    return int(text) if text.isdigit() else 0


def cpu_s(task: Task) -> float:
    """Return the CPU time that the tracking group has used, 0 if there is none."""
    if not task.cgroup:
        return 0.0
    return _field(_read(f"{task.cgroup}/cpu.stat"), "usage_usec") / 1e6
