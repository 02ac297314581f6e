"""Whether anybody else could have made or changed a file that a daemon acts on.

A daemon that runs as root must not obey a file that another account can write, replace or put in
its place by renaming a directory on the way to it. So the whole way is walked here by descriptors,
symbolic links included, and each step has to belong to root or to the daemon's own user. Whoever
may change none of the steps cannot change what the path leads to, either.

Only the standard library is used: supervisors import this.
"""

import errno
import os
import stat
import time

DEFAULT_UID_MIN = 1000
_LINKS_MAX = 40  # as the kernel allows on one way
_STEP_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: How long a way that was found in order counts as such, seconds. Only root or we ourselves can
#: change it, and a walk takes forty system calls, several for each attempt.
WAY_KEPT_S = 1.0
_WAYS_MAX = 64
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

#: Directories that were reached by trusted steps alone: device, inode and when.
_ways: dict[str, tuple[int, int, float]] = {}


class UntrustedError(OSError):
    """A file or a directory that somebody else could have made or changed.

    Attributes:
        path: of what is not trusted: the file, or a directory on the way to it.
        why: what is wrong with it, in words.
        hint: what to do about it.
    """

    def __init__(self, path: str, why: str, hint: str) -> None:
        super().__init__(errno.EPERM, why, path)
        self.path, self.why, self.hint = path, why, hint

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


def uid_min(path: str = "/etc/login.defs") -> int:
    """Return the first uid that belongs to a person on this machine; lower ones run no jobs."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) >= 2 and words[0] == "UID_MIN" and words[1].isdigit():
                    return max(1, int(words[1]))
    except OSError:
        pass
    return DEFAULT_UID_MIN


def open_directory(path: str) -> int:
    """Return a descriptor (``O_PATH``) of a directory that only root and we can change.

    The directory itself must not be writable by others, even if it is sticky. Where we are root,
    the same holds for each directory on the way, except that a sticky one may be writable: its
    entries can only be renamed by their owners, and those are checked, too. Of a way that was found
    in order less than `WAY_KEPT_S` ago only the last two directories are looked at. Without root
    only the directory itself is: how a user protects the directories above is the user's affair.

    Raises:
        UntrustedError: somebody else can change it, or what it is reached by.
        OSError: there is no such directory.
    """
    uid = os.geteuid()
    if uid != 0:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = _reach(os.path.abspath(path))
    try:
        _check_directory(os.fstat(fd), path, uid, is_last=True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_directory(path: str) -> None:
    """Do nothing if only root and we can change a directory.

    Raises:
        UntrustedError: see `open_directory`.
        OSError: there is no such directory.
    """
    os.close(open_directory(path))


def check_way(path: str) -> None:
    """Check the directories on the way to ``path`` that exist, before others are made in them.

    Raises:
        UntrustedError: somebody else can change one of them.
    """
    if os.geteuid() != 0:
        return
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    fd = _walk(place)
    try:
        _check_directory(os.fstat(fd), place, 0, is_last=False)
    finally:
        os.close(fd)


def open_file(path: str, access: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file that only root and we could have written.

    It must have no other name (hard link), and its directory must be trusted: `open_directory`.

    Args:
        path: of the file.
        access: flags that say what else than reading it is for.

    Raises:
        UntrustedError: it is no such file, or its directory is not trusted.
        OSError: there is no such file, or it cannot be opened.
    """
    directory, name = os.path.split(os.path.abspath(path))
    place = open_directory(directory)
    try:
        return open_file_in(place, name, path, access)
    finally:
        os.close(place)


