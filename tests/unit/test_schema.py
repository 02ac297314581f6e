"""Migrations: from nothing, from each older version, never from a newer one."""

import os
import sqlite3
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
