"""Looking for damage: every row is compared with its checksum, a slice at a time."""

import hashlib
import sqlite3
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from gschedd.store import history, rows
from gschedd.store.seals import Damaged, DamagedRowError, SqlValue

#: Rows of a slice: a few milliseconds on the reader's thread, on which questions wait.
SLICE: Final = 500


class Place(Struct, frozen=True, kw_only=True):
    """How far a check has come: the table, and the key of the last row that was looked at."""

    table: int = 0
    key: tuple[SqlValue, ...] | None = None


class _Table(Struct, frozen=True):
    """How the rows of a table are read in the order of a key, its first columns."""

    select: str
    key: str
    first: tuple[SqlValue, ...]
    look: Callable[[rows.Row], object]


def _look_at_script(row: rows.Row) -> None:
    digest, data = row
    if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != digest:
        reason = "it does not match its digest"
        raise DamagedRowError(Damaged(kind="script", key=str(digest), reason=reason))


def _look_at_job(row: rows.Row) -> None:
    rows.read_job(row, rows.SpecReader())


def _look_at_run(row: rows.Row) -> None:
    history.read_run(row[1:-1], row[-1])


_TABLES: Final = (
    _Table(rows.SELECT_JOBS, "jobs.id", (-1,), _look_at_job),
    _Table(rows.SELECT_ATTEMPTS, "job, attempt", (-1, -1), rows.read_attempt),
    _Table(rows.SELECT_NODES, "name", ("",), rows.read_node),
    _Table(rows.SELECT_RESERVATIONS, "name", ("",), rows.read_reservation),
    _Table(rows.SELECT_USAGE, "project, user", ("", ""), rows.read_usage),
    _Table(rows.SELECT_EVENTS, "seq", (-1,), rows.read_event),
    _Table(history.SELECT_ROWS, "id", (-1,), _look_at_run),
    _Table("SELECT digest, data FROM blobs ", "digest", ("",), _look_at_script),
)


def check_slice(db: sqlite3.Connection, place: Place) -> tuple[list[Damaged], Place | None]:
    """Compare a slice of all rows with their checksums.

    Args:
        db: the database; it is only read.
        place: where the last slice ended; ``Place()`` begins.

    Returns:
        The damaged rows of the slice, and where it ended; None: those were the last rows.
    """
    table = _TABLES[place.table]
    key = table.first if place.key is None else place.key
    marks = ", ".join("?" * len(key))
    query = f"{table.select} WHERE ({table.key}) > ({marks}) ORDER BY {table.key} LIMIT ?"
    damaged: list[Damaged] = []
    try:
        found = db.execute(query, (*key, SLICE)).fetchall()
    except sqlite3.DatabaseError as error:  # a page of it: the rest of the table is out of reach
        damaged.append(Damaged(kind="table", key=table.key, reason=str(error)))
        found = []
    for row in found:
        try:
            table.look(row)
        except DamagedRowError as error:
            damaged.append(error.damaged)
    if len(found) == SLICE:
        return damaged, Place(table=place.table, key=tuple(found[-1][: len(key)]))
    if place.table + 1 < len(_TABLES):
        return damaged, Place(table=place.table + 1)
    return damaged, None
