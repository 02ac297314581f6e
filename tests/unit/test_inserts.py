"""Rows written many at a time are those that were given, in their order."""

import sqlite3
from collections.abc import Iterator

import pytest

from gschedd.store.inserts import SIZES, VALUES_MAX, Insert


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with sqlite3.connect(":memory:") as made:
        made.execute("CREATE TABLE t (n INTEGER PRIMARY KEY AUTOINCREMENT, k TEXT UNIQUE, v TEXT)")
        yield made


def content(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT k, v FROM t ORDER BY n").fetchall()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, SIZES[0], SIZES[0] + 1, 3 * SIZES[0] + 15])
def test_all_rows_are_written_in_order(db: sqlite3.Connection, count: int) -> None:
    rows = [(f"k{number}", f"v{number}") for number in range(count)]
    Insert("t", ("k", "v")).run(db, rows)
    assert content(db) == rows


def test_the_last_row_of_a_key_counts(db: sqlite3.Connection) -> None:
    """Also within one statement, and over what was there."""
    change = Insert("t", ("k", "v"), key=("k",))
    change.run(db, [("a", "old"), ("b", "old")])
    change.run(db, [("a", "1"), *[(f"x{number}", "-") for number in range(30)], ("a", "2")])
    assert content(db)[:2] == [("a", "2"), ("b", "old")]
    assert len(content(db)) == 32


def test_what_is_there_can_be_kept(db: sqlite3.Connection) -> None:
    keep = Insert("t", ("k", "v"), keep=True)
    keep.run(db, [("a", "first"), ("a", "second")])
    keep.run(db, [("a", "third"), ("b", "first")])
    assert content(db) == [("a", "first"), ("b", "first")]


def test_columns_that_never_change_are_left_alone(db: sqlite3.Connection) -> None:
    """So are their indexes: SQLite would remove the entry of each row and make it again."""
    db.execute("CREATE INDEX values_of_t ON t (v)")
    columns = ("n", "k", "v")
    either = [Insert("t", columns, key=("n",), constant=each) for each in ((), ("v",))]
    removed = []
    for change in either:
        change.run(db, [(1, "a", "first")])
        _, statement = change._statements[-1]
        plan = db.execute(f"EXPLAIN {statement}", (1, "b", "first")).fetchall()
        removed.append(sum(operation == "IdxDelete" for _, operation, *_ in plan))

    assert removed == [2, 1]
    either[1].run(db, [(1, "c", "second"), (2, "d", "second")])
    assert content(db) == [("c", "first"), ("d", "second")]


def test_wide_rows_stay_within_what_old_sqlite_takes() -> None:
    """Rows of 100 values: no statement has more than `VALUES_MAX`."""
    columns = [f"c{number}" for number in range(100)]
    with sqlite3.connect(":memory:") as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, VALUES_MAX)
        db.execute(f"CREATE TABLE w ({', '.join(columns)})")
        Insert("w", columns).run(db, [tuple(range(row, row + 100)) for row in range(40)])
        assert [row[0] for row in db.execute("SELECT c0 FROM w")] == list(range(40))
