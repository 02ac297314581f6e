"""A site's past: databases of older heads are upgraded on a copy, others are refused in words."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gsched.errors import ConfigError, UsageError
from gschedd.sim.history import read_history
from gschedd.store.schema import MIGRATIONS, SCHEMA_VERSION


def database(path: Path, version: int) -> str:
    """Write an empty database as the head of a schema version makes it; return its path."""
    with closing(sqlite3.connect(path)) as db:
        for number, step in enumerate(MIGRATIONS[:version], 1):
            db.executescript(step)
            db.execute(f"PRAGMA user_version = {number}")
        db.commit()
    return str(path)


def read(path: str) -> None:
    """Read all of it."""
    read_history(path, since_s=0.0, until_s=None, limit=None)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_the_database_of_an_older_head_is_read_and_left_as_it_is(
    tmp_path: Path, version: int
) -> None:
    """It holds no job, which is all that there is to complain about."""
    path = database(tmp_path / "old #1.db", version)
    before = Path(path).read_bytes()

    with pytest.raises(UsageError, match="holds no job of that time"):
        read(path)
    assert Path(path).read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["old #1.db"]


def test_the_database_of_a_newer_head_is_refused(tmp_path: Path) -> None:
    """What it means is not known here."""
    path = database(tmp_path / "new.db", SCHEMA_VERSION)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    with pytest.raises(ConfigError, match=f"has schema {SCHEMA_VERSION + 1}, this gsim knows"):
        read(path)


@pytest.mark.parametrize("content", ["no database at all\n" * 50, ""])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    """An empty one, too: it has none of the tables."""
    path = tmp_path / "x.db"
    path.write_text(content)

    with pytest.raises((ConfigError, UsageError)):
        read(str(path))
