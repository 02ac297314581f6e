"""Whose files fill a file system on which a job's own files cannot be written.

Jobs of all users have their directories below ``tmp_dir``, and any user may fill it. A start that
fails for want of space is the owner's fault only if that is the one who has filled it.
"""

import os
from collections.abc import Iterator

from gnode.supervisor import kernel
from gnode.supervisor.spool import Task

LOOK_S = 2.0
_ENTRIES_MAX = 200_000
_BLOCK_BYTES = 512  # of st_blocks
BY_OWNER = "by owner"


def own_directories(task: Task) -> list[str]:
    """Return the directories of the owner's attempts, which only this process can list."""
    root = os.path.dirname(task["user_dir"])
    try:
        with os.scandir(root) as entries:
            return [
                each.path
                for each in entries
                if each.stat(follow_symlinks=False).st_uid == task["uid"]
            ]
    except OSError:
        return []


def look(task: Task, directories: list[str]) -> str:
    """Return ``BY_OWNER`` if at least half of what is in use there are the owner's files.

    The caller is a process of the attempt, so it sees what the owner may see.
    """
    place = os.path.dirname(os.path.dirname(task["user_dir"]))
    try:
        space = os.statvfs(place)
        device = os.stat(place).st_dev
    except OSError:
        return ""
    used_bytes = (space.f_blocks - space.f_bfree) * space.f_frsize
    end_s = kernel.boottime_s() + LOOK_S / 2
    own_bytes = 0
    for count, status in enumerate(_below([place, *directories], device)):
        if status.st_uid == task["uid"]:
            own_bytes += status.st_blocks * _BLOCK_BYTES
        if 2 * own_bytes >= used_bytes:
            return BY_OWNER
        if count >= _ENTRIES_MAX or kernel.boottime_s() > end_s:
            break
    return ""


def _below(places: list[str], device: int) -> Iterator[os.stat_result]:
    """Yield the status of everything below some directories on one file system."""
    while places:
        try:
            entries = list(os.scandir(places.pop()))
        except OSError:  # another user's
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
                is_directory = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            yield status
            if is_directory and status.st_dev == device:
                places.append(entry.path)
