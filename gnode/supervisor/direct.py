"""Starting a job that needs no other user, without copying the supervisor.

``posix_spawn`` shares the parent's memory until the exec, so it costs a third of a fork and all of
its page faults. Where nothing has to be done between the two that it cannot do, and the owner's
rights are the supervisor's own, the supervisor prepares everything and spawns: 1.8 instead of
4.2 ms of CPU time for a no-op ``bash``, where bash itself takes 0.95 (scripts/bench/launch).

A job is born in its control group: the supervisor steps into the group, spawns and steps out
again, which costs a tenth of a fork. Killed in between, it is as if it had died outside: the
launcher takes over. An attempt with a memory limit is forked, so that the limit never counts the
supervisor.

``no_new_privs`` is an attribute of a thread that its children inherit and that cannot be taken back
(prctl(2)). A supervisor that starts nothing else is confined: it has the attribute itself. In any
other one such a program is spawned by a thread that ends afterwards, which costs 0.15 ms.
"""

import _thread
import errno
import os
import resource
from collections.abc import Callable

from gnode.supervisor import affinity, away, cgroup, child, kernel, staging
from gnode.supervisor.child import Surroundings
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.journal import Journal
from gnode.supervisor.start_channel import AWAY
from gnode.task import Task

Spawn = Callable[[str, tuple[str, ...], dict[str, str]], int]


def is_possible(task: Task, around: Surroundings) -> bool:
    """Return whether the job's process needs nothing that only a fork can do."""
    needs_fork = task.switch_user or task.memory_cgroup or task.nice
    if task.processes or task.gate:
        return False  # they cannot be taken back
    if task.detach_timeout_s is not None:
        return False  # its process stays as the keeper of its terminal
    if "SLURM_JOB_ID" in task.env:
        return False  # only its own process knows SLURM_TASK_PID before the program starts
    if staging.has_begun_before(task):
        return False  # the job's process does that before it starts
    if task.private:
        return False  # it enters a namespace
    if task.cgroup and not around.home.is_known:
        return False
    if any(group and group.path != task.cgroup for group in (task.cpuset, task.fence)):
        return False  # a supervisor that joined it would have to find its way back
    return not needs_fork and not around.oom_protected and task.uid == os.getuid()


def start(
    task: Task,
    around: Surroundings,
    journal: Journal,
    opened: Callable[[str, str, str], None],
    pause: Callable[[float], None],
) -> tuple[int, tuple[str, str, str]]:
    """Start the job's program; return its pid, the paths of its output files, and `AWAY` or "".

    ``opened`` is told these paths before, also if the program cannot be started; ``pause`` waits
    between two looks for a directory that does not exist, and may raise to give the start up.

    The program runs before it is recorded, which a fork avoids; so the journal has to say so first.

    Raises:
        LaunchError: the program did not start; the message says why.
    """
    has_cores = around.core_limits[0] != 0  # else its limits are this process's own
    descriptors: tuple[int, ...] = ()
    umask = os.umask(task.umask)
    try:
        place = AWAY if away.look(task) else ""
        if place:
            away.make_outbox(task)
        files, descriptors = child.prepare_as_owner(task, pause)
        paths = (*files, place)
        opened(*paths)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)]
        if has_cores:
            resource.setrlimit(resource.RLIMIT_CORE, around.core_limits)
        child.limit_open_files(task)  # it stays: a supervisor needs less than any job
        journal.announce_run()

        def spawn(path: str, argv: tuple[str, ...], env: dict[str, str]) -> int:
            return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigmask=())

        return _in_group(task, around, spawn), paths
    finally:
        if has_cores:
            resource.setrlimit(resource.RLIMIT_CORE, (0, around.core_limits[1]))
        os.umask(umask)
        os.chdir("/")  # or the user's file system would stay busy
        for fd in set(descriptors):
            os.close(fd)


def _in_group(task: Task, around: Surroundings, spawn: Spawn) -> int:
    """Spawn the program inside the attempt's control group, if it has one, and on its CPUs."""
    own_cpus = os.sched_getaffinity(0) if task.cpus else set()
    if task.cgroup:
        cgroup.join(task)
    try:
        affinity.take(task)
        if task.no_new_privileges and not around.confined:
            return _without_new_privileges(lambda: child.start_program(task, spawn))
        return child.start_program(task, spawn)
    finally:
        if task.cgroup:
            around.home.go()
        if own_cpus:
            os.sched_setaffinity(0, own_cpus)


def _without_new_privileges(spawn: Callable[[], int]) -> int:
    """Return the result of ``spawn``, called in a thread whose children gain no privileges.

    Raises:
        LaunchError: as ``spawn``, or there is no such thread.
    """
    done = _thread.allocate_lock()
    pids: list[int] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            kernel.forbid_new_privileges()
            pids.append(spawn())
        except Exception as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError as error:  # Python's word for EAGAIN
        raise LaunchError(
            f"cannot start a thread: {os.strerror(errno.EAGAIN)}",
            stage="fork",
            subject="node",
            errno=errno.EAGAIN,
        ) from error
    done.acquire()
    if errors:
        raise errors[0]
    return pids[0]
