"""A connection to SQLite that keeps the statements of a transaction for the replicated log."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gschedd.store.journal import Statement
from gschedd.store.seals import SqlValue

_WRITES: Final = ("INSERT", "UPDATE", "DELETE")


class RecordingConnection(sqlite3.Connection):
    """Records what `execute` and `executemany` change since the last ``BEGIN``.

    Run again on an equal database they change the same: a statement that depends on the clock, on
    chance or on an order that is not unique must not be used on the writer's connection.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorded: list[tuple[str, list[tuple[SqlValue, ...]]]] = []

    def execute(  # type: ignore[override] # the parameters that this package uses
        self, sql: str, parameters: Sequence[SqlValue] = ()
    ) -> sqlite3.Cursor:
        """Execute a statement."""
        if sql.startswith("BEGIN"):
            self._recorded.clear()
        elif sql.lstrip().startswith(_WRITES):
            self._record(sql, [tuple(parameters)])
        return super().execute(sql, parameters)

    def executemany(  # type: ignore[override] # likewise
        self, sql: str, parameters: Iterable[Sequence[SqlValue]]
    ) -> sqlite3.Cursor:
        """Execute a statement with the values of each run."""
        runs = [tuple(each) for each in parameters]
        if runs:
            self._record(sql, runs)
        return super().executemany(sql, runs)

    def _record(self, sql: str, runs: list[tuple[SqlValue, ...]]) -> None:
        if self._recorded and self._recorded[-1][0] == sql:
            self._recorded[-1][1].extend(runs)
        else:
            self._recorded.append((sql, runs))

    def recorded(self) -> tuple[Statement, ...]:
        """Return what the transaction that is open has changed."""
        return tuple(Statement(sql, tuple(runs)) for sql, runs in self._recorded)
