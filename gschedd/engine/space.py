"""The head's disk: how much is left, and a ballast file to be given up when it is full."""

import logging
import os
from typing import Final

from gsched.errors import TryAgainError
from gsched.protocol.api import DiskRow

log = logging.getLogger("gschedd.space")

BALLAST_BYTES: Final = 4 * 1024 * 1024
#: Below this much free space no new job is taken: what runs must still be recorded.
RESERVE_BYTES: Final = 2 * 1024 * 1024
#: Below this many free inodes likewise: SQLite and replaced files need some.
RESERVE_INODES: Final = 100
#: A ballast that is made when the head stops may be smaller: any of these lets it start again.
LEAST_BALLASTS: Final = (BALLAST_BYTES, 1024 * 1024, 256 * 1024)


class DiskSpace:
    """Watches the file system that holds the database."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._ballast = os.path.join(directory, "gsched.ballast")

    def free_bytes(self) -> int:
        """Return what is left for us."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def row(self) -> DiskRow:
        """Return the room of the file system; makes the ballast file while there is room."""
        if not self._has_ballast() and self.free_bytes() > BALLAST_BYTES + 2 * RESERVE_BYTES:
            self._make_ballast(BALLAST_BYTES)
        status = os.statvfs(self._directory)
        free = status.f_bavail * status.f_frsize
        has_inodes = not status.f_files or status.f_favail >= RESERVE_INODES
        return DiskRow(
            path=self._directory,
            free_bytes=free,
            total_bytes=status.f_blocks * status.f_frsize,
            free_inodes=status.f_favail,
            total_inodes=status.f_files,
            is_low=free < RESERVE_BYTES or not has_inodes or not self._has_ballast(),
        )

    def _has_ballast(self) -> bool:
        """Return whether there is a ballast file of full size."""
        try:
            return os.stat(self._ballast).st_size >= BALLAST_BYTES
        except FileNotFoundError:
            return False

    def is_low(self) -> bool:
        """Return whether new jobs should be refused; as `row`."""
        return self.row().is_low

    def check(self) -> None:
        """Refuse a new job where the disk is full.

        Raises:
            TryAgainError: it is.
        """
        if self.is_low():
            raise TryAgainError("the head's disk is full: no new jobs are taken", hint="free space")

    def _make_ballast(self, size_bytes: int) -> bool:
        part = self._ballast + ".part"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size_bytes)
            finally:
                os.close(fd)
            os.rename(part, self._ballast)
        except OSError as error:
            log.warning("no ballast file: %s", error)
            if os.path.exists(part):
                os.unlink(part)
            return False
        return True

    def keep_room(self) -> None:
        """Make the largest ballast file that there is room for, so that a head can start here."""
        if os.path.exists(self._ballast):
            return
        for size_bytes in LEAST_BALLASTS:
            if self.free_bytes() > size_bytes and self._make_ballast(size_bytes):
                return

    def make_way(self) -> None:
        """Give the ballast file up if a head that starts would not find room."""
        if self.free_bytes() < RESERVE_BYTES and self.drop_ballast():
            log.error("the head's disk is full: the ballast file is given up to start")

    def drop_ballast(self) -> bool:
        """Give the ballast file up; return whether there was one."""
        try:
            os.unlink(self._ballast)
        except FileNotFoundError:
            return False
        return True
