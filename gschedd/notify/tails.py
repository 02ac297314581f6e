"""The last lines of a job's error output, for its mail."""

import os
import stat
import threading
from collections.abc import Sequence
from typing import Final

#: Bytes at the end of a file that are looked at.
_BYTES_MOST: Final = 16 * 1024
_PATIENCE_S: Final = 2.0


class Tails:
    """Reads ends of files that users have named, and depends on none of them.

    A file system that does not answer holds one thread for as long as that lasts; no other file is
    read meanwhile, and no mail waits.
    """

    def __init__(self) -> None:
        self._reading: threading.Thread | None = None

    def read(self, path: str, *, uid: int, most: int) -> Sequence[str]:
        """Return the last lines of a file, at most ``most``; none where it cannot be read.

        Args:
            path: as the job's owner has named it.
            uid: of the job's owner, to whom the file has to belong: root reads for nobody what
                that user could not read.
        """
        if not path or os.geteuid() not in {0, uid}:
            return ()
        if self._reading is not None and self._reading.is_alive():
            return ()
        found: list[str] = []

        def look() -> None:
            found.extend(tail(path, uid=uid, most=most))

        self._reading = threading.Thread(target=look, daemon=True)
        self._reading.start()
        self._reading.join(_PATIENCE_S)
        return () if self._reading.is_alive() else tuple(found)


def tail(path: str, *, uid: int, most: int) -> Sequence[str]:
    """Return the last lines of a regular file of this user; none of any other."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ()
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            return ()
        begin = max(0, status.st_size - _BYTES_MOST)
        data = os.pread(handle, _BYTES_MOST, begin)
    except OSError:
        return ()
    finally:
        os.close(handle)
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[1 if begin and len(lines) > 1 else 0 :][-most:]
