"""The files of one attempt: read the task and commands, write the two records.

A record is written under another name, made durable and renamed: whoever finds it under its own
name finds all of it. Nothing here follows a name that a user could have chosen.
"""

import contextlib
import errno
import fcntl
import json
import os
from typing import Literal, NotRequired, TypedDict, cast

from gnode.supervisor import kernel
from gsched import trust
from gsched.failpoint import failpoint

TASK = "task.json"
SUPERVISOR = "supervisor.json"
STARTING = "supervisor.json.tmp"  # there before the job's process is, so that none goes unseen
COMMANDS = "commands"
LAUNCHED = "launched.json"  # the task of an attempt that was prepared, as it was launched
EXIT = "exit.json"
RESERVED_EXIT = "exit.json.tmp"  # holds the space for the record before the job starts

#: What is reserved for each record of an attempt, so that a full disk keeps none from being
#: written: a block on most file systems, and more than nearly all records need.
RESERVED_BYTES = 4096
#: What a full disk says, or one on which this user has no more room.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_RESERVED_START_BYTES = 3 * RESERVED_BYTES  # two paths of 4096 bytes, until it is written
_SHORT_MESSAGE_CHARACTERS = 200


class File(TypedDict):
    """A file that the job finds in its ``user_dir``."""

    name: str
    mode: int
    content: str


class MemoryCgroup(TypedDict):
    """The control group that limits the job's memory: made, joined and removed for it."""

    version: Literal[1, 2]
    path: str
    limit_bytes: int


class Task(TypedDict):
    """All that gnode says about one attempt's part on this node: the content of ``task.json``.

    Attributes:
        switch_user: run as ``uid``; otherwise ``uid`` has to be this process's own.
        stdout_path, stderr_path: absolute; a directory stands for a file in it, called
            ``stdout_name`` or ``stderr_name``.
        append: add to the output files instead of emptying them first.
        user_dir: a directory of the owner's, made here, that holds ``files``.
        cgroup: a version 2 control group to make and join, for tracking and killing.
        failure_report: where a torchrun agent writes which rank failed first.
        leftover_grace_s: what leftovers get between TERM and KILL, at most ``grace_s``.
        launch_timeout_s: how long the steps before the program may take (a dead file server).
        no_new_privileges: programs gain no rights by being setuid.
        open_files: soft limit on open files.
        processes: limit on processes and threads, 0: none: of the attempt by its group, of either
            version, else of its user.
        lease_s: how long it may run while the head is not reached, from ``lease_from_s`` on
            (CLOCK_BOOTTIME) or the last renewal; 0: for ever.
        lease_grace_s: from TERM to KILL when that is over.
        gate: it was started before its attempt was launched, and waits for that; see `gate`.
        yields: until then it has a lower priority.
    """

    job: int
    attempt: int
    user: str
    uid: int
    gid: int
    switch_user: bool
    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdout_path: str
    stderr_path: str
    stdout_name: str
    stderr_name: str
    join: Literal["n", "oe", "eo"]
    append: bool
    umask: int
    files: list[File]
    user_dir: str
    cgroup: str | None
    memory_cgroup: MemoryCgroup | None
    walltime_s: float | None
    grace_s: float
    failure_report: str | None
    nice: int
    leftover_grace_s: NotRequired[float]
    no_new_privileges: NotRequired[bool]
    open_files: NotRequired[int]
    processes: NotRequired[int]
    processes_cgroup: NotRequired[str | None]
    launch_timeout_s: NotRequired[float]
    lease_s: NotRequired[float]
    lease_from_s: NotRequired[float]
    lease_grace_s: NotRequired[float]
    gate: NotRequired[bool]
    yields: NotRequired[bool]


class Started(TypedDict):
    """Who runs an attempt: the content of ``supervisor.json``."""

    pid: int
    start_ticks: int
    job_pid: int
    job_start_ticks: int
    started_s: float
    started_boottime_s: float
    stdout_path: str
    stderr_path: str


def log(message: str) -> None:
    """Write a line to the log that gnode gave the launcher."""
    with contextlib.suppress(OSError):  # gnode may be gone, and its pipe with it
        os.write(2, f"gnode supervisor {os.getpid()}: {message}\n".encode("utf-8", "replace"))


def read_file(path: str) -> bytes | None:
    """Return the whole content of a file, None if there is no such file."""
    try:
        fd = trust.open_file(path)
    except FileNotFoundError:
        return None
    try:
        return read_all(fd)
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    """Return what is left to read of an open file."""
    size = os.fstat(fd).st_size
    content = os.read(fd, size + 1)
    while chunk := os.read(fd, 1 << 16) if len(content) > size else b"":
        content += chunk
    return content


def claim(directory: str) -> tuple[Task, int] | None:
    """Make this process the one supervisor of an attempt.

    The lock is what makes asking twice for one launch harmless, whoever asks: it goes with the
    process, and the records tell whether another one had it before.

    Returns:
        The task and a descriptor that holds the lock while it is open, or None if the attempt
        has, or had, a supervisor.

    Raises:
        UntrustedError: somebody else could have written the task.
    """
    fd = trust.open_file(f"{directory}/{TASK}")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if was_begun(directory) or exists(directory, EXIT):
        os.close(fd)
        return None
    return cast("Task", json.loads(read_all(fd))), fd


