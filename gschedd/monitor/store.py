"""The monitor's own database, ``monitor.db``: what it derives from events, and samples of use.

All of it can be derived again from the head's events, as far as these are kept, but the samples.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from gschedd.store.seals import text_of

#: Changes when a table does: what is derived is then derived again.
VERSION: Final = 1
_CURSOR: Final = """
    CREATE TABLE IF NOT EXISTS cursor (
        one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, at_s REAL NOT NULL);
"""


class MonitorTable(Struct, frozen=True, kw_only=True):
    """A table of the database.

    Attributes:
        name: of it.
        schema: statements that make it and its indices where they are missing.
        derived: it follows from events, so it is emptied when these are read again.
    """

    name: str
    schema: str
    derived: bool = True


class Cursor(Struct, frozen=True, kw_only=True):
    """The last event that was read, and when that happened."""

    seq: int = 0
    at_s: float = 0.0


class MonitorStore:
    """The database. It is used in one thread at a time; readers open connections of their own.

    Within a transaction the head's tables, which nobody can change there, are ``head.jobs`` and so
    on.

    Args:
        path: of the file.
        tables: of those that feed it.
        head: path of the head's database.
    """

    def __init__(self, path: str, tables: Sequence[MonitorTable], *, head: str) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self.path = path
        self._tables = tables
        self.db = sqlite3.connect(
            f"file:{quote(path)}", uri=True, isolation_level=None, check_same_thread=False
        )
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = NORMAL")
        if self.db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            for (name,) in self.db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                self.db.execute(f'DROP TABLE "{name}"')
            self.db.execute(f"PRAGMA user_version = {VERSION}")
        self.db.executescript(_CURSOR + "".join(table.schema for table in tables))
        self.db.execute("ATTACH ? AS head", (f"file:{quote(head)}?mode=ro",))
        self.db.text_factory = text_of

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make all that is written inside durable together, or nothing of it."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    @property
    def cursor(self) -> Cursor:
        """Return the last event that was read; number 0: none."""
        row = self.db.execute("SELECT seq, at_s FROM cursor").fetchone()
        return Cursor() if row is None else Cursor(seq=row[0], at_s=row[1])

    def move_cursor(self, cursor: Cursor) -> None:
        """Note that all events to this one are read; inside a transaction."""
        self.db.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (cursor.seq, cursor.at_s))

    def empty(self) -> None:
        """Remove what is derived from events, which are read again from the first one."""
        with self.transaction() as db:
            for table in self._tables:
                if table.derived:
                    db.execute(f"DELETE FROM {table.name}")  # noqa: S608 # a constant
            db.execute("DELETE FROM cursor")

    def close(self) -> None:
        """Close the connection."""
        self.db.close()
