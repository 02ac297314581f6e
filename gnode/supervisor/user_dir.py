"""The directory of an attempt that its owner can write in: made before it starts, then removed."""

import contextlib
import os

from gnode.supervisor.errors import LaunchError
from gnode.task import Task
from gsched import trust

_OLD = ".removed-"  # before the name of what gnode removes when it starts


class UserDir:
    """One attempt's directory; the job's process fills it as its owner."""

    __slots__ = ("_fd", "_task")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._fd: int | None = None

    def make(self) -> None:
        """Make the directory, if there will be anything in it.

        Raises:
            LaunchError: it cannot be made.
        """
        task = self._task
        if not (task.files or task.failure_report or task.private):
            return
        try:
            self._fd = make_owned(task, task.user_dir)
        except OSError as error:
            raise LaunchError(
                f"cannot make the job's directory: {error}",
                stage="spool",
                subject="node",
                errno=error.errno or 0,
            ) from error

    def adopt(self, fd: int | None) -> None:
        """Take the directory over, which was made already."""
        self._fd = fd

    def remove(self, task: Task) -> None:
        """Remove the directory if it holds nothing but what was written for the job.

        gnode removes any other, which may be large. The directory is reached by the descriptor
        with which it was made: whatever is mounted there by now is left alone.

        Args:
            task: as it was launched.
        """
        if self._fd is None:
            return
        names = [file.name for file in task.files]
        if task.failure_report:
            names.append(task.failure_report)
        try:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.basename(name), dir_fd=self._fd)
            os.rmdir(task.user_dir)
        except OSError:  # there is more in it, or something else in the way
            return
        finally:
            os.close(self._fd)
            self._fd = None


def make_owned(task: Task, path: str) -> int:
    """Make a new directory of the owner's in one that only root and we can change.

    What is there under its name is another attempt's: it gets another name, by which gnode
    removes it.

    Returns:
        A descriptor of it.

    Raises:
        OSError: somebody else can change the directory around it, or it cannot be made.
    """
    place, name = os.path.split(path)
    around = trust.open_directory(place)
    try:
        try:
            os.mkdir(name, 0o700, dir_fd=around)
        except FileExistsError:
            old = f"{_OLD}{os.getpid()}-{name}"[:255]
            os.rename(name, old, src_dir_fd=around, dst_dir_fd=around)
            os.mkdir(name, 0o700, dir_fd=around)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(name, flags, dir_fd=around)
        if task.switch_user:
            os.fchown(made, task.uid, task.gid)
        return made
    finally:
        os.close(around)
