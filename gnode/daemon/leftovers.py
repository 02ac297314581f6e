"""Kill everything that an attempt has left, when no supervisor can."""

import asyncio
import logging
import os
import signal

from gnode.core.effects import KillLeftover
from gnode.hw import cgroups
from gnode.supervisor import proc

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 2.0


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
    mark = os.fsencode(f"GSCHED_JOB_DIR={order.user_dir}") + b"\0"
    if order.user_dir:
        roots.update(pid for pid in processes if proc.has_environment_text(pid, mark))
    found = proc.descendants(roots, processes) - {os.getpid()}
    proc.send(found, signal.SIGKILL)
    return bool(found)


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
