"""Copies of databases that others write meanwhile, and what is in a copy."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from gsched.errors import NO_ROOM, CannotWriteError, StorageError, StorageFullError
from gsched.model.units import format_size
from gschedd.store.code import spare_bytes
from gschedd.store.schema import SCHEMA_VERSION
from gschedd.store.scrub import SLICE, Place, check_slice
from gschedd.store.seals import Damaged, text_of
from gschedd.store.sqlite import BUSY_TIMEOUT_S

#: Pages of a database between two reports of the progress: 4 MiB.
PAGES: Final = 1024

#: Is called with the name of what is copied or checked, how much is done, and of how much.
Progress = Callable[[str, int, int], None]


class DatabaseContents(Struct, frozen=True, kw_only=True):
    """What a database of the head holds.

    Attributes:
        next_job: the number of the next job.
        rows: of each table.
        damaged: rows that do not match their checksums; empty for a database of another schema.
    """

    schema: int
    cluster: str
    seq: int
    next_job: int
    rows: dict[str, int]
    damaged: tuple[str, ...]


def reading(path: str) -> sqlite3.Connection:
    """Return a connection that only reads; the caller closes it.

    Raises:
        sqlite3.Error: there is no database.
    """
    db = sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
    )
    db.text_factory = text_of
    return db


def check_room(directory: str, need_bytes: int) -> None:
    """Refuse to write so much that the file system would be nearly full.

    Raises:
        StorageFullError: there is less room.
    """
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes - need_bytes < spare_bytes(status):
        raise StorageFullError(
            f"{directory} has {format_size(free_bytes)} free; {format_size(need_bytes)} are "
            f"needed, and {format_size(spare_bytes(status))} are to stay free",
            hint="free space there, or name a directory on another disk",
        )


def size_of(path: str) -> int:
    """Return the bytes of a database, with what its log holds."""
    return sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))


def copy_database(source: str, target: str, progress: Progress) -> None:
    """Copy a database to a new file: all of it as of one moment, while others write it.

    Raises:
        OSError: the target exists, or cannot be written.
        sqlite3.Error: as SQLite says.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    name = os.path.basename(source)
    with closing(reading(source)) as db, closing(sqlite3.connect(target)) as copy:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the moment
        db.backup(
            copy,
            pages=PAGES,
            progress=lambda _, left, total: progress(f"copying {name}", total - left, total),
        )
        copy.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file


def examine(path: str, progress: Progress) -> DatabaseContents:
    """Check a database that nobody writes, and return what is in it.

    Raises:
        StorageError: it is damaged as a whole; damaged rows are listed instead.
    """
    try:
        with closing(reading(path)) as db:
            verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(str(verdict))
            return _contents(db, progress)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StorageError(
            f"{path} is damaged or no database of a head: {error}", hint="use another backup"
        ) from error


def _contents(db: sqlite3.Connection, progress: Progress) -> DatabaseContents:
    meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    query = "SELECT count(*) FROM {}"  # the names are those of the schema
    rows = {name: int(db.execute(query.format(name)).fetchone()[0]) for name in sorted(tables)}
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    damaged: list[Damaged] = []
    place = Place() if schema == SCHEMA_VERSION else None
    checked = 0
    while place is not None:
        more, place = check_slice(db, place)
        damaged += more
        checked = min(checked + SLICE, sum(rows.values()))
        progress("checking rows", checked, sum(rows.values()))
    return DatabaseContents(
        schema=schema,
        cluster=meta.get("cluster", ""),
        seq=max(newest, int(meta.get("seq", "0"))),
        next_job=int(meta.get("next_job", "1")),
        rows=rows,
        damaged=tuple(map(str, damaged)),
    )


def refused(error: OSError | sqlite3.Error, what: str) -> Exception:
    """Return what ends a command for a file that cannot be read or written."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in NO_ROOM:
        return StorageFullError(
            f"{what}: the disk is full; what was written is removed",
            hint="free space there, or name a directory on another disk",
        )
    if isinstance(error, sqlite3.Error):
        return StorageError(f"{what}: {error}", hint="look at the disk and its log")
    return CannotWriteError(f"{what}: {error.filename or ''}: {error.strerror}")
