"""The schema: of a new database, and of one that the version before has left."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gsched.errors import ConfigError, StorageError
from gsched.failpoint import FailpointError, arm
from gschedd.models.robust import RobustModel
from gschedd.store import schema, sqlite
from gschedd.store.purge import Keep
from gschedd.store.rows import SELECT_LIVE_ATTEMPTS
from gschedd.store.schema import SCHEMA_VERSION, VERSION_BEFORE
from gschedd.store.scrub import Place, check_slice
from tests.support.books import Books


def tables(path: str) -> dict[str, list[tuple[object, ...]]]:
    """Return the columns of each table of a database, and the columns of each index, by name."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT type, name FROM sqlite_master").fetchall()
        pragma = {"table": "table_xinfo", "index": "index_xinfo"}
        return {
            name: db.execute(f"PRAGMA {pragma[kind]}({name})").fetchall() if kind in pragma else []
            for kind, name in found
        }


def version(path: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        (number,) = db.execute("PRAGMA user_version").fetchone()
    return int(number)


def stored_database(directory: Path) -> str:
    """Write the database that a head of the version before has left; return its path.

    Job 1 has two of four GPUs, 2 has ended, and its row is damaged, 3 migrates, 4 waits for two
    GPUs: see `tests/golden/database_14.py`.
    """
    text = Path(__file__).parents[1].joinpath("golden", "database-14.sql").read_text()
    path = str(directory / "gsched.db")
    with closing(sqlite3.connect(path)) as db:
        db.executescript(text)
    return path


def owners(path: str) -> list[tuple[int | str, ...]]:
    """Return who owns what of which GPU."""
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT gpu, job, attempt, percent FROM gpu_owners ORDER BY gpu, job"
        return db.execute(query).fetchall()


def damaged(path: str) -> list[str]:
    """Return which rows are damaged."""
    found: list[str] = []
    place: Place | None = Place()
    with closing(sqlite3.connect(path)) as db:
        while place is not None:
            more, place = check_slice(db, place)
            found += [f"{each.kind} {each.key}" for each in more]
    return found


def test_a_new_database_has_the_newest_schema(tmp_path: Path) -> None:
    """Version 0, an empty file, becomes what this program knows."""
    (tmp_path / "gsched.db").touch()

    books = Books(tmp_path)

    assert version(books.store.path) == SCHEMA_VERSION
    assert {"jobs", "specs", "attempts", "gpu_owners", "nodes", "events", "blobs", "meta"} <= set(
        tables(books.store.path)
    )
    assert not list(tmp_path.glob("*.schema-*")), "there was nothing to back up"


def test_t65_database_and_backup_are_their_owners_alone(tmp_path: Path) -> None:
    """They hold scripts and environments; the umask of who starts the head says nothing of it."""
    before = os.umask(0)
    try:
        stored_database(tmp_path)
        books = Books(tmp_path)
        books.submit()
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("gsched.db*")}
        books.store.close()
    finally:
        os.umask(before)

    assert len(modes) == 4
    assert modes == dict.fromkeys(modes, 0o600)


@pytest.mark.parametrize(
    ("found", "message", "hint"),
    [
        (SCHEMA_VERSION + 1, f"this gsched knows up to {SCHEMA_VERSION}", "newer gsched"),
        (VERSION_BEFORE - 1, f"takes over schema {VERSION_BEFORE} only", "start a gschedd that"),
        (1, f"takes over schema {VERSION_BEFORE} only", f"knows schema {VERSION_BEFORE} on it"),
    ],
)
def test_the_database_of_any_other_version_is_refused_and_left_alone(
    tmp_path: Path, found: int, message: str, hint: str
) -> None:
    """A newer program may have written what this one would lose, an older one what it misreads."""
    books = Books(tmp_path)
    books.submit()
    books.store.close()
    with closing(sqlite3.connect(books.store.path)) as db:
        db.execute(f"PRAGMA user_version = {found}")

    with pytest.raises(ConfigError, match=f"has schema {found}, ") as refused:
        Books(tmp_path)

    assert message in refused.value.message
    assert hint in refused.value.hint
    assert version(books.store.path) == found
    assert not list(tmp_path.glob("*.schema-*"))


