"""The files of one attempt: its task and its journal.

Nothing here follows a name that a user could have chosen.
"""

import contextlib
import errno
import fcntl
import json
import os
from typing import Literal, NotRequired, TypedDict, cast

from gnode.supervisor import journal
from gnode.supervisor.journal import Journal, open_journal
from gsched import trust
from gsched.failpoint import failpoint

TASK = "task.json"
LAUNCHED = "launched.json"  # the task of an attempt that was prepared, as it was launched

#: What a full disk says, or one on which this user has no more room.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
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


class CpusetCgroup(TypedDict):
    """The control group that limits the job's CPUs; of version 2, the one for tracking."""

    version: Literal[1, 2]
    path: str


class GpuFence(TypedDict):
    """The control group that keeps the job from devices, ``MAJOR:FIRST-LAST``: see `fence`."""

    version: Literal[1, 2]
    path: str
    denied: list[str]
    allowed: list[str]


class Private(TypedDict):
    """What the attempt's own /tmp and /dev/shm are: see `private`.

    Attributes:
        visible: directories of the node that are there as before.
        shm: it has a /dev/shm of its own, of at most ``shm_bytes``; 0: half of the memory.
    """

    visible: list[str]
    shm: bool
    shm_bytes: int


class Removal(TypedDict):
    """The command that removes what a container has left, and its environment."""

    argv: list[str]
    env: dict[str, str]


class EarlySignal(TypedDict):
    """A signal some seconds before the walltime ends: see `gsched.model.job.EarlySignal`."""

    signal: int
    before_s: NotRequired[float]
    script_only: NotRequired[bool]


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
        cpus: that the job may use, empty: all; ``cpuset``: the control group that enforces it.
        fence: what keeps it from the GPUs of others; None: nothing does.
        early_signal: sent once, or again if its supervisor was lost meanwhile.
        gate: it was started before its attempt was launched, and waits for that; see `gate`.
        yields: until then it has a lower priority.
        detach_timeout_s: it runs on a terminal, and is hung up when nobody was attached for so
            long; 0: never; None: it has no terminal.
        stage_in, stage_out: commands that copy files; all of either at most ``stage_timeout_s``
            long together.
        removal: of the attempt's container, once nothing of it runs.
        directory_wait_s: for how long a working or output directory that does not exist is looked
            for, each.
        private: its own /tmp and /dev/shm; None: it has those of the node.
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
    early_signal: NotRequired[EarlySignal | None]
    gate: NotRequired[bool]
    yields: NotRequired[bool]
    detach_timeout_s: NotRequired[float | None]
    cpus: NotRequired[list[int]]
    cpuset: NotRequired[CpusetCgroup | None]
    fence: NotRequired[GpuFence | None]
    stage_in: NotRequired[list[list[str]]]
    stage_out: NotRequired[list[list[str]]]
    stage_timeout_s: NotRequired[float]
    removal: NotRequired[Removal | None]
    directory_wait_s: NotRequired[float]
    private: NotRequired[Private | None]


class Started(TypedDict):
    """Who runs an attempt: from its journal."""

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


class Claim:
    """What a supervisor holds of its attempt.

    Attributes:
        task: what to run.
        lock_fd: a descriptor that holds the lock while it is open.
        journal: for its start and its end.
        commands: gnode's orders.
    """

    __slots__ = ("commands", "journal", "lock_fd", "task")

    def __init__(self, task: Task, lock_fd: int, journal: Journal, commands: "Commands") -> None:
        self.task, self.lock_fd = task, lock_fd
        self.journal, self.commands = journal, commands

    def close(self) -> None:
        """Give the attempt back."""
        self.journal.close()
        os.close(self.lock_fd)


def claim(directory: str) -> Claim | None:
    """Make this process the one supervisor of an attempt.

    The lock is what makes asking twice for one launch harmless, whoever asks: it goes with the
    process, and the records tell whether another one had it before.

    Returns:
        None if the attempt has, or had, a supervisor.

    Raises:
        UntrustedError: somebody else could have written the task.
        OSError: the task or the journal cannot be read.
    """
    place = trust.open_directory(directory)
    try:
        fd = trust.open_file_in(place, TASK, f"{directory}/{TASK}")
        try:
            claimed = _claim(directory, place, fd)
        except BaseException:
            os.close(fd)
            raise
    finally:
        os.close(place)
    if claimed is None:
        os.close(fd)
    return claimed


def _claim(directory: str, place: int, fd: int) -> Claim | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    journal = open_journal(directory, place=place)
    story = journal.story()
    if story.begun or story.ended is not None:
        journal.close()
        return None
    return Claim(cast("Task", json.loads(read_all(fd))), fd, journal, Commands(directory, journal))


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
    """Return whether a supervisor was about to start the job, or did; yes if that is not known."""
    try:
        return journal.read_story(directory).begun
    except OSError:
        return True


def has_ended(directory: str) -> bool:
    """Return whether the exit record of an attempt is there, and can be read."""
    try:
        return journal.read_story(directory).ended is not None
    except OSError as error:
        log(f"the exit record cannot be read: {error}")
        return False


def may_have_run(directory: str) -> bool:
    """Return whether the program of an attempt may have been started, recorded or not."""
    try:
        return journal.read_story(directory).may_have_run
    except OSError:
        return True


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
    content = journal.read_story(directory).started
    return None if content is None else cast("Started", json.loads(content))


def write_exit(journal: Journal, record: dict[str, object]) -> bytes:
    """Write the attempt's exit record so that it outlives a power loss; return it as written.

    It goes into the space that was reserved for it; where that is too small and the disk is full,
    only the message is cut.
    """
    failpoint("supervisor.exit.before_record")
    try:
        written = journal.write_ended(record)
    except OSError as error:
        message = record.get("message")
        if error.errno not in NO_SPACE or not isinstance(message, str):
            raise
        written = journal.write_ended(record | {"message": message[:_SHORT_MESSAGE_CHARACTERS]})
    failpoint("supervisor.exit.after_record")
    return written


class Commands:
    """gnode's orders to one attempt, read from its journal as they are appended."""

    __slots__ = ("_directory", "_journal")

    def __init__(self, directory: str, journal: Journal) -> None:
        self._directory = directory
        self._journal = journal

    def read(self) -> list[object]:
        """Return the complete orders that were added since the last call, decoded.

        Lines that are no JSON (a disk that was full) are left out with a word in the log.
        """
        orders: list[object] = []
        for line in self._journal.orders():
            try:
                orders.append(json.loads(line))
            except ValueError:
                log(f"{self._directory}: not an order: {line[:200]!r}")
        return orders
