"""The high-water mark: a tiny file outside the database that says how far it had come.

SQLite does not notice a truncated write-ahead log or an old copy of the database: fewer rows are
there, and nothing is wrong with them. The mark is written after every commit, so a database that
is behind its mark has lost something that was acknowledged. The mark also says which file the
database was: where both were restored together, the database is another file.
"""

import ctypes
import os
import sys
import zlib
from typing import Final

import msgspec
from msgspec import Struct

from gsched.errors import StorageError

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BTIME_OFFSET: Final = 80  # struct statx: three times before it (linux/stat.h)
_MASK_OFFSET: Final = 0


class FileIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, as no other file is; ``born_ns`` is 0 where the file system does not tell it.

    ``cp``, rsync and tar restore contents, modes and times, but not these two, where they make a
    new file. ``cp`` onto an existing file keeps both: such a restore is found only by the mark and
    by what nodes know, so the old file is to be removed first. A restart, a reboot, ``chown`` and
    ``chmod`` leave both alone. Device numbers are left out, as a reboot may change them.
    """

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


SLOT_BYTES: Final = 512  # two slots, written in turn: a torn write leaves the other one


class Mark(Struct, frozen=True, kw_only=True):
    """How far a database has come.

    Attributes:
        cluster: which cluster's database.
        epoch: of the head that wrote it.
        seq: of the last event.
        next_job: the id the next job would get.
        epoch_id: of the start of the head that wrote it.
        file: which file the database was then: a copy of both is another one.
    """

    cluster: str
    epoch: int
    seq: int
    next_job: int
    epoch_id: str = ""
    file: FileIdentity = FileIdentity()


class MarkFile:
    """The mark on disk."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error
        self._path = path
        self._turn = 0

    def read(self) -> Mark | None:
        """Return the highest mark that is whole, or None if there is none."""
        marks = [(slot, mark) for slot in (0, 1) if (mark := self._read_slot(slot)) is not None]
        if not marks:
            return None
        slot, best = max(marks, key=lambda item: (item[1].epoch, item[1].seq, item[1].next_job))
        self._turn = 1 - slot
        return best

    def _read_slot(self, slot: int) -> Mark | None:
        text = os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES)
        digest, _, rest = text.partition(b" ")
        body = rest.partition(b"\n")[0]
        if not body or digest != _digest(body):
            return None
        try:
            return msgspec.json.decode(body, type=Mark)
        except msgspec.DecodeError:
            return None

    def write(self, mark: Mark) -> None:
        """Write the mark into the slot that does not hold the newest one.

        Raises:
            StorageError: it cannot be written.
        """
        body = msgspec.json.encode(mark)
        line = _digest(body) + b" " + body + b"\n"
        try:
            os.pwrite(self._fd, line.ljust(SLOT_BYTES, b" "), self._turn * SLOT_BYTES)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._turn = 1 - self._turn

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _digest(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)
