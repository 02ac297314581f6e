"""How much space the spool has left: below a limit the node takes no new jobs."""

import os

from gsched.model.units import format_size

LOOK_S = 2.0
_ENOUGH = 1.25  # times the limit before jobs are taken again, so that it does not flap


class SpoolSpace:
    """The file system of the spool.

    Args:
        directory: of the spool.
        least_bytes: free space below which no new job is to be taken.
    """

    def __init__(self, directory: str, least_bytes: int) -> None:
        self._directory = directory
        self.least_bytes = least_bytes
        self._is_short = False

    def problem(self) -> str:
        """Return why no new job is to be taken, in words; empty if there is space."""
        try:
            status = os.statvfs(self._directory)
        except OSError as error:
            return f"its spool {self._directory} cannot be used: {error.strerror}"
        free_bytes = status.f_bavail * status.f_frsize
        limit_bytes = self.least_bytes * (_ENOUGH if self._is_short else 1.0)
        self._is_short = free_bytes < limit_bytes
        if self._is_short:
            return f"its spool {self._directory} has less than {format_size(self.least_bytes)} left"
        if status.f_files and not status.f_favail:
            return f"its spool {self._directory} has no inodes left"
        return ""
