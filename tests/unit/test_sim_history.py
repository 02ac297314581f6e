"""A site's past: databases of older heads are upgraded on a copy, others are refused in words."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gsched.errors import ConfigError, UsageError
from gschedd.sim.history import read_history
from gschedd.store.schema import SCHEMA_VERSION, VERSION_BEFORE, create


def database(path: Path, version: int) -> str:
    """Write an empty database, or the one of the version before; return its path."""
    with closing(sqlite3.connect(path)) as db:
        if version == VERSION_BEFORE:
            golden = Path(__file__).parents[1] / "golden" / "database-14.sql"
            db.executescript(golden.read_text())
        else:
            create(db)
            db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    return str(path)


def read(path: str) -> None:
    """Read all of it."""
    read_history(path, since_s=0.0, until_s=None, limit=None)


@pytest.mark.parametrize("version", [VERSION_BEFORE, SCHEMA_VERSION])
def test_the_database_of_a_head_is_read_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    """It holds no job that has run, which is all that there is to complain about."""
    path = database(tmp_path / "old #1.db", version)
    before = Path(path).read_bytes()

    with pytest.raises(UsageError, match="holds no job of that time"):
        read(path)
    assert Path(path).read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["old #1.db"]


def test_the_database_of_an_older_head_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "old.db", VERSION_BEFORE - 1)

    with pytest.raises(ConfigError, match=f"has schema {VERSION_BEFORE - 1}, this gsched takes"):
        read(path)


def test_the_database_of_a_newer_head_is_refused(tmp_path: Path) -> None:
    """What it means is not known here."""
    path = database(tmp_path / "new.db", SCHEMA_VERSION)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    with pytest.raises(ConfigError, match=f"has schema {SCHEMA_VERSION + 1}, this gsched knows"):
        read(path)


@pytest.mark.parametrize("content", ["no database at all\n" * 50, ""])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    """An empty one, too: it has none of the tables."""
    path = tmp_path / "x.db"
    path.write_text(content)

    with pytest.raises((ConfigError, UsageError)):
        read(str(path))
