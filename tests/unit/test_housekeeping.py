"""The daily purge: all of it, slice by slice, and what happens when the database says no."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from gsched.clock import SystemClock
from gsched.config.tables import LimitsConfig
from gsched.errors import StorageError, TryAgainError
from gschedd.daemon.housekeeping import Housekeeping
from gschedd.models.robust import RobustModel
from gschedd.store.code import CodeStore
from gschedd.store.purge import SLICE, Keep
from tests.support.books import Books, batch_of
from tests.unit.test_history import FULL, table


class Writer:
    """Stands where the engine's writer is; counts how often commits could have had their turn."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self, work: Callable[[], None]) -> None:
        self.turns += 1
        await asyncio.sleep(0)
        work()


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Return a store with two slices and a half of runs that are much too old."""
    made = Books(tmp_path, make_model=RobustModel)
    runs = [structs.replace(FULL, job=number) for number in range(2 * SLICE + SLICE // 2)]
    made.store.commit(batch_of([], made.head.state, runs=runs))
    return made


def housekeeping(books: Books, writer: Writer, keep: Keep | None = None) -> Housekeeping:
    return Housekeeping(
        store=books.store,
        in_writer=writer.run,
        clock=SystemClock(),
        keep=keep or Keep(days=1),
        code=CodeStore(str(Path(books.store.path).parent / "code"), LimitsConfig()),
    )


def test_all_that_is_old_goes_in_steps(books: Books) -> None:
    """Between which others have their turn."""
    writer = Writer()

    asyncio.run(housekeeping(books, writer).purge())

    assert table(books.store.path) == []
    assert writer.turns == 6, "for the time, users and code snapshots, and three slices"


def test_finished_jobs_beyond_a_users_number_go_in_steps(books: Books) -> None:
    """More of them than one slice: others have their turn in between."""
    db = sqlite3.connect(books.store.path)
    names = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
    job = books.submit()
    row = dict(zip(names, db.execute("SELECT * FROM jobs").fetchone(), strict=True))
    for number in range(job + 1, job + SLICE + 12):
        ended = row | {"id": number, "state": "done", "ended_s": number, "client_key": None}
        db.execute(f"INSERT INTO jobs VALUES ({','.join('?' * len(names))})", [*ended.values()])
    db.commit()
    writer = Writer()
    keep = Keep(jobs_per_user=7)

    asyncio.run(housekeeping(books, writer, keep).purge_users(keep))

    left = [number for (number,) in db.execute("SELECT id FROM jobs ORDER BY id")]
    db.close()
    assert left == [job, *range(job + SLICE + 5, job + SLICE + 12)]
    assert writer.turns == 4, "two slices, and twice to look for a user"


def test_a_database_that_fails_is_told_so_that_the_head_stops(books: Books) -> None:
    """As a commit that fails does."""
    books.store._db.execute("DROP TABLE history")

    with pytest.raises(StorageError, match="no such table"):
        asyncio.run(housekeeping(books, Writer()).purge())


def test_a_database_that_is_held_can_be_purged_later(books: Books) -> None:
    """Nothing is lost by waiting, so nothing stops."""
    books.store._db.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(books.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(TryAgainError):
        asyncio.run(housekeeping(books, Writer()).purge())

    other.execute("ROLLBACK")
    other.close()
    assert len(table(books.store.path)) == 2 * SLICE + SLICE // 2
    asyncio.run(housekeeping(books, Writer()).purge())
    assert table(books.store.path) == []
