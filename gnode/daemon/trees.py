"""Removes a directory that a user has filled: any depth, any names, a bounded amount at a time.

Every step names an entry relative to an open directory and follows no link, so an entry that is
swapped meanwhile cannot lead out of the tree. The walk keeps at most `DEPTH_MAX` directories open:
a directory below that is first renamed to the top of the tree. A mount point is never entered.
"""

import errno
import os
import stat
from collections.abc import Iterator

DEPTH_MAX = 16  # open directories of one removal; deeper ones are moved up first
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME


class TreeRemoval:
    """The removal of one directory tree, which `work` carries on with.

    Args:
        path: of the tree; its parent directory must not be writable by the tree's owner.

    Attributes:
        error: why something could not be removed, None if nothing is in the way so far.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: OSError | None = None
        self._done = 0
        self._steps = self._run()

    def work(self, steps: int) -> int:
        """Remove up to ``steps`` entries; return how many steps are left over, 0 if there is more.

        What cannot be removed stays: then ``error`` says why, and a new removal may try again.
        """
        for done in range(steps):
            try:
                next(self._steps)
            except StopIteration:
                return steps - done
            except OSError as error:
                self.error = error
                return steps - done
        return 0

    def _run(self) -> Iterator[None]:
        """Remove the tree; yield after each entry."""
        parent = os.open(os.path.dirname(self.path), _DIRECTORY_FLAGS & ~os.O_NOATIME)
        name = os.path.basename(self.path)
        try:
            while not self._unlink(parent, name):
                top = self._enter(parent, name)
                if top is None:
                    return
                try:
                    before = self._done
                    self.error = None
                    yield from self._empty(top)
                finally:
                    os.close(top)
                # Directories were moved up while the top was read: read it again, unless the
                # last pass achieved nothing.
                if self._done == before:
                    return
        finally:
            os.close(parent)

    def _empty(self, top: int) -> Iterator[None]:
        """Remove what is below ``top``, depth first and without recursion."""
        device = os.fstat(top).st_dev
        stack = [(top, "", os.scandir(top))]
        try:
            while stack:
                directory, name, entries = stack[-1]
                entry = _next(entries)
                if entry is None:
                    entries.close()
                    stack.pop()
                    if stack:
                        os.close(directory)
                        self._unlink(stack[-1][0], name)
                    yield
                    continue
                if not self._unlink(directory, entry):
                    if len(stack) >= DEPTH_MAX:
                        self._move_up(directory, entry, top)
                    elif (below := self._enter(directory, entry, device)) is not None:
                        stack.append((below, entry, os.scandir(below)))
                yield
        finally:
            for depth, (directory, _, entries) in enumerate(stack):
                entries.close()
                if depth:
                    os.close(directory)

    def _unlink(self, directory: int, name: str) -> bool:
        """Remove one entry; return False if it is a directory that has to be emptied first.

        Whether an entry is a directory is the kernel's answer to the attempt, as what was read
        before may have been swapped. For a mount point it is EBUSY, before anybody looks into it.
        """
        try:
            try:
                os.unlink(name, dir_fd=directory)
            except (IsADirectoryError, PermissionError):
                os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            return True
        except NotADirectoryError as error:  # PermissionError, and no directory: immutable, say
            self._note(error.__context__ if isinstance(error.__context__, OSError) else error)
            return True
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            self._note(error)
            return True
        self._done += 1
        return True

    def _enter(self, directory: int, name: str, device: int | None = None) -> int | None:
        """Return a descriptor of a directory of the same file system, None if there is none."""
        try:
            fd = _open(directory, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(error)
            return None
        if device is not None and os.fstat(fd).st_dev != device:
            os.close(fd)
            self._note(OSError(errno.EXDEV, "a file system is mounted there", name))
            return None
        return fd

    def _move_up(self, directory: int, name: str, top: int) -> None:
        """Move a deep directory to the top, where the next pass finds it."""
        try:
            os.close(_open(directory, name))  # its own mode must allow writing to be moved
            self._done += 1
            os.rename(name, f".gnode-{self._done}", src_dir_fd=directory, dst_dir_fd=top)
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if self.error is None:
            self.error = error


#: What rmdir says of a directory with entries; some file systems say EEXIST.
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def _open(directory: int, name: str) -> int:
    """Open a directory for reading, also one whose owner, ourselves, took the right away."""
    try:
        fd = _open_quietly(directory, name)
        if os.geteuid() and os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(fd, stat.S_IRWXU)
    except PermissionError:
        if os.geteuid() == 0:  # the owner's modes never stop root: something else does
            raise
        os.chmod(name, stat.S_IRWXU, dir_fd=directory)  # our own user's, whatever it leads to
        return _open_quietly(directory, name)
    return fd


def _open_quietly(directory: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
    except PermissionError:  # O_NOATIME is for owners only
        return os.open(name, _DIRECTORY_FLAGS & ~os.O_NOATIME, dir_fd=directory)


def _next(entries: "os._ScandirIterator[str]") -> str | None:
    """Return the next entry's name, None at the end or if the directory cannot be read on."""
    try:
        entry = next(entries, None)
    except OSError:
        return None
    return None if entry is None else entry.name
