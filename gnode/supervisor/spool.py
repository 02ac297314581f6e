"""The files of one attempt: its task and its journal.

Nothing here follows a name that a user could have chosen.
"""

import contextlib
import errno
import fcntl
import json
import os

from gnode.supervisor import journal
from gnode.supervisor.journal import Journal, open_journal
from gnode.task import SupervisorInfo, Task, decode
from gsched import trust
from gsched.failpoint import failpoint

TASK = "task.json"
LAUNCHED = "launched.json"  # the task of an attempt that was prepared, as it was launched

#: What a full disk says, or one on which this user has no more room.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORT_MESSAGE_CHARACTERS = 200


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


class AttemptClaim:
    """What a supervisor holds of its attempt.

    Attributes:
        task: what to run.
        lock_fd: a descriptor that holds the lock while it is open.
        journal: for its start and its end.
        commands: gnode's orders.
    """

    __slots__ = ("commands", "journal", "lock_fd", "task")

    def __init__(
        self, task: Task, lock_fd: int, journal: Journal, commands: "JournalCommands"
    ) -> None:
        self.task, self.lock_fd = task, lock_fd
        self.journal, self.commands = journal, commands

    def close(self) -> None:
        """Give the attempt back."""
        self.journal.close()
        os.close(self.lock_fd)


def open_task(directory: str) -> tuple[int, int]:
    """Return descriptors of an attempt's directory (``O_PATH``) and of its task.

    Raises:
        UntrustedError: somebody else could have written the task.
        OSError: it cannot be opened.
    """
    place = trust.open_directory(directory)
    try:
        return place, trust.open_file_in(place, TASK, f"{directory}/{TASK}")
    except BaseException:
        os.close(place)
        raise


def claim(directory: str, opened: tuple[int, int] | None = None) -> AttemptClaim | None:
    """Make this process the one supervisor of an attempt.

    The lock is what makes asking twice for one launch harmless, whoever asks: it goes with the
    process, and the records tell whether another one had it before.

    Args:
        directory: of the attempt.
        opened: what `open_task` has returned for it; closed here, or by the claim.

    Returns:
        None if the attempt has, or had, a supervisor.

    Raises:
        UntrustedError: somebody else could have written the task.
        OSError: the task or the journal cannot be read.
    """
    place, fd = opened or open_task(directory)
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


def _claim(directory: str, place: int, fd: int) -> AttemptClaim | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    journal = open_journal(directory, place=place)
    story = journal.story()
    if story.begun or story.ended is not None:
        journal.close()
        return None
    task = decode(Task, read_all(fd))
    return AttemptClaim(task, fd, journal, JournalCommands(directory, journal))


def claimed(directory: str, opened: tuple[int, int], journal_fd: int) -> AttemptClaim:
    """Return what this process holds of an attempt that the library in C has claimed.

    Args:
        directory: of the attempt.
        opened: see `claim`; the task is locked.
        journal_fd: of its journal.
    """
    place, fd = opened
    os.close(place)
    journal = Journal(directory, journal_fd)
    return AttemptClaim(
        decode(Task, read_all(fd)), fd, journal, JournalCommands(directory, journal)
    )


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
    return None if content is None else decode(Task, content)


def read_launched(directory: str) -> Task | None:
    """Return the task of a prepared attempt as it was launched, None if it was not."""
    content = read_file(f"{directory}/{LAUNCHED}")
    return None if content is None else decode(Task, content)


def read_started(directory: str) -> SupervisorInfo | None:
    """Return who runs an attempt, None if nobody has started it."""
    content = journal.read_story(directory).started
    return None if content is None else decode(SupervisorInfo, content)


def write_exit(journal: Journal, record: dict[str, object], *, flush: bool = True) -> bytes:
    """Write the attempt's exit record and return it as written.

    It goes into the space that was reserved for it; where that is too small and the disk is full,
    only the message is cut.

    Args:
        journal: of the attempt.
        record: how it ended.
        flush: the record outlives a power loss when this returns; otherwise whoever learns of it
            sees to that before it is passed on to the head.

    Raises:
        OSError: it cannot be written: to be written again.
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
    if flush:
        journal.flush()
    return written


def flush_exit(directory: str) -> None:
    """Have the exit record of an attempt outlive a power loss, if its journal is still there.

    Raises:
        OSError: it cannot be flushed.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        opened = Journal(directory, os.open(f"{directory}/{journal.NAME}", flags))
    except (FileNotFoundError, NotADirectoryError):
        return  # nobody needs it any more
    try:
        opened.flush()
    finally:
        opened.close()


def keep_exit(directory: str) -> None:
    """Flush the exit record of an attempt where nobody else may; what cannot be is in the log."""
    try:
        if directory:
            flush_exit(directory)
    except OSError as error:
        log(f"{directory}: the exit record cannot be flushed: {error}")


class JournalCommands:
    """gnode's orders to one attempt, read from its journal as they are appended."""

    __slots__ = ("_directory", "_journal")

    def __init__(self, directory: str, journal: Journal) -> None:
        self._directory = directory
        self._journal = journal

    def read(self, before: int | None = None) -> list[object]:
        """Return the complete orders that were added since the last call, decoded.

        Args:
            before: of those, the orders before this byte of the journal.

        Lines that are no JSON (a disk that was full) are left out with a word in the log.
        """
        orders: list[object] = []
        for line in self._journal.orders(before):
            try:
                orders.append(json.loads(line))
            except ValueError:
                log(f"{self._directory}: not an order: {line[:200]!r}")
        return orders
