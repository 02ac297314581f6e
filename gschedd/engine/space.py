"""The head's disk: how much is left, and a ballast file to be given up when it is full."""

import logging
import os
from typing import Final

log = logging.getLogger("gschedd.space")

BALLAST_BYTES: Final = 4 * 1024 * 1024
#: Below this much free space no new job is taken: what runs must still be recorded.
RESERVE_BYTES: Final = 2 * 1024 * 1024


class DiskSpace:
    """Watches the file system that holds the database."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._ballast = os.path.join(directory, "gsched.ballast")

    def free_bytes(self) -> int:
        """Return what is left for us."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def is_low(self) -> bool:
        """Return whether new jobs should be refused; makes the ballast file while there is room."""
        free = self.free_bytes()
        if not os.path.exists(self._ballast):
            if free > BALLAST_BYTES + 2 * RESERVE_BYTES:
                self._make_ballast()
                return False
            return True
        return free < RESERVE_BYTES

    def _make_ballast(self) -> None:
        part = self._ballast + ".part"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, BALLAST_BYTES)
            finally:
                os.close(fd)
            os.rename(part, self._ballast)
        except OSError as error:
            log.warning("no ballast file: %s", error)
            if os.path.exists(part):
                os.unlink(part)

    def drop_ballast(self) -> bool:
        """Give the ballast file up; return whether there was one."""
        try:
            os.unlink(self._ballast)
        except FileNotFoundError:
            return False
        return True
