"""Checksums of rows, and reading rows so that damage names its row instead of ending the head.

SQLite has no checksums of its own: a flipped bit in a page that still parses is data like any
other. Each row that is not addressed by its contents carries the CRC-32 of its other columns.
"""

import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

SqlValue = str | int | float | bytes | None
T = TypeVar("T")

_pack = msgspec.msgpack.Encoder().encode

#: What decoding raises when a row holds what cannot be there.
_SPOILED: Final = (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError)


class Damaged(Struct, frozen=True, kw_only=True):
    """A row that cannot be used.

    Attributes:
        kind: "job", "attempt", "node", "usage", "reservation", "event", "run" or "script".
        key: of the row, in words.
        reason: why.
        job: whose row it is; 0: of no job.
    """

    kind: str
    key: str
    reason: str
    job: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.kind} {self.key}: {self.reason}"


class DamagedRowError(Exception):
    """A row of the database does not match its checksum, or cannot be decoded."""

    def __init__(self, damaged: Damaged) -> None:
        super().__init__(str(damaged))
        self.damaged = damaged


def seal(values: Iterable[SqlValue], integers: Iterable[int] | None = None) -> int:
    """Return the checksum of a row's other columns.

    Numbers count as floats: SQLite returns an integer of a REAL column as one.

    Args:
        integers: places of the columns that may be integers, of a row from a database; None: any.
    """
    plain: list[SqlValue]
    if integers is None:
        plain = [float(value) if isinstance(value, int) else value for value in values]
        return zlib.crc32(_pack(plain))
    plain = list(values)
    for place in integers:
        value = plain[place]
        if isinstance(value, int):
            plain[place] = float(value)
    return zlib.crc32(_pack(plain))


def sealed(values: tuple[SqlValue, ...]) -> tuple[SqlValue, ...]:
    """Return a row with its checksum at its end."""
    return (*values, seal(values))


def read_row(decode: Callable[[], T], *, intact: bool, kind: str, key: object, job: int = 0) -> T:
    """Return what a row stands for.

    Args:
        decode: makes it of the row.
        intact: the row has the checksum of its columns; see `is_sealed`.
        kind: of the row, for messages.
        key: of the row, for messages.
        job: whose row it is; 0: of no job.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    if not intact:
        raise DamagedRowError(
            Damaged(kind=kind, key=_plain(key), reason="its checksum does not match", job=job)
        )
    try:
        return decode()
    except _SPOILED as error:
        reason = f"it cannot be decoded ({type(error).__name__}: {error})"
        raise DamagedRowError(
            Damaged(kind=kind, key=_plain(key), reason=_plain(reason)[:300], job=job)
        ) from error


def is_sealed(
    values: Iterable[SqlValue], checksum: SqlValue, integers: Iterable[int] | None = None
) -> bool:
    """Return whether a row has the checksum of its other columns, in the order of writing."""
    try:
        return checksum == seal(values, integers)
    except UnicodeEncodeError:  # bytes that are no text stand in a column of text
        return False


def _plain(key: object) -> str:
    """Return words that can be written anywhere."""
    return str(key).encode("utf-8", "backslashreplace").decode()


def text_of(data: bytes) -> str:
    """Return the text of a column; bytes that are no UTF-8 stay as they are, for the checksum."""
    return data.decode("utf-8", "surrogateescape")


def owned_by(db: sqlite3.Connection, jobs: Collection[int]) -> dict[int, dict[str, int]]:
    """Return on which nodes some jobs own GPUs, and by which attempt, by job."""
    found: dict[int, dict[str, int]] = {job: {} for job in jobs}
    for job, node, attempt in db.execute("SELECT job, node, attempt FROM gpu_owners"):
        if job in found:
            found[job][node] = attempt
    return found
