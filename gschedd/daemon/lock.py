"""One head for one database: a lock file that names its holder."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gsched.errors import NO_ROOM, ConfigError
from gsched.files import replace_file

log = logging.getLogger("gschedd")


class HeadLock:
    """Holds ``gschedd.lock`` for as long as the process lives; also writes ``gschedd.pid``."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "gschedd.lock")
        self._pid_path = os.path.join(directory, "gschedd.pid")

    def take(self) -> None:
        """Take the lock; nothing is written yet, as the disk may be full.

        Raises:
            ConfigError: another head has it; the message names its pid.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"another gschedd (pid {holder}) runs on {os.path.dirname(self._path)}",
                hint="a database has only one head: stop the other one first",
            ) from None

    def note_pid(self) -> None:
        """Write this process's id into both files; a head that has no room for it runs as well."""
        text = f"{os.getpid()}\n".encode()
        try:
            os.pwrite(self._fd, text, 0)  # in place: no room is needed for it
            os.ftruncate(self._fd, len(text))
            replace_file(self._pid_path, text, mode=0o644)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("%s is not written: %s", self._pid_path, error.strerror)

    def close(self) -> None:
        """Release the lock of a process that goes on."""
        os.close(self._fd)

    def release(self) -> None:
        """Remove the pid file; the lock goes with the process."""
        if os.path.exists(self._pid_path):
            os.unlink(self._pid_path)


@contextmanager
def no_head(directory: str) -> Iterator[None]:
    """Keep heads from a state directory meanwhile.

    Raises:
        ConfigError: one runs.
    """
    lock = HeadLock(directory)
    lock.take()
    try:
        yield
    finally:
        lock.close()
