"""A /tmp and a /dev/shm of an attempt's own: a mount namespace for all that runs for it.

The supervisor makes the namespace before anything of the job runs, and stays outside. Each process
that becomes a member of the attempt enters it while it is still root's. /tmp is a directory in the
attempt's own one, so it is removed with that; /dev/shm is a new file system in memory, whose pages
are charged to the memory group of who writes them, and which goes with the namespace. What a job
needs of the node's /tmp, as gnode's socket and the directory of the attempt, is mounted in the new
one under its name. A login (`login`) gets the same /tmp in a namespace that PAM has made for it.
"""

import contextlib
import ctypes
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from typing import Protocol

from gnode.supervisor.errors import LaunchError, Stage, reason
from gnode.task import PrivateTmp, Task
from gsched import trust

TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - they are what this is about
NAME = ".tmp"  # of the new /tmp in the attempt's directory
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 1 << 12, 1 << 14, 1 << 19
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_OWN_NAMESPACE = "/proc/thread-self/ns/mnt"
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceHolder(Protocol):
    """Where the namespace of the present attempt is kept: see `child.Surroundings`."""

    namespace: str


def problem() -> str:
    """Return why namespaces cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "gnode does not run as root"
    try:
        with _new_namespace() as made:
            _mount("tmpfs", SHM, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
        os.close(made)
    except OSError as error:
        return f"this machine does not let gnode mount file systems: {reason(error)}"
    return ""


def make(task: Task, holder: NamespaceHolder) -> None:
    """Make the namespace of an attempt, whose directory exists; nothing if it has none.

    Raises:
        LaunchError: the kernel refuses.
    """
    private = task.private
    if private is None:
        return
    try:
        _prepare(task, private)
        with _new_namespace() as made:
            mount(task)
        holder.namespace = f"/proc/{os.getpid()}/fd/{made}"
    except OSError as error:
        raise LaunchError(
            f"cannot make the job's own /tmp: {error}: see private_tmp in gsched.toml(5)",
            stage="group",
            subject="node",
            errno=error.errno or 0,
        ) from error


def leave(holder: NamespaceHolder) -> None:
    """Give up the namespace of an attempt that has ended; it goes with its last process."""
    if holder.namespace:
        os.close(int(holder.namespace.rpartition("/")[2]))
        holder.namespace = ""


def enter(holder: NamespaceHolder) -> None:
    """Let this process enter the namespace of its attempt, if that has one.

    Raises:
        OSError: the supervisor has ended, or the kernel refuses.
    """
    if holder.namespace:
        fd = os.open(holder.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(fd, _CLONE_NEWNS), "setns")
        finally:
            os.close(fd)


def mount(task: Task) -> None:
    """Mount the attempt's /tmp, and a new /dev/shm if it has none yet, in this namespace.

    Raises:
        OSError: the kernel refuses, or somebody else has put the directory there.
    """
    private = task.private
    assert private is not None, "the caller has looked"
    with contextlib.ExitStack() as opened:
        tmp = _opened(opened, _open_tmp(task))
        found = [path for path in _below_tmp(private) if os.path.isdir(path)]
        visible = [(path, _opened(opened, os.open(path, _PLACE))) for path in found]
        _mount(f"/proc/self/fd/{tmp}", TMP, "", _MS_BIND)
        for path, fd in visible:
            # It may not have been there when the new one was prepared.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                place = _open_place(path, opened)
                _mount(f"/proc/self/fd/{fd}", f"/proc/self/fd/{place}", "", _MS_BIND | _MS_REC)
    if private.shm and os.path.isdir(SHM):
        size = f",size={private.shm_bytes}" if private.shm_bytes else ""
        _mount("tmpfs", SHM, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777{size}")


def _open_place(path: str, opened: contextlib.ExitStack) -> int:
    """Return a directory of the new /tmp, where its owner may have put symbolic links by now."""
    at = _opened(opened, os.open(TMP, _PLACE))
    for step in path.removeprefix(f"{TMP}/").split("/"):
        at = _opened(opened, os.open(step, _PLACE | os.O_NOFOLLOW, dir_fd=at))
    return at


def keep_mounts() -> None:
    """Let no mount of this namespace be seen in others from now on.

    Raises:
        OSError: the kernel refuses.
    """
    # What the node mounts later is seen in the job, and nothing that the job mounts here.
    _mount("none", "/", "", _MS_REC | _MS_SLAVE)


def is_apart(pid: int) -> bool:
    """Return whether this process is in another mount namespace than ``pid``."""
    return not os.path.samestat(os.stat("/proc/self/ns/mnt"), os.stat(f"/proc/{pid}/ns/mnt"))


def _opened(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def check_paths(task: Task) -> None:
    """Refuse paths that mean another file in the job than where it was submitted.

    The caller is in the namespace, and the owner: symbolic links are followed.

    Raises:
        LaunchError: there is such a path.
    """
    private = task.private
    if private is None:
        return
    paths: tuple[tuple[str, str, Stage, str], ...] = (
        (task.cwd, "working directory", "workdir", "-d"),
        (task.stdout_path if task.join != "eo" else "", "output file", "output", "-o"),
        (task.stderr_path if task.join != "oe" else "", "error file", "output", "-e"),
        (
            task.env.get("GSCHED_CHECKPOINT_DIR", ""),
            "checkpoint directory",
            "workdir",
            "--checkpoint-dir",
        ),
    )
    for path, what, stage, option in paths:
        if hidden := _hidden(path, private):
            through = "" if hidden == path else f" (it leads to {hidden})"
            raise LaunchError(
                f"the {what} {path}{through} is not visible in jobs: each has a {TMP} and a "
                f"{SHM} of its own on this node, which are removed at its end: choose another "
                f"with {option}",
                stage=stage,
                subject="job",
            )


def _hidden(path: str, private: PrivateTmp) -> str:
    """Return what a path leads to if the job has something else there; empty: it has not."""
    if not path:
        return ""
    places = (TMP, SHM) if private.shm else (TMP,)
    seen = [*private.visible, *map(os.path.realpath, private.visible)]
    for led in (path, os.path.realpath(path)):
        if any(_is_below(led, place) for place in places) and not any(
            _is_below(led, place) for place in seen
        ):
            return led
    return ""


def _is_below(path: str, place: str) -> bool:
    return f"{posixpath.normpath(path)}/".startswith(f"{place}/")


def _below_tmp(private: PrivateTmp) -> Sequence[str]:
    """Return what of the node's /tmp is visible, without what is below another one of them."""
    found: list[str] = []
    for path in sorted(map(posixpath.normpath, private.visible)):
        if _is_below(path, TMP) and path != TMP and not any(_is_below(path, p) for p in found):
            found.append(path)
    return found


