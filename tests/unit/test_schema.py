"""Migrations: from nothing, from each older version, never from a newer one."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gsched.errors import ConfigError, StorageError
from gsched.failpoint import FailpointError, arm
from gschedd.store import sqlite
from gschedd.store.schema import MIGRATIONS, SCHEMA_VERSION
from tests.support.books import Books


def tables(path: str) -> dict[str, str]:
    """Return the definition of everything in a database, by name."""
    db = sqlite3.connect(path)
    rows = db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    db.close()
    return dict(rows)


def version(path: str) -> int:
    db = sqlite3.connect(path)
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(number)


def test_a_new_database_has_the_newest_schema(tmp_path: Path) -> None:
    """Version 0, an empty file, becomes what this program knows."""
    (tmp_path / "gsched.db").touch()

    books = Books(tmp_path)

    assert version(books.store.path) == SCHEMA_VERSION == len(MIGRATIONS)
    assert {"jobs", "specs", "attempts", "gpu_owners", "nodes", "events", "blobs", "meta"} <= set(
        tables(books.store.path)
    )
    assert not list(tmp_path.glob("*.schema-*")), "there was nothing to back up"


def test_t65_database_and_backup_are_their_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold scripts and environments; the umask of who starts the head says nothing of it."""
    before = os.umask(0)
    try:
        books = Books(tmp_path)
        books.submit()
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("gsched.db*")}
        books.store.close()
        step = "ALTER TABLE jobs ADD COLUMN colour TEXT"
        monkeypatch.setattr(sqlite, "MIGRATIONS", (*MIGRATIONS, step))
        monkeypatch.setattr(sqlite, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        Books(tmp_path).store.close()
    finally:
        os.umask(before)
    [backup] = tmp_path.glob("*.schema-*")
    modes[backup.name] = backup.stat().st_mode & 0o777

    assert len(modes) == 4
    assert modes == dict.fromkeys(modes, 0o600)


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A downgrade could lose what the newer one wrote."""
    books = Books(tmp_path)
    books.submit()
    books.store.close()
    db = sqlite3.connect(books.store.path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()

    with pytest.raises(ConfigError, match=f"has schema {SCHEMA_VERSION + 1}") as refused:
        Books(tmp_path)

    assert "newer gschedd" in refused.value.hint
    assert version(books.store.path) == SCHEMA_VERSION + 1


def test_a_step_is_made_after_a_backup_and_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next schema, killed once before its commit: the old one is there, then the new one."""
    books = Books(tmp_path)
    job = books.submit()
    books.store.close()
    step = "ALTER TABLE jobs ADD COLUMN colour TEXT; CREATE TABLE more (x INTEGER);"
    monkeypatch.setattr(sqlite, "MIGRATIONS", (*MIGRATIONS, step))
    monkeypatch.setattr(sqlite, "SCHEMA_VERSION", SCHEMA_VERSION + 1)

    killed = sqlite.Store(str(tmp_path))
    arm("head.migrate.before_commit:raise")
    try:
        with pytest.raises(FailpointError):
            killed.open()
    finally:
        arm("")
        killed._db.close()
    assert version(books.store.path) == SCHEMA_VERSION
    assert "more" not in tables(books.store.path)
    again = Books(tmp_path)

    assert version(again.store.path) == SCHEMA_VERSION + 1
    assert "more" in tables(again.store.path)
    assert job in again.head.state.jobs
    backup = f"{again.store.path}.schema-{SCHEMA_VERSION}"
    assert version(backup) == SCHEMA_VERSION
    assert "more" not in tables(backup)


def test_a_step_that_fails_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any failure of storage."""
    monkeypatch.setattr(sqlite, "MIGRATIONS", ("CREATE NONSENSE;",))

    with pytest.raises(StorageError, match="syntax error"):
        Books(tmp_path)


# --- GPUs that are shared: from version 7 to 8 ---


def stored_database(path: Path) -> None:
    """Write the database of a head of version 7 that is in use.

    Job 1 has two of four GPUs, 2 has ended, 3 runs without a GPU, 4 waits for two GPUs.
    """
    text = Path(__file__).parents[1].joinpath("golden", "database-7.sql").read_text()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(text)


def owners(path: str) -> list[tuple[int | str, ...]]:
    """Return who owns what of which GPU."""
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT gpu, job, attempt, percent, memory_bytes FROM gpu_owners ORDER BY gpu, job"
        return db.execute(query).fetchall()


def test_who_owned_a_gpu_owns_all_of_it(tmp_path: Path) -> None:
    """A head of version 7 has left a job on GPUs; it ends as ever, and the next one gets them."""
    stored_database(tmp_path / "gsched.db")

    books = Books(tmp_path)

    assert version(books.store.path) == SCHEMA_VERSION
    assert owners(books.store.path) == [(0, 1, 1, 100, 0), (1, 1, 1, 100, 0)]
    books.register(cpus=8, gpus=4)
    books.exit(1)
    assert owners(books.store.path) == []
    books.schedule()
    assert owners(books.store.path) == [(0, 4, 1, 100, 0), (1, 4, 1, 100, 0)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((1, 41, 0), "more than 100 %"),
        ((2, 100, 0), "more than 100 %"),
        ((1, 40, 9 * 2**30), "memory"),
        ((1, 0, 0), "CHECK"),
        ((1, 40, -1), "CHECK"),
    ],
)
def test_the_database_gives_no_gpu_to_more_than_it_has(
    tmp_path: Path, more: tuple[int, int, int], why: str
) -> None:
    """Whatever the head believes: GPU 1, of 16 GiB, has 60 % and 8 GiB given; GPU 2 is whole."""
    books = Books(tmp_path)
    with closing(sqlite3.connect(books.store.path)) as db:
        db.executemany("INSERT INTO gpus VALUES ('n1', ?, ?)", [(1, 2**34), (2, 2**34)])
        own = "INSERT INTO gpu_owners VALUES ('n1', ?, ?, 1, ?, ?)"
        db.execute(own, (1, 7, 60, 2**33))
        db.execute(own, (2, 8, 1, 0))
        gpu, percent, size = more

        with pytest.raises(sqlite3.IntegrityError, match=why):
            db.execute(own, (gpu, 9, percent, size))
        db.execute(own, (1, 9, 40, 2**33))


def test_a_node_that_registers_tells_the_memory_of_its_gpus(tmp_path: Path) -> None:
    """What it has now, not what it had before."""
    books = Books(tmp_path)
    books.register(gpus=4, gpu_memory_bytes=2**34)
    books.register(gpus=2, gpu_memory_bytes=2**35)

    with closing(sqlite3.connect(books.store.path)) as db:
        query = "SELECT node, gpu, memory_bytes FROM gpus"
        assert db.execute(query).fetchall() == [("n1", 0, 2**35), ("n1", 1, 2**35)]