def test_the_database_of_the_version_before_is_taken_over_with_all_that_is_in_it(
    tmp_path: Path,
) -> None:
    """Its jobs end as ever, others get their GPUs, and running jobs accrue usage."""
    stored_database(tmp_path)

    books = Books(tmp_path, make_model=RobustModel)

    assert version(books.store.path) == SCHEMA_VERSION
    assert damaged(books.store.path) == ["job 2"], "it was"
    moving = books.head.state.jobs[3]
    assert (moving.guaranteed, moving.moves_requested, moving.target.request) == (True, 2, 2)
    assert owners(books.store.path) == [(0, 1, 1, 100), (1, 1, 1, 100)]
    assert books.head.state.usage.rows == {}
    assert books.head.state.usage.running == {1: (("", "alice"), books.now_s)}
    books.exit(1, wall_s=100.0)
    books.register(cpus=8, gpus=4)
    books.schedule()
    assert owners(books.store.path) == [(0, 4, 1, 100), (1, 4, 1, 100)]
    books.reopen()
    assert set(books.head.state.jobs) == {3, 4}
    assert books.head.state.usage.rows["", "alice"].gpu_s == {"": 200.0}


def test_a_database_that_was_taken_over_is_as_a_new_one(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    stored_database(tmp_path / "old")

    old, new = (tables(Books(tmp_path / name).store.path) for name in ("old", "new"))

    assert old == new


def test_a_start_looks_at_no_attempt_that_has_ended(tmp_path: Path) -> None:
    """Millions of them may be kept."""
    books = Books(tmp_path)
    with closing(sqlite3.connect(books.store.path)) as db:
        plan = db.execute("EXPLAIN QUERY PLAN " + SELECT_LIVE_ATTEMPTS).fetchall()

    assert [step[3] for step in plan] == ["SCAN attempts USING INDEX live_attempts"]


def test_a_database_is_taken_over_after_a_backup_and_as_a_whole(tmp_path: Path) -> None:
    """Killed once before the commit: the old one is there, then the new one."""
    path = stored_database(tmp_path)
    killed = sqlite.Store(str(tmp_path))
    arm("head.migrate.before_commit:raise")
    try:
        with pytest.raises(FailpointError):
            killed.open()
    finally:
        arm("")
        killed._db.close()
    assert version(path) == VERSION_BEFORE
    assert "runs_of_kind" in tables(path)

    again = Books(tmp_path)

    assert version(again.store.path) == SCHEMA_VERSION
    assert "runs_of_kind" not in tables(path)
    backup = f"{again.store.path}.schema-{VERSION_BEFORE}"
    assert version(backup) == VERSION_BEFORE
    assert "runs_of_kind" in tables(backup)


def test_a_schema_that_fails_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any failure of storage."""
    monkeypatch.setattr(schema, "SCHEMA", "CREATE NONSENSE;")

    with pytest.raises(StorageError, match="syntax error"):
        Books(tmp_path)


# --- GPUs that are shared ---


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


# --- usage ---


def test_usage_stays_when_old_jobs_are_removed_and_a_damaged_row_of_it_alone_is_left_out(
    tmp_path: Path,
) -> None:
    books = Books(tmp_path)
    books.register(cpus=8)
    for account in ("lab", "other"):
        books.submit("nodes=1", account=account)
    books.schedule()
    for job in (1, 2):
        books.start(job)
        books.exit(job, wall_s=50.0)
    now_s = books.now_s + 1e9
    while books.store.purge(Keep(jobs_days=1), now_s).more:
        pass
    usage = dict(books.head.state.usage.rows)
    books.reopen()
    assert books.head.state.usage.rows == usage
    assert usage["lab", "alice"].cpu_s == 50.0

    with closing(sqlite3.connect(books.store.path)) as db:
        db.execute("UPDATE usage SET data = replace(data, '50', '90') WHERE project = 'other'")
        db.commit()
    assert damaged(books.store.path) == ["usage 'alice' in project 'other'"]
    books.reopen()
    assert set(books.head.state.usage.rows) == {("lab", "alice")}