def _prepare(task: Task, private: PrivateTmp) -> None:
    """Make the new /tmp, with the places where others are mounted in it."""
    around, name = os.path.split(task.user_dir)
    with contextlib.ExitStack() as opened:
        place = _opened(opened, trust.open_directory(around))
        own = _opened(opened, os.open(name, _DIRECTORY, dir_fd=place))
        os.mkdir(NAME, 0o700, dir_fd=own)
        tmp = _opened(opened, _root_owned(os.open(NAME, _DIRECTORY, dir_fd=own)))
        for path in filter(os.path.isdir, _below_tmp(private)):
            at = tmp
            for step in path.removeprefix(f"{TMP}/").split("/"):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=at)
                at = _opened(opened, os.open(step, _DIRECTORY, dir_fd=at))
                os.fchmod(at, 0o755)  # whatever the umask
        os.fchmod(tmp, 0o1777)


def _open_tmp(task: Task) -> int:
    """Return the new /tmp: what the owner may have put in its place is refused."""
    around, name = os.path.split(task.user_dir)
    with contextlib.ExitStack() as opened:
        place = _opened(opened, trust.open_directory(around))
        own = _opened(opened, os.open(name, _DIRECTORY, dir_fd=place))
        return _root_owned(os.open(NAME, _DIRECTORY, dir_fd=own))


def _root_owned(fd: int) -> int:
    """Return a directory if it is this process's own: its user cannot have made it.

    Raises:
        OSError: it is somebody else's.
    """
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        os.close(fd)
        raise PermissionError(1, f"{NAME} was replaced by uid {status.st_uid}")
    return fd


@contextlib.contextmanager
def _new_namespace() -> Iterator[int]:
    """Let the body run in a new mount namespace; yield its descriptor, which stays open."""
    here = os.open(".", _PLACE)  # whoever enters a namespace is in its root
    before = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    made = -1
    try:
        _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
        try:
            made = os.open(_OWN_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
            keep_mounts()
            yield made
        finally:
            _checked(_libc.setns(before, _CLONE_NEWNS), "setns")
            os.fchdir(here)
    except BaseException:
        if made >= 0:
            os.close(made)
        raise
    finally:
        os.close(before)
        os.close(here)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(each) or None for each in (source, target, kind))
    result = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _checked(result, f"mount on {target}")


def _checked(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
