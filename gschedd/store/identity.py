"""Which file a database is: its inode and its time of birth, which a new file does not share.

``cp``, rsync and tar restore contents, modes and times, but not these two: where they make a new
file it gets its own inode and time of birth. ``cp`` onto an existing file makes none: it rewrites
that file, which keeps both. Such a restore is found only by the mark and by what nodes know, so
the old file is to be removed first. A restart, a reboot, ``chown`` and ``chmod`` leave both alone.
Device numbers are left out, as they may change with a reboot.
"""

import ctypes
import os
import sys
from typing import Final

from msgspec import Struct

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BTIME_OFFSET: Final = 80  # struct statx: three times before it (linux/stat.h)
_MASK_OFFSET: Final = 0


class FileIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, as no other file is; ``born_ns`` is 0 where the file system does not tell it."""

    inode: int = 0
    born_ns: int = 0

    def is_another(self, other: "FileIdentity") -> bool:
        """Return whether two files are known to differ."""
        if not self.inode or not other.inode:
            return False
        if self.born_ns and other.born_ns:
            return (self.inode, self.born_ns) != (other.inode, other.born_ns)
        return self.inode != other.inode


def identity_of(path: str) -> FileIdentity:
    """Return which file this is."""
    return FileIdentity(inode=os.stat(path).st_ino, born_ns=_born_ns(path))


def _born_ns(path: str) -> int:
    """Return a file's time of birth, nanoseconds since the epoch; 0 where it is not known."""
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):  # a C library without it
        return 0
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return 0
    raw = buffer.raw
    if not int.from_bytes(raw[_MASK_OFFSET : _MASK_OFFSET + 4], sys.byteorder) & _STATX_BTIME:
        return 0
    seconds = int.from_bytes(raw[_BTIME_OFFSET : _BTIME_OFFSET + 8], sys.byteorder, signed=True)
    nanoseconds = int.from_bytes(raw[_BTIME_OFFSET + 8 : _BTIME_OFFSET + 12], sys.byteorder)
    return seconds * 1_000_000_000 + nanoseconds