def is_claimed(directory: str) -> bool:
    """Return whether a living supervisor holds the attempt."""
    fd = os.open(f"{directory}/{TASK}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_same_file(path: str, fd: int) -> bool:
    """Return whether a path still leads to an open file; a disk that fails counts as yes.

    It does not once the spool was wiped, or another one was put in its place.
    """
    try:
        there = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return os.path.samestat(there, os.fstat(fd))


def exists(directory: str, name: str) -> bool:
    """Return whether a record is there."""
    try:
        os.stat(f"{directory}/{name}", follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def was_begun(directory: str) -> bool:
    """Return whether a supervisor was about to start the job, or did."""
    return exists(directory, STARTING) or exists(directory, SUPERVISOR)


def read_task(directory: str) -> Task | None:
    """Return the task of an attempt that others may run, None if there is none."""
    content = read_file(f"{directory}/{TASK}")
    return None if content is None else cast("Task", json.loads(content))


def read_launched(directory: str) -> Task | None:
    """Return the task of a prepared attempt as it was launched, None if it was not."""
    content = read_file(f"{directory}/{LAUNCHED}")
    return None if content is None else cast("Task", json.loads(content))


def read_started(directory: str) -> Started | None:
    """Return who runs an attempt, None if nobody has started it."""
    content = read_file(f"{directory}/{SUPERVISOR}")
    return None if content is None else cast("Started", json.loads(content))


def reserve(directory: str) -> None:
    """Reserve the space for an attempt's exit record and orders, before anything else is kept.

    Raises:
        OSError: there is none: the attempt must not be accepted.
    """
    for name in (RESERVED_EXIT, COMMANDS):
        fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            kernel.reserve(fd, RESERVED_BYTES)
        finally:
            os.close(fd)


def announce_start(directory: str) -> int:
    """Leave the mark that the job's process is about to be made; `write_started` completes it.

    Without it a supervisor that is killed right after the fork would leave a process that no file
    tells of, and the attempt would look as if it had never been started.

    Raises:
        OSError: there is no space for it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(f"{directory}/{STARTING}", flags, 0o600)
    try:
        kernel.reserve(fd, _RESERVED_START_BYTES)
    except OSError:
        os.close(fd)
        raise
    return fd


def announce_run(mark: int) -> None:
    """Add to the mark that the program may run from now on, before its process is recorded."""
    os.write(mark, b" ")  # the record is JSON and may begin with a space


def may_have_run(directory: str) -> bool:
    """Return whether the program of an attempt may have been started, recorded or not."""
    try:
        return os.stat(f"{directory}/{STARTING}").st_size > 0
    except FileNotFoundError:
        return exists(directory, SUPERVISOR)


def write_started(directory: str, fd: int, started: Started) -> None:
    """Publish who runs the attempt; not flushed, since it says nothing after a power loss."""
    _write_all(fd, json.dumps(started).encode())
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))  # gives back what was reserved for more
    os.rename(f"{directory}/{STARTING}", f"{directory}/{SUPERVISOR}")


def write_exit(directory: str, record: dict[str, object]) -> None:
    """Write the attempt's exit record so that it outlives a power loss.

    It goes into the space that was reserved for it; where that is too small and the disk is full,
    only the message is cut.
    """
    failpoint("supervisor.exit.before_record")
    try:
        _fill_exit(directory, json.dumps(record).encode())
    except OSError as error:
        message = record.get("message")
        if error.errno not in NO_SPACE or not isinstance(message, str):
            raise
        short = record | {"message": message[:_SHORT_MESSAGE_CHARACTERS]}
        _fill_exit(directory, json.dumps(short).encode())
    os.rename(f"{directory}/{RESERVED_EXIT}", f"{directory}/{EXIT}")
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    failpoint("supervisor.exit.after_record")


def _fill_exit(directory: str, content: bytes) -> None:
    # Without O_TRUNC, which would give the reserved space back.
    fd = os.open(f"{directory}/{RESERVED_EXIT}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        half = len(content) // 2  # in two halves, so that a test can kill us between them
        _write_all(fd, content[:half])
        failpoint("supervisor.exit.half_record")
        _write_all(fd, content[half:])
        os.ftruncate(fd, len(content))
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


class Commands:
    """gnode's orders to one attempt, read as they are appended."""

    __slots__ = ("_offset", "_path")

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{COMMANDS}"
        self._offset = 0

    def read(self) -> list[object]:
        """Return the complete lines that were added since the last call, decoded.

        Lines that are no JSON (a disk that was full) are left out with a word in the log.
        """
        try:
            fd = trust.open_file(self._path)
        except FileNotFoundError:
            return []
        try:
            os.lseek(fd, self._offset, os.SEEK_SET)
            content = read_all(fd)
        finally:
            os.close(fd)
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        orders: list[object] = []
        for line in complete.splitlines():
            try:
                orders.append(json.loads(line))
            except ValueError:
                log(f"{self._path}: not an order: {line[:200]!r}")
        return orders
