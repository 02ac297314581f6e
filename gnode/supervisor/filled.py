"""Whose files fill a file system on which a job's own files cannot be written.

Jobs of all users have their directories below ``tmp_dir``, and any user may fill it. A start that
fails for want of space is the owner's fault only if that is the one who has filled it. This holds
for the job's code snapshot, too, which a process of the job unpacks (`gnode.steps.code`).
"""

import errno
import os
from collections.abc import Iterator

from gnode.supervisor import kernel, spool
from gnode.supervisor.errors import LaunchError
from gnode.task import Task

LOOK_S = 2.0
_ENTRIES_MAX = 200_000
_BLOCK_BYTES = 512  # of st_blocks
BY_OWNER = "by owner"
_UNPACKER_FAILED = 126  # the unpacker's exit code
_LEAST_FREE_BYTES = 1 << 16  # with less, writing the next piece of an archive or file has failed


def check_unpacked(task: Task, status: int | None) -> None:
    """Find that a job's program was not started, as there was no space for its code snapshot.

    The unpacker removes the archive last. The job's owner can pretend all of this but for the full
    file system.

    Args:
        task: of the attempt.
        status: with which the job's process ended.

    Raises:
        LaunchError: so it is.
    """
    directory = task.env.get("GSCHED_SNAPSHOT_DIR", "")
    if not directory or status is None or not os.WIFEXITED(status):
        return
    if os.WEXITSTATUS(status) != _UNPACKER_FAILED:
        return
    if os.path.isdir(directory) and not os.path.lexists(f"{directory}.tar.gz"):
        return
    try:
        space = os.statvfs(task.user_dir)
    except OSError:
        return
    has_files = space.f_favail > 0 or space.f_files == 0  # some file systems do not count them
    if space.f_bavail * space.f_frsize >= _LEAST_FREE_BYTES and has_files:
        return
    raise LaunchError(
        f"cannot unpack the job's code snapshot in {task.user_dir}: {os.strerror(errno.ENOSPC)}",
        stage="files",
        subject="job",
        errno=errno.ENOSPC,
    )


def look_at_output(task: Task) -> str:
    """Return in words that a job's output cannot be written any more; empty: it can.

    The caller is a process of the attempt, so that quotas count.
    """
    away = task.away
    assert away is not None, "only such a job has an outbox"
    try:
        fd = os.open(away.outbox, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _LEAST_FREE_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in spool.NO_SPACE:
            return ""
        full, node = error.errno == errno.ENOSPC, task.env.get("GSCHED_NODE", "the node")
    else:
        return ""
    where = f"{os.path.dirname(away.outbox)} on {node}, where its output waits to return"
    if not full:
        return f"the quota of its user in {where}, is used up: remove files there"
    space = os.statvfs(away.outbox)
    size_mib = space.f_blocks * space.f_frsize >> 20
    return (
        f"the file system of {where}, is full ({size_mib} MiB): write less output, or ask the "
        "administrator for more room in tmp_dir"
    )


def own_directories(task: Task) -> list[str]:
    """Return the directories of the owner's attempts, which only this process can list."""
    root = os.path.dirname(task.user_dir)
    try:
        with os.scandir(root) as entries:
            return [
                each.path for each in entries if each.stat(follow_symlinks=False).st_uid == task.uid
            ]
    except OSError:
        return []


def look(task: Task, directories: list[str]) -> str:
    """Return ``BY_OWNER`` if at least half of what else is in use there are the owner's files.

    Those of the attempt itself do not count: its code may have space on another node. The caller is
    a process of the attempt, so it sees what the owner may see.
    """
    place = os.path.dirname(os.path.dirname(task.user_dir))
    try:
        space = os.statvfs(place)
        device = os.stat(place).st_dev
    except OSError:
        return ""
    used_bytes = (space.f_blocks - space.f_bfree) * space.f_frsize
    end_s = kernel.boottime_s() + LOOK_S / 2
    own_bytes = 0
    attempt = task.user_dir
    for status in _below([attempt], device, ""):
        used_bytes -= status.st_blocks * _BLOCK_BYTES
        if kernel.boottime_s() > end_s:
            return ""
    others = [each for each in directories if each != attempt]
    for count, status in enumerate(_below([place, *others], device, attempt)):
        if status.st_uid == task.uid:
            own_bytes += status.st_blocks * _BLOCK_BYTES
        if own_bytes and 2 * own_bytes >= used_bytes:
            return BY_OWNER
        if count >= _ENTRIES_MAX or kernel.boottime_s() > end_s:
            break
    return ""


def _below(places: list[str], device: int, without: str) -> Iterator[os.stat_result]:
    """Yield the status of everything below some directories on one file system, but for one."""
    while places:
        try:
            entries = list(os.scandir(places.pop()))
        except OSError:  # another user's
            continue
        for entry in entries:
            if entry.path == without:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                is_directory = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            yield status
            if is_directory and status.st_dev == device:
                places.append(entry.path)
