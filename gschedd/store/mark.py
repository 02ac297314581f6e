"""The high-water mark: a tiny file outside the database that says how far it had come.

SQLite does not notice a truncated write-ahead log or an old copy of the database: fewer rows are
there, and nothing is wrong with them. The mark is written after every commit, so a database that
is behind its mark has lost something that was acknowledged. The mark also says which file the
database was: where both were restored together, the database is another file.
"""

import os
import zlib
from typing import Final

import msgspec
from msgspec import Struct

from gsched.errors import StorageError
from gschedd.store.identity import FileIdentity

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
