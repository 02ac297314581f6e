"""Files that get to the disk in the background, by a thread that delays nobody's end.

A process that is killed within fsync() ends when all of the file is on the disk. So a file is
flushed in pieces: between two of them the thread, and with it the process, can end.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence

_PIECE_BYTES = 16 << 20
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # sync_file_range(2)


class Flush:
    """Flushes files in a thread of its own; they may be renamed meanwhile.

    Args:
        paths: of the files.
        then: is called when all of them are on the disk, by the same thread.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, paths: Sequence[str], then: Callable[[], None] | None = None) -> None:
        self._then = then
        self._error: OSError | None = None
        self._descriptors: list[int] = []
        try:
            for path in paths:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._close()
            raise
        # A daemon: a process that ends does not wait for it.
        self._thread = threading.Thread(target=self._run, name="gsched-elastic-flush", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when all files are on the disk.

        Raises:
            OSError: one of them cannot be written to it.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def fault(self) -> str | None:
        """Return what `wait` would raise, in words; None: all files are on the disk."""
        self._thread.join()
        return None if self._error is None else str(self._error)

    def _run(self) -> None:
        try:
            for descriptor in self._descriptors:
                _write_pieces(descriptor)
                os.fsync(descriptor)
            if self._then is not None:
                self._then()
        except OSError as error:
            self._error = error
        finally:
            self._close()

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def _write_pieces(descriptor: int) -> None:
    """Write a file to the disk piece by piece, the next one while one is waited for.

    Where the system cannot do that, nothing is done: fsync(), which comes after it, does it all.
    """
    write_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if write_range is None:
        return
    write_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    size_bytes = os.fstat(descriptor).st_size
    for begin in range(0, size_bytes + _PIECE_BYTES, _PIECE_BYTES):
        if begin < size_bytes and write_range(descriptor, begin, _PIECE_BYTES, _WRITE) != 0:
            return
        if begin:
            wait = _WAIT_BEFORE | _WRITE | _WAIT_AFTER
            write_range(descriptor, begin - _PIECE_BYTES, _PIECE_BYTES, wait)