def open_file_in(place: int, name: str, path: str, access: int = os.O_RDONLY) -> int:
    """Return what `open_file` does, of a directory that `open_directory` has opened.

    Raises:
        UntrustedError: it is no such file; the message says ``path``.
        OSError: there is no such file, or it cannot be opened.
    """
    try:
        fd = os.open(name, _FILE_FLAGS | access, dir_fd=place)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(path, "is a symbolic link", "remove it") from error
        raise
    try:
        _check_record(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_configuration(path: str) -> None:
    """Do nothing if only root and we can change a configuration file, or if there is none.

    Where we are root, nobody else may be able to replace it, either. Symbolic links are followed:
    configurations are linked from elsewhere, and links are checked like directories.

    Raises:
        UntrustedError: somebody else can change what we would do.
        OSError: it cannot be looked at.
    """
    try:
        if os.geteuid() == 0:
            fd = _walk(os.path.abspath(path))
        else:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _check_file(os.fstat(fd), path, os.geteuid())
    finally:
        os.close(fd)


def _reach(path: str) -> int:
    """Return what `_walk` does; of a way that was walked a moment ago only the end is looked at."""
    parent, name = os.path.split(path)
    way = _ways.get(parent)
    if way is None or not name or _now_s() - way[2] > WAY_KEPT_S:
        return _walk_and_keep(path)
    try:
        fd = os.open(parent, _STEP_FLAGS)
    except OSError:
        return _walk_and_keep(path)
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == way[:2]:
            _check_directory(status, parent, os.geteuid(), is_last=False)
            step = os.open(name, _STEP_FLAGS, dir_fd=fd)
            if not stat.S_ISLNK(os.fstat(step).st_mode):
                return step
            os.close(step)
    finally:
        os.close(fd)
    return _walk_and_keep(path)


def _walk_and_keep(path: str) -> int:
    parent = os.path.dirname(path)
    _ways.pop(parent, None)
    now_s = _now_s()
    fd = _walk(path)
    try:
        above = os.stat(parent, follow_symlinks=False)
    except OSError:
        return fd
    if not stat.S_ISDIR(above.st_mode):  # a link: it is walked each time
        return fd
    if len(_ways) >= _WAYS_MAX:
        _ways.clear()
    _ways[parent] = (above.st_dev, above.st_ino, now_s)
    return fd


def _now_s() -> float:
    """Return seconds of CLOCK_BOOTTIME: supervisors, which import this, cannot use `Clock`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _walk(path: str) -> int:
    """Return a descriptor of what an absolute path leads to; each step before it is trusted."""
    uid = os.geteuid()
    links = 0
    at = "/"
    left = _parts(path)
    fd = os.open("/", _STEP_FLAGS)
    try:
        while left:
            _check_directory(os.fstat(fd), at, uid, is_last=False)
            name = left.pop()
            step = os.open(name, _STEP_FLAGS, dir_fd=fd)
            here = os.path.normpath(
                os.path.join(at, name)
            )  # ``at`` holds no link, so ".." is its parent
            status = os.fstat(step)
            if not stat.S_ISLNK(status.st_mode):
                os.close(fd)
                fd, at = step, here
                continue
            links += 1
            target = _target(step, status, here, uid, links)
            left += _parts(target)
            if target.startswith("/"):
                os.close(fd)
                fd, at = os.open("/", _STEP_FLAGS), "/"
    except BaseException:
        os.close(fd)
        raise
    return fd


def _parts(path: str) -> list[str]:
    """Return the names in a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def _target(link: int, status: os.stat_result, path: str, uid: int, number: int) -> str:
    """Return what a symbolic link says, and close it; it is the ``number``-th on the way.

    Raises:
        UntrustedError: it is another user's, who can make it say something else.
        OSError: links lead round in a circle.
    """
    try:
        if number > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        _check_owner(status, path, uid)
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _check_directory(status: os.stat_result, path: str, uid: int, *, is_last: bool) -> None:
    _check_owner(status, path, uid)
    if not status.st_mode & _OTHERS_MAY_WRITE:
        return
    if is_last or not status.st_mode & stat.S_ISVTX:
        raise UntrustedError(
            path, f"can be written by others (mode {_mode(status)})", f"chmod go-w {path}"
        )


def _check_file(status: os.stat_result, path: str, uid: int) -> None:
    _check_owner(status, path, uid)
    if status.st_mode & (_OTHERS_MAY_WRITE if uid == 0 else stat.S_IWOTH):
        raise UntrustedError(
            path, f"can be written by others (mode {_mode(status)})", f"chmod go-w {path}"
        )


def _check_record(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedError(path, "is not a regular file", "remove it")
    _check_file(status, path, os.geteuid())
    if status.st_nlink > 1:
        raise UntrustedError(path, "has another name (a hard link)", "remove the other name")


def _check_owner(status: os.stat_result, path: str, uid: int) -> None:
    if status.st_uid not in {0, uid}:
        mine = "root" if uid == 0 else f"uid {uid}"
        raise UntrustedError(
            path, f"belongs to uid {status.st_uid}, not to {mine}", f"chown {uid} {path}"
        )


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
