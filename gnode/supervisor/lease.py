"""The lease of one attempt: until when it may run although its node does not reach the head.

gnode writes each renewal that came in time into the attempt's directory, in place, so that a full
disk does not keep it from that. It is read when the lease would be over by the one that was read
last. A renewal that cannot be read counts as none.
"""

import os
import zlib

from gnode.supervisor import journal, kernel, spool
from gnode.supervisor.ending import Ending
from gnode.task import Task

LEASE = "lease"
_TRIES = 3  # to read a renewal that is being written this very moment


def until_s(task: Task, renewed_s: float | None = None) -> float | None:
    """Return when an attempt's lease is over, CLOCK_BOOTTIME; None: it has none.

    Args:
        renewed_s: its last renewal; None: that with which it was accepted.
    """
    lease_s = task.lease_s
    if not lease_s:
        return None
    return (task.lease_from_s if renewed_s is None else renewed_s) + lease_s


def look(directory: str, task: Task, ending: Ending, now_s: float) -> None:
    """Let an attempt end if its lease is over, and has not been renewed in time."""
    if ending.lease_until_s is None or now_s < ending.lease_until_s:
        return
    renewed_s = read(directory)
    if renewed_s is not None:
        ending.renew(renewed_s + task.lease_s)
    ending.check_lease(now_s)


def prepare(directory: str, renewed_s: float) -> None:
    """Make the file that renewals are written into, and reserve its space.

    Raises:
        OSError: there is no space: the attempt must not be accepted.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(f"{directory}/{LEASE}", flags, 0o600)
    try:
        kernel.reserve(fd, journal.RESERVED_BYTES)
        os.write(fd, _record(renewed_s))
    finally:
        os.close(fd)


def write(directory: str, renewed_s: float) -> None:
    """Write a renewal over the one before it.

    It is not flushed: after a power loss another boot id proves that the attempt is dead.

    Raises:
        OSError: it cannot be written; the one before it holds.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(f"{directory}/{LEASE}", flags)
    try:
        os.pwrite(fd, _record(renewed_s), 0)
    finally:
        os.close(fd)


def read(directory: str) -> float | None:
    """Return the last renewal, CLOCK_BOOTTIME; None: there is none that can be read."""
    for _ in range(_TRIES):
        try:
            content = spool.read_file(f"{directory}/{LEASE}")
        except OSError:  # also: somebody else could have written it
            return None
        if content is None:
            return None
        renewed_s = _renewal(content)
        if renewed_s is not None:
            return renewed_s
    return None


def _record(renewed_s: float) -> bytes:
    text = b"%020.6f" % renewed_s
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _renewal(content: bytes) -> float | None:
    text, _, check = content.strip().partition(b" ")
    try:
        return float(text) if int(check, 16) == zlib.crc32(text) else None
    except ValueError:
        return None
