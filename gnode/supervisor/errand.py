"""Work for the owner of an attempt beside its program: staging, removal of a container, messages.

An errand is part of the attempt: its process has the owner's rights, is in the attempt's control
groups, has the attempt's limits and CPUs, and whatever it leaves behind is killed when it has
ended. Only then is the attempt over.
"""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from gnode.supervisor import cgroup, child, kernel, proc, spool, staging, terminal
from gnode.supervisor.child import Surroundings
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.journal import open_journal
from gnode.task import Task

REMOVAL_S = 60.0  # for the removal of a container
_ANSWER_BYTES_MAX = 16_000  # a pipe takes as much without a reader
_KILL_AGAIN_S = 0.02
_KILL_AGAIN_S_MAX = 1.0


def start(task: Task, around: Surroundings, work: Callable[[], str]) -> tuple[int, int]:
    """Fork a process of the attempt that does some work.

    Returns:
        Its pid, and the descriptor from which the work's faults are read.

    Raises:
        OSError: no process can be forked.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        _work_and_end(task, around, work, writer)
    os.close(writer)
    return pid, reader


def _work_and_end(
    task: Task, around: Surroundings, work: Callable[[], str], writer: int
) -> NoReturn:
    try:
        try:
            terminal.close_all_but(writer)
            child.become_member(task, around)
            os.umask(task.umask)
            fault = work()
        except LaunchError as error:
            fault = error.message
        except OSError as error:
            fault = str(error)
        os.write(writer, fault.encode("utf-8", "replace")[:_ANSWER_BYTES_MAX])
    finally:
        os._exit(0)  # always: this is a forked copy, and the supervisor continues


def faults(reader: int) -> str:
    """Return what has gone wrong in the work of a process that has ended; close ``reader``."""
    os.set_blocking(reader, False)
    try:
        return os.read(reader, _ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except BlockingIOError:  # a process that it has left kept the descriptor
        return ""
    finally:
        os.close(reader)


def members(task: Task) -> set[int]:
    """Return the processes of the attempt: in its groups, or below this process."""
    own_pid = os.getpid()
    found = proc.descendants((own_pid,), proc.snapshot()) | cgroup.members(task)
    return found - {own_pid}


def become_cleaner(directory: str, task: Task, around: Surroundings) -> NoReturn:
    """Remove what the container of an attempt without a supervisor has left; never returns.

    For a freshly forked process of the launcher: it is the attempt's only one.
    """
    try:
        os.setsid()
        terminal.close_all_but()
        kernel.become_subreaper()
        kernel.set_name(b"gsv clean")
        fault = _run_alone(
            task, around, lambda: staging.remove_container(task, REMOVAL_S), REMOVAL_S + 1.0
        )
        if fault:
            spool.log(f"{directory}: {fault}")
        open_journal(directory).announce_cleaned()
    except (LaunchError, OSError) as error:
        spool.log(f"{directory}: its container is not removed: {error}")
    finally:
        os._exit(0)


def _run_alone(task: Task, around: Surroundings, work: Callable[[], str], limit_s: float) -> str:
    """Do some work as the only process of an attempt; return what went wrong, in words."""
    ended: set[int] = set()

    def reap() -> bool:
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                ended.add(pid)
        except ChildProcessError:
            return True
        return False

    cgroup.prepare(task)
    pid, reader = start(task, around, work)
    end_s = kernel.boottime_s() + limit_s
    while not reap() and pid not in ended and kernel.boottime_s() < end_s:
        signal.sigtimedwait((signal.SIGCHLD,), _KILL_AGAIN_S_MAX)
    _clear(task, reap)
    while not cgroup.remove(task):
        _clear(task, reap)
    return faults(reader)


def _clear(task: Task, reap: Callable[[], bool]) -> None:
    """Kill everything of the attempt until nothing is left.

    Args:
        task: of the attempt.
        reap: takes in what has ended; returns whether this process has no children left.
    """
    pause_s = _KILL_AGAIN_S
    while not (reap() and cgroup.is_empty(task)):
        cgroup.kill(task)
        proc.send(members(task), signal.SIGKILL)
        signal.sigtimedwait((signal.SIGCHLD,), pause_s)
        pause_s = min(2 * pause_s, _KILL_AGAIN_S_MAX)
