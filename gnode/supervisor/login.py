"""Logins on this node, over ssh for example, that become part of an attempt.

What runs for them is in the attempt's control groups from then on, so its limits, its GPU fence and
its accounting hold for it, and it ends with the attempt. Only records and control groups are
needed for that: neither gnode nor the head. Where a job has only reserved the node, nothing of it
runs here yet: then gnode asks the head for a part of it.
"""

import json
import os
import re
import resource
import socket
import time
from typing import NamedTuple, cast

from gnode.supervisor import cgroup, gate, private, proc, spool
from gnode.supervisor.errors import LaunchError, reason
from gnode.task import SupervisorInfo, Task
from gsched.unix_address import address_of

LAUNCHER = "launcher.json"  # which process the launcher is
_SOCKET = "elastic.sock"  # of gnode, in its state directory: see `gsched.protocol.training`
_VERSION = 1
_ANSWER_BYTES_MAX = 64 * 1024
_LOOK_S = 0.05
_NAME = re.compile(r"[0-9]{1,18}\.[0-9]{1,9}")


class OverError(Exception):
    """The attempt has ended."""


class RunningAttempt(NamedTuple):
    """An attempt that runs here.

    Attributes:
        directory: its records.
        task: what runs.
        started: its processes.
        started_s: when it started, seconds since the epoch.
    """

    directory: str
    task: Task
    started: SupervisorInfo
    started_s: float


def attempts_of(state_dir: str, user: str, uid: int) -> list[RunningAttempt]:
    """Return the attempts of a user that run on this node, the one that started last first.

    Not those that were prepared and not launched yet: they own nothing.

    Raises:
        OSError: the records cannot be read, or somebody else could have written them.
    """
    attempts = f"{state_dir}/attempts"
    found = []
    for name in os.listdir(attempts):
        if not _NAME.fullmatch(name):
            continue
        try:
            one = _look(state_dir, f"{attempts}/{name}", uid)
        except FileNotFoundError:  # removed meanwhile
            continue
        if one is not None and one.task.user == user:
            found.append(one)
    return sorted(found, key=lambda one: (one.started_s, one.task.job), reverse=True)


def _look(state_dir: str, directory: str, uid: int) -> RunningAttempt | None:
    """Return an attempt if it is of this uid, runs, and something will end it.

    It runs as long as its own process lives: then a user cannot keep it from its end by logins.
    """
    try:
        task = spool.read_task(directory)
    except ValueError:  # gnode is writing it: it accepts an attempt with the whole of its task
        return None
    if task is None or task.uid != uid:
        return None
    if task.gate:
        task = gate.launched_task(directory)
    if task is None or spool.has_ended(directory):
        return None
    started = spool.read_started(directory)
    if started is None or not _runs(started) or not _is_looked_after(state_dir, started):
        return None
    return RunningAttempt(directory, task, started, started.started_s)


def _runs(started: SupervisorInfo) -> bool:
    return proc.lives(started.job_pid, started.job_start_ticks)


def _is_looked_after(state_dir: str, started: SupervisorInfo) -> bool:
    """Return whether the attempt's supervisor lives, or the launcher, which takes its place."""
    if proc.lives(started.pid, started.start_ticks):
        return True
    content = spool.read_file(f"{state_dir}/{LAUNCHER}")
    try:
        launcher = cast("dict[str, int]", json.loads(content or b"{}"))
        return proc.lives(launcher["pid"], launcher["start_ticks"])
    except (ValueError, KeyError, TypeError):
        return False


def await_part(state_dir: str, user: str, uid: int, address: str) -> list[RunningAttempt]:
    """Have a job of the user that has only reserved this node start a part of it here.

    It waits for that without a limit: the caller has one.

    Returns:
        As `attempts_of`; nothing: the user has no such job.

    Raises:
        OSError: gnode does not answer, or cannot tell.
    """
    if not _ask(state_dir, uid, address):
        return []
    while not (found := attempts_of(state_dir, user, uid)):
        time.sleep(_LOOK_S)
    return found


def _ask(state_dir: str, uid: int, address: str) -> bool:
    """Return whether a part of a job of the user starts on this node: gnode asks the head."""
    request = {"login": {"version": _VERSION, "uid": uid, "address": address}}
    with socket.socket(socket.AF_UNIX) as channel, address_of(f"{state_dir}/{_SOCKET}") as place:
        channel.connect(place)
        channel.sendall(json.dumps(request).encode() + b"\n")
        with channel.makefile("rb") as stream:
            line = stream.readline(_ANSWER_BYTES_MAX)
    match json.loads(line or b"{}"):
        case {"login": {"job": int(job)}}:
            return job != 0
        case {"refused": {"message": str(message)}}:
            raise OSError(message)
        case _:
            raise OSError("gnode has closed the connection")


def nearest(found: list[RunningAttempt], address: str) -> RunningAttempt:
    """Return the attempt that a login belongs to: the newest, of several.

    A login that comes from the first node of one of them, as mpirun's, belongs to that one.

    Args:
        found: as `attempts_of` returns them; not empty.
        address: where the login comes from.
    """
    same = [one for one in found if address and one.task.env.get("MASTER_ADDR") == address]
    return (same or found)[0]


def adopt(found: RunningAttempt, pid: int) -> None:
    """Make a process part of an attempt; what it starts from now on is, too.

    The group for tracking is the first that it joins: from then on the attempt does not end before
    the process has been killed.

    Raises:
        OverError: the attempt has ended meanwhile.
        LaunchError: it cannot be part of it on this node.
    """
    task = found.task
    if not task.cgroup:
        raise LaunchError(
            "this node has no control groups of version 2: see gsched doctor",
            stage="group",
            subject="node",
        )
    try:
        cgroup.join(task, pid)
    except LaunchError:
        if _is_over(found) or not os.path.exists(task.cgroup):
            raise OverError from None
        raise
    if _is_over(found):
        raise OverError
    try:
        _limit(task, pid)
    except OSError as error:
        raise LaunchError(
            f"cannot set the job's limits: {reason(error)}",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error


def share_tmp(found: RunningAttempt, pid: int) -> bool:
    """Let the login see the attempt's own /tmp, if that has one; return whether it does.

    Its mount namespace must be one of its own, which PAM has made for it (pam_namespace(8)): not
    that of the process that has started ``pid`` and starts other sessions, too.

    Raises:
        LaunchError: the kernel refuses.
    """
    if not found.task.private:
        return True
    try:
        process = proc.read_process(pid)
        if process is None or not private.is_apart(process.parent):
            return False
        private.keep_mounts()  # else the node itself may get the job's /tmp: PAM shares some mounts
        private.mount(found.task)
    except OSError as error:
        raise LaunchError(
            f"cannot mount the job's own /tmp: {error}",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error
    return True


def _is_over(found: RunningAttempt) -> bool:
    return not (_runs(found.started) and spool.exists(found.directory, spool.TASK))


def _limit(task: Task, pid: int) -> None:
    """Give a process the limits of the attempt that are not its control groups'."""
    if cpus := task.cpus:
        os.sched_setaffinity(pid, cpus)
    if task.nice:
        os.setpriority(os.PRIO_PROCESS, pid, task.nice)
    processes = task.processes
    if processes and not task.processes_cgroup:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (processes, processes))
