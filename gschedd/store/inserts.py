"""Many rows written by few statements.

Python gives its lock up for each statement and then has to get it back from the event loop, which
may keep it for milliseconds: a statement for each row made a commit of 200 rows take up to 0.4 s.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Final

from gschedd.store.seals import SqlValue

#: Rows of one statement; few sizes, so that SQLite need not prepare one again.
SIZES: Final = (32, 8, 4, 2, 1)
#: Values of one statement: SQLite before 3.32 takes 999.
VALUES_MAX: Final = 900


class Insert:
    """Writes rows into one table.

    Args:
        table: its name.
        columns: that each row has values for, in order.
        key: columns by which a row that is there is found and changed; none: each row is a new one.
        constant: columns that never change in a row: SQLite writes the indexes of all others anew.
        keep: what is there stays as it is.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[str],
        *,
        key: Sequence[str] = (),
        constant: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        values = f"({', '.join('?' * len(columns))})"
        kept = {*key, *constant}
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in kept)
        conflict = f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}" if key else ""
        if keep:
            conflict = " ON CONFLICT DO NOTHING"
        begin = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608 # names are constants
        self._statements = [
            (size, begin + ", ".join([values] * size) + conflict)
            for size in SIZES
            if size == 1 or size * len(columns) <= VALUES_MAX
        ]

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[SqlValue]]) -> None:
        """Write rows, in their order."""
        at = 0
        for size, statement in self._statements:
            while len(rows) - at >= size:
                db.execute(statement, tuple(chain.from_iterable(rows[at : at + size])))
                at += size
