"""Kill everything that an attempt has left, when no supervisor can."""

import asyncio
import logging
import os
import select
import signal
from collections.abc import Collection
from pathlib import Path

from gnode.core.effects import KillLeftover
from gnode.hw import cgroups
from gnode.supervisor import proc
from gsched.clock import SystemClock

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 2.0
FOREIGN_S = 5.0  # what does not die by then is the kernel's
JOB_DIR = b"GSCHED_JOB_DIR="  # as jobs have it in their environment
LAUNCHER_WORD = b"gnode.supervisor.launcher"


async def kill_leftover(order: KillLeftover) -> None:
    """Kill until nothing of the attempt is left, however long the kernel takes."""
    pause_s = FIRST_PAUSE_S
    while await asyncio.to_thread(kill_once, order):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if pause_s == LONGEST_PAUSE_S:
            log.warning("attempt %s: processes of it do not die", order.key.name)
    if order.cgroup:
        cgroups.remove(order.cgroup)


def kill_once(order: KillLeftover) -> bool:
    """Kill what is there of an attempt; return whether anything was."""
    processes = proc.snapshot()
    own = processes.get(order.supervisor_pid)
    roots: set[int] = set()
    if own is not None and own.start_ticks == order.supervisor_start_ticks:
        roots.add(own.pid)
    if order.cgroup and cgroups.is_populated(order.cgroup):
        roots.update(cgroups.members(order.cgroup))
        cgroups.kill(order.cgroup)
    # Without a control group, what has lost its parent is known by its environment alone.
    mark = JOB_DIR + os.fsencode(order.user_dir) + b"\0"
    if order.user_dir:
        roots.update(pid for pid in processes if proc.has_environment_text(pid, mark))
    found = proc.descendants(roots, processes) - {os.getpid()}
    proc.send(found, signal.SIGKILL)
    return bool(found)


def kill_foreign(state_dir: str, user_roots: Collection[str], keep: Collection[str]) -> list[int]:
    """Kill what runs for a spool that once was where ours is, and was wiped or moved away.

    Such launchers and supervisors hold a file that is not at its place any more. Jobs are known
    by descent from them, and by the directory that their environment names. Processes of another
    PID namespace are left alone: a container may have its own node with the same paths.

    Args:
        state_dir: our state directory.
        user_roots: directories in which jobs get theirs.
        keep: names of the attempts that are in the spool.

    Returns:
        The processes that were killed.
    """
    job_roots = {os.fsencode(root) for root in user_roots}
    killed: set[int] = set()
    clock = SystemClock()
    until_s = clock.monotonic_s() + FOREIGN_S
    while True:
        roots = {
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if (_is_foreign_daemon(pid, state_dir) or _is_foreign_job(pid, job_roots, keep))
            and _is_in_our_namespace(pid)
        }
        if not roots:
            break
        processes = proc.snapshot()
        found = proc.descendants(roots, processes) - {os.getpid()}
        if not found:
            break
        killed |= found
        proc.send(found, signal.SIGKILL)
        if clock.monotonic_s() >= until_s:
            break
        _await_end(min(found), FIRST_PAUSE_S)
    return sorted(killed)


def _await_end(pid: int, timeout_s: float) -> None:
    """Return when a process has ended, or after the time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        ended.poll(timeout_s * 1000)
    finally:
        os.close(pidfd)


def _is_foreign_daemon(pid: int, state_dir: str) -> bool:
    """Return whether a process is a launcher or supervisor of another spool at our place."""
    line = proc.command_line(pid)
    if LAUNCHER_WORD not in line or os.fsencode(state_dir) not in line.split(b"\0"):
        return False
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(_is_misplaced(entry, state_dir) for entry in entries)
    except OSError:
        return False  # gone, or another user's


def _is_misplaced(entry: Path, state_dir: str) -> bool:
    """Return whether an open file is a spool's lock or task, but not one of the spool there is.

    The files are compared, not their paths: the link shows the path without symbolic links.
    """
    directory, name = os.path.split(os.readlink(entry).removesuffix(" (deleted)"))
    if name == "launcher.lock":
        place = os.path.join(state_dir, name)
    elif name == "task.json":
        place = os.path.join(state_dir, "attempts", os.path.basename(directory), name)
    else:
        return False
    held = entry.stat()
    try:
        return not os.path.samestat(held, os.stat(place))
    except (FileNotFoundError, NotADirectoryError):
        return True


def _is_foreign_job(pid: int, job_roots: Collection[bytes], keep: Collection[str]) -> bool:
    root, name = os.path.split(proc.environment_text_after(pid, JOB_DIR))
    return root in job_roots and os.fsdecode(name) not in keep


def _is_in_our_namespace(pid: int) -> bool:
    """Return whether a process has our PID namespace; False where that cannot be read."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/ns/pid"), os.stat("/proc/self/ns/pid"))
    except OSError:  # gone, or another user's
        return False


def kill_strays(root: str, keep: set[str]) -> list[str]:
    """Kill and remove the control groups below ``root`` that belong to no known attempt.

    Returns:
        Names of the groups in which something was still alive.
    """
    populated: list[str] = []
    for name in cgroups.children(root):
        if name in keep:
            continue
        path = os.path.join(root, name)
        if cgroups.is_populated(path):
            populated.append(name)
            cgroups.kill(path)
        cgroups.remove(path)
    return populated
