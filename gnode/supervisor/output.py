"""Opening the job's output files, as the job's owner.

Symbolic links are followed: the files are opened with the owner's rights alone, so a link leads
nowhere that the owner could not write anyway, and people do link their output directories. What
is opened must be a regular file or a character device (``/dev/null``): a pipe without a reader
would hang, and a block device is never meant. Files are opened for appending, so that several
processes and nodes that write to one file do not overwrite each other.
"""

import errno
import fcntl
import os
import stat

from gnode.supervisor.errors import LaunchError, reason
from gnode.task import Task

# O_NONBLOCK: opening a pipe without a reader fails instead of hanging. O_NOCTTY: no terminal.
_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
)  # fmt: skip


def open_output(task: Task) -> tuple[int, int, str, str]:
    """Return the descriptors of stdout and stderr and the paths of the files they lead to.

    Raises:
        LaunchError: a file cannot be opened; the message says which and what to do.
    """
    if task.join == "eo":
        err, err_path = _open(task.stderr_path, task.stderr_name, append=task.append)
        return err, err, err_path, err_path
    out, out_path = _open(task.stdout_path, task.stdout_name, append=task.append)
    if task.join == "oe" or task.stderr_path == out_path:
        return out, out, out_path, out_path
    try:
        err, err_path = _open(task.stderr_path, task.stderr_name, append=task.append)
    except LaunchError:
        os.close(out)
        raise
    return out, err, out_path, err_path


def planned_paths(task: Task) -> tuple[str, str]:
    """Return the paths that the output files will have, as far as that is known before."""
    out = _planned(task.stdout_path, task.stdout_name)
    err = _planned(task.stderr_path, task.stderr_name)
    if task.join == "eo":
        return err, err
    return (out, out) if task.join == "oe" else (out, err)


def _planned(path: str, name: str) -> str:
    return os.path.join(path, name) if path.endswith("/") or os.path.isdir(path) else path


def _open(path: str, name: str, *, append: bool) -> tuple[int, str]:
    if path.endswith("/"):
        path += name
    flags = _FLAGS if append else _FLAGS | os.O_TRUNC
    try:
        try:
            fd = os.open(path, flags, 0o666)
        except IsADirectoryError:
            path = f"{path}/{name}"
            fd = os.open(path, flags, 0o666)
        except FileNotFoundError as error:
            if _missing(path, error):
                raise
            fd = os.open(path, flags, 0o666)  # its directory has just been made, or it is as /proc
    except OSError as error:
        raise LaunchError(
            _explain(path, error),
            stage="output",
            subject="job",
            errno=error.errno or 0,
            missing=_missing(path, error),
        ) from error
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise LaunchError(
            f"cannot write {path}: it is neither a file nor a character device: choose -o",
            stage="output",
            subject="job",
        )
    # Devices would pass O_NONBLOCK on to the program, which does not expect it.
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd, path


def _missing(path: str, error: OSError) -> str:
    """Return the directory without which a file cannot be made; empty: that is not the reason."""
    if error.errno != errno.ENOENT:
        return ""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return directory
    target = os.path.dirname(os.path.realpath(path))  # a link leads there
    return "" if os.path.isdir(target) else target


def _explain(path: str, error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return f"cannot write {path}: it is a pipe that nobody reads: choose -o"
    directory = os.path.dirname(path)
    if error.errno == errno.ENOENT and not os.path.isdir(directory):
        return (
            f"cannot write {path}: there is no directory {directory} on this node: "
            "create the directory or choose -o"
        )
    if error.errno == errno.ENOENT and not _missing(path, error):  # as in /proc
        return f"cannot write {path}: no file can be created in {directory}: choose -o"
    if error.errno == errno.EAGAIN:
        return f"cannot write {path}: another process holds a lease on it: choose -o"
    return f"cannot write {path}: {reason(error)}: create the directory or choose -o"
