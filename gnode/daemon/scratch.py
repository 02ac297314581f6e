"""Where jobs' own directories lie: away from the spool, so that no job can fill that.

All of one node's lie in ``TMP_DIR/gsched-UID-NUMBER``, whose number follows from the state
directory. Anybody can make a directory of that name in ``/tmp``. Root renames it and takes the
name, so nobody can keep gnode from it. Without root it is left alone, and the next name is tried.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Collection

from gsched import trust
from gsched.errors import CannotWriteError
from gsched.trust import UntrustedError

log = logging.getLogger(__name__)

DEFAULT_TMP_DIR = "/tmp"  # noqa: S108 - what is made there is checked
LASTING_TMP_DIR = "/var/tmp"  # noqa: S108 - likewise
_NAMES = 10
_EVICTIONS = 100  # whoever makes the name again and again does not win each time
_FOREIGN = ".foreign-"
_MODE = 0o711  # owners have to pass through to their own


class Scratch:
    """The directory below which each job gets one of its own.

    Args:
        state_dir: of the node.
        tmp_dir: in which the directory lies.
        purpose: ends its name, where there is more than one.

    Attributes:
        root: that directory, once `prepare` has found it.
    """

    def __init__(self, state_dir: str, tmp_dir: str, purpose: str = "") -> None:
        state_dir = os.path.abspath(state_dir)
        number = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:8]
        base = os.path.join(os.path.abspath(tmp_dir), f"gsched-{os.geteuid()}-{number}{purpose}")
        self._candidates = [base, *(f"{base}-{count}" for count in range(1, _NAMES))]
        self._before = os.path.join(state_dir, "user")  # where they once were
        self.root = base
        self._checked: tuple[int, ...] = ()
        self._looked_s = 0.0

    def prepare(self) -> None:
        """Make the directory, or find it.

        Raises:
            CannotWriteError: it cannot be made, or all of its names are somebody else's.
        """
        refused = ""
        for path in self._candidates:
            try:
                self._make_or_evict(path)
            except UntrustedError as error:
                log.warning("%s is not used for jobs' files: %s", path, error)
                refused = str(error)
            except OSError as error:
                raise CannotWriteError(
                    f"directory for jobs' files {path}: {error.strerror}",
                    hint="set tmp_dir in [node] to a directory that gnode may write",
                ) from error
            else:
                self.root = path
                return
        raise CannotWriteError(
            f"no directory for jobs' files can be made in {os.path.dirname(self.root)}: {refused}",
            hint="set tmp_dir in [node] to a directory that only root can change",
        )

    def _make_or_evict(self, path: str) -> None:
        for _ in range(_EVICTIONS):
            try:
                return self._make(path)
            except (UntrustedError, NotADirectoryError) as error:
                if not _is_evicted(path):
                    raise
                log.warning("%s: it gets another name, as it is somebody else's", error)
        return self._make(path)

    def _make(self, path: str) -> None:
        trust.check_way(os.path.dirname(path))
        if os.path.islink(path):
            raise UntrustedError(path, "is a symbolic link", "remove it")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        trust.check_directory(path)
        if os.stat(path).st_mode & 0o777 != _MODE:
            os.chmod(path, _MODE)

    def ensure(self) -> None:
        """Make the directory again where something that cleans up has removed it.

        Its name stays: tasks name it. Where somebody else has taken it meanwhile, see above.

        Raises:
            OSError: it cannot be made, or is somebody else's now.
        """
        with contextlib.suppress(OSError):
            # Only root and we could have changed it since it was found in order.
            if (
                self._checked == _identity(self.root)
                and self._looked_s + trust.WAY_KEPT_S > _now_s()
            ):
                return
        try:
            trust.check_directory(self.root)
        except OSError:  # not there, or not ours
            self._make_or_evict(self.root)
        self._checked, self._looked_s = _identity(self.root), _now_s()

    def roots(self) -> tuple[str, ...]:
        """Return all places where jobs of this node may have, or have had, their directories."""
        return (*self._candidates, self._before)

    def owns(self, path: str) -> bool:
        """Return whether a path is that of a job's own directory, which is ours to remove."""
        place = os.path.dirname(path)
        if place not in self.roots():
            return False
        try:
            trust.check_directory(place)
        except OSError:
            return False
        return True

    def abandoned(self, known: Collection[str]) -> list[str]:
        """Return the jobs' directories of attempts that are not in ``known``, by name."""
        found: list[str] = []
        for root in self.roots():
            try:
                trust.check_directory(root)
                names = os.listdir(root)
            except OSError:  # not there, or not ours
                continue
            found += [os.path.join(root, name) for name in names if name not in known]
        return found

    def close(self) -> None:
        """Remove the directory if no job has anything there."""
        with contextlib.suppress(OSError):
            os.rmdir(self.root)


def _identity(path: str) -> tuple[int, ...]:
    """Return what tells a directory from another one, and from itself with other rights."""
    status = os.lstat(path)
    return (status.st_dev, status.st_ino, status.st_uid, status.st_mode)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_evicted(path: str) -> bool:
    """Rename what somebody else has put at a path; return whether it may be made now.

    Only root can, in a directory like ``/tmp``. What belongs to root stays: jobs may use it.
    """
    if os.geteuid() != 0:
        return False
    try:
        status = os.lstat(path)
        if status.st_uid == 0 and stat.S_ISDIR(status.st_mode):
            return False
        os.rename(path, f"{path}{_FOREIGN}{secrets.token_hex(4)}")
    except FileNotFoundError:
        pass
    return True
