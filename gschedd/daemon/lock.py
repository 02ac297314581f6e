"""One head for one database: a lock file that names its holder."""

import contextlib
import fcntl
import logging
import os

from gsched.errors import NO_ROOM, ConfigError

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
            write_file(self._pid_path, text)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("%s is not written: %s", self._pid_path, error.strerror)

    def release(self) -> None:
        """Remove the pid file; the lock goes with the process."""
        if os.path.exists(self._pid_path):
            os.unlink(self._pid_path)


def write_file(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a small file so that readers see the old content or the new, never half."""
    part = f"{path}.{os.getpid()}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.write(fd, content)
        finally:
            os.close(fd)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    os.rename(part, path)
