"""The CPUs of one attempt, as its processes' affinity (sched_setaffinity(2)).

A control group enforces them where there is one for that. The affinity alone suffices for programs
that do not change it, and it tells every program how many CPUs it has: ``nproc`` and
``os.sched_getaffinity`` read it.
"""

import contextlib
import os
from collections.abc import Callable

from gnode.supervisor import cgroup, spool
from gnode.supervisor.errors import LaunchError, reason
from gnode.task import Task

_ROUNDS_MAX = 20  # processes that fork while they are confined are looked for again


def take(task: Task) -> None:
    """Bind this process, which becomes the job or starts it, to the attempt's CPUs.

    Raises:
        LaunchError: none of them is online, or the kernel refuses.
    """
    cpus = task.cpus
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        text = ",".join(map(str, cpus))
        raise LaunchError(
            f"cannot bind the job to CPUs {text}: {reason(error)}: see gsched doctor",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error


def confine(task: Task, members: Callable[[], set[int]]) -> None:
    """Bind a job that runs already, behind its gate, to the CPUs of its attempt.

    Args:
        members: returns the job's processes.
    """
    cpus = task.cpus
    if not cpus:
        return
    try:
        cgroup.confine(task)
    except OSError as error:  # it runs, and its affinity binds it
        spool.log(f"cannot confine the control group to its CPUs: {error}")
    done: set[int] = set()
    for _ in range(_ROUNDS_MAX):
        threads = set().union(*(_threads(pid) for pid in members())) - done
        if not threads:
            return
        for thread in threads:
            with contextlib.suppress(OSError):  # it has ended, or is in another cpuset
                os.sched_setaffinity(thread, cpus)
        done |= threads


def _threads(pid: int) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()
