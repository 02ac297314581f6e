"""Backups: what they hold, that damage is found, and that a restore loses nothing that is there."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gsched.clock import SystemClock
from gsched.errors import (
    ConfigError,
    GschedError,
    InvalidRequestError,
    StorageError,
    StorageFullError,
    TryAgainError,
)
from gsched.failpoint import FailpointError, arm
from gschedd.core.requests.queues import Overrides, QueueOverride
from gschedd.daemon.lock import no_head
from gschedd.store.queues import read_overrides, write_overrides
from gschedd.store.schema import SCHEMA_VERSION, VERSION_BEFORE
from gschedd.upkeep.backups import BackupSource, SavedBackup, back_up, read_manifest, verify
from gschedd.upkeep.restoring import restore
from gschedd.upkeep.upgrading import rehearse, upgrade
from tests.support.books import Books
from tests.support.disks import fill, free, small_disk
from tests.unit.test_schema import stored_database, version

NOW_S = 1_795_742_100.0  # 2026-11-27 01:15:00
DIGEST = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of "x"


@pytest.fixture
def books(tmp_path: Path) -> Books:
    state = tmp_path / "state"
    (state / "code" / "1000").mkdir(parents=True)
    (state / "code" / "1000" / DIGEST).write_bytes(b"x")
    (state / "code" / "1000" / f"{DIGEST[::-1]}.part").write_bytes(b"half")
    books = Books(state)
    books.register(cpus=4)
    for _ in range(3):
        books.submit()
    return books


def quiet(what: str, done: int, total: int) -> None:
    del what, done, total


def saved(books: Books, *, keep: int = 0, later_s: float = 0.0) -> SavedBackup:
    """Make a backup of a head that runs."""
    state = books.directory
    target = state.parent / "backups"
    target.mkdir(exist_ok=True)
    (state.parent / "gsched.toml").write_text("[head]\n")
    origin = BackupSource(state_dir=str(state), config=str(state.parent / "gsched.toml"))
    return back_up(origin, str(target), now_s=NOW_S + later_s, keep=keep, progress=quiet)


def put_back(backup: SavedBackup, books: Books) -> str:
    done = restore(backup.path, str(books.directory), now_s=NOW_S, progress=quiet)
    return done.kept


def jobs_in(path: str) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [number for (number,) in db.execute("SELECT id FROM jobs ORDER BY id")]


def test_a_backup_of_a_running_head_is_one_moment_and_holds_what_belongs_to_it(
    books: Books,
) -> None:
    with closing(sqlite3.connect(books.directory / "notify.db")) as db:
        db.execute("CREATE TABLE outbox (id INTEGER)")

    backup = saved(books)

    assert backup.path.endswith("/gsched-20261127T011500Z")
    assert sorted(backup.manifest.files) == [
        f"code/1000/{DIGEST}",
        "gsched.db",
        "gsched.toml",
        "notify.db",
    ]
    assert backup.left_out == ()
    assert jobs_in(f"{backup.path}/gsched.db") == [1, 2, 3]
    assert verify(backup.path, quiet) == backup.manifest
    assert sorted(os.listdir(backup.path)) == [
        "MANIFEST.json",
        "code",
        "gsched.db",
        "gsched.toml",
        "notify.db",
    ]


def test_only_the_newest_backups_of_the_cluster_are_kept(books: Books, tmp_path: Path) -> None:
    first = saved(books)
    (tmp_path / "backups" / "notes").mkdir()
    (tmp_path / "backups" / "gsched-20260101T000000Z").mkdir()  # none of ours: it has no manifest
    saved(books, later_s=1, keep=2)

    third = saved(books, later_s=2, keep=2)

    assert third.removed == (first.path,)
    assert sorted(os.listdir(tmp_path / "backups")) == [
        "gsched-20260101T000000Z",
        "gsched-20261127T011501Z",
        "gsched-20261127T011502Z",
        "notes",
    ]


def test_code_snapshots_are_shared_with_the_backup_before_unless_they_are_damaged_there(
    books: Books,
) -> None:
    first = Path(saved(books).path) / "code" / "1000" / DIGEST
    second = Path(saved(books, later_s=1).path) / "code" / "1000" / DIGEST
    assert second.stat().st_ino == first.stat().st_ino
    first.write_bytes(b"y")

    third = Path(saved(books, later_s=2).path) / "code" / "1000" / DIGEST

    assert third.read_bytes() == b"x"


def test_a_damaged_row_is_saved_and_named_and_no_older_backup_goes_for_it(books: Books) -> None:
    good = saved(books)
    with closing(sqlite3.connect(books.store.path)) as db:
        db.execute("UPDATE jobs SET cpu_s = 1e6 WHERE id = 2")
        db.commit()

    bad = saved(books, later_s=1, keep=1)

    assert bad.manifest.contents.damaged == ("job 2: its checksum does not match",)
    assert not bad.removed
    assert os.path.exists(good.path)


def test_two_backups_to_one_directory_at_a_time_are_refused(books: Books, tmp_path: Path) -> None:
    arm("backup.before_rename:raise")
    with pytest.raises(FailpointError):
        saved(books)
    arm("")
    assert os.listdir(tmp_path / "backups") == [], "nothing is left of one that failed"
    saved(books)

    with pytest.raises(TryAgainError, match="exists"):
        saved(books)


def test_what_a_killed_backup_has_left_is_no_backup_and_goes_with_the_next(
    books: Books, tmp_path: Path
) -> None:
    left = tmp_path / "backups" / "gsched-20261126T000000Z.partial"
    left.mkdir(parents=True)
    with pytest.raises(InvalidRequestError, match="not a backup of gsched"):
        verify(str(left), quiet)

    saved(books)

    assert not left.exists()


@pytest.mark.parametrize("name", ["gsched.db", f"code/1000/{DIGEST}", "MANIFEST.json"])
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_backup_is_refused_and_the_state_is_left_alone(
    books: Books, name: str, how: str
) -> None:
    backup = saved(books)
    books.store.close()
    before = sorted(os.listdir(books.directory))
    file = Path(backup.path) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if how == "cut" else content)
    if (name, how) == ("MANIFEST.json", "flipped"):
        file.write_bytes(file.read_bytes().replace(b'"jobs": 3', b'"jobs": 4'))

    with pytest.raises((StorageError, InvalidRequestError)):
        put_back(backup, books)

    assert sorted(set(os.listdir(books.directory)) - {"gschedd.lock"}) == before


def test_a_restore_keeps_what_was_there_and_names_the_waiting_jobs_that_are_lost(
    books: Books,
) -> None:
    backup = saved(books)
    books.submit()
    state = str(books.directory)
    books.store.close()

    done = restore(backup.path, state, now_s=NOW_S, progress=quiet)

    assert (done.next_job, [job.id for job in done.waiting]) == (5, [4])
    assert jobs_in(books.store.path) == [1, 2, 3]
    assert jobs_in(f"{done.kept}/gsched.db") == [1, 2, 3, 4]
    again = Books(books.directory)
    assert "job 4" in again.opened.behind
    assert again.head.state.next_job > 5, "no number is given out twice"


def test_a_restore_into_an_empty_directory_gives_a_head_that_knows_it_is_a_copy(
    books: Books, tmp_path: Path
) -> None:
    backup = saved(books)
    (tmp_path / "other").mkdir()

    done = restore(backup.path, str(tmp_path / "other"), now_s=NOW_S, progress=quiet)

    assert (done.kept, done.next_job) == ("", 0)
    assert (tmp_path / "other" / "code" / "1000" / DIGEST).read_bytes() == b"x"
    other = Books(tmp_path / "other")
    assert other.opened.is_copy
    assert sorted(other.head.state.jobs) == [1, 2, 3]


def test_what_operators_changed_of_queues_is_restored_where_nothing_is_there(
    books: Books, tmp_path: Path
) -> None:
    night = Overrides(queues={"night": QueueOverride(created=True, allow_users=("ann",))})
    write_overrides(str(books.directory), night)
    backup = saved(books)
    (tmp_path / "other").mkdir()
    restore(backup.path, str(tmp_path / "other"), now_s=NOW_S, progress=quiet)
    assert read_overrides(str(tmp_path / "other")) == night

    later = Overrides(scheduling=False)
    write_overrides(str(books.directory), later)
    books.store.close()
    put_back(backup, books)
    assert read_overrides(str(books.directory)) == later


@pytest.mark.parametrize("point", ["restore.before_removal", "restore.before_database"])
def test_a_restore_that_dies_leaves_the_old_database_or_none_and_may_be_repeated(
    books: Books, point: str
) -> None:
    backup = saved(books)
    books.submit()
    books.store.close()
    arm(f"{point}:raise")
    with pytest.raises(FailpointError):
        put_back(backup, books)
    arm("")

    if point == "restore.before_database":
        with pytest.raises(ConfigError, match="is gone, but jobs up to 4 have been in it"):
            Books(books.directory)
    else:
        assert jobs_in(books.store.path) == [1, 2, 3, 4]
    (kept,) = books.directory.glob("replaced-*")
    restore(backup.path, str(books.directory), now_s=NOW_S + 1, progress=quiet)
    assert jobs_in(f"{kept}/gsched.db") == [1, 2, 3, 4]
    assert jobs_in(books.store.path) == [1, 2, 3]


def test_a_restore_is_refused_while_a_head_runs_and_for_another_cluster(
    books: Books, tmp_path: Path
) -> None:
    backup = saved(books)
    with no_head(str(books.directory)), pytest.raises(ConfigError, match="another gschedd"):
        put_back(backup, books)
    other = Books(tmp_path)
    other.submit()
    other.store.close()

    with pytest.raises(InvalidRequestError, match="the backup is of cluster"):
        put_back(backup, other)


def test_a_backup_that_finds_no_room_leaves_nothing(books: Books, tmp_path: Path) -> None:
    with small_disk(tmp_path / "backups", "40m") as disk:
        fill(disk)
        with pytest.raises(StorageFullError, match="are to stay free"):
            saved(books)
        free(disk)
        saved(books)
        assert os.listdir(disk) == ["gsched-20261127T011500Z"]


def test_a_restore_that_finds_no_room_leaves_the_state_alone(books: Books, tmp_path: Path) -> None:
    backup = saved(books)
    with small_disk(tmp_path / "small", "4m") as disk:
        with pytest.raises(StorageFullError):
            restore(backup.path, str(disk), now_s=NOW_S, progress=quiet)
        assert os.listdir(disk) == ["gschedd.lock"]


def test_the_step_of_the_schema_is_rehearsed_on_a_copy_and_then_taken(tmp_path: Path) -> None:
    path = stored_database(tmp_path)

    tried = rehearse(str(tmp_path), clock=SystemClock(), progress=quiet)

    assert tried is not None
    assert (tried.before, tried.contents.schema) == (VERSION_BEFORE, SCHEMA_VERSION)
    assert tried.contents.damaged == ("job 2: its checksum does not match",), "it was before"
    assert version(path) == VERSION_BEFORE
    assert os.listdir(tmp_path) == ["gsched.db"]
    assert upgrade(str(tmp_path), clock=SystemClock(), progress=quiet) is not None
    assert version(path) == SCHEMA_VERSION
    assert version(f"{path}.schema-{VERSION_BEFORE}") == VERSION_BEFORE
    assert rehearse(str(tmp_path), clock=SystemClock(), progress=quiet) is None


def test_a_rehearsal_that_fails_leaves_the_database_alone(tmp_path: Path) -> None:
    path = stored_database(tmp_path)
    arm("head.migrate.before_commit:raise")
    with pytest.raises(FailpointError):
        upgrade(str(tmp_path), clock=SystemClock(), progress=quiet)
    arm("")
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE attempts_before (a)")
    with pytest.raises(GschedError):
        upgrade(str(tmp_path), clock=SystemClock(), progress=quiet)

    assert version(path) == VERSION_BEFORE
    assert not list(tmp_path.glob("*.schema-*"))


def test_a_manifest_of_a_backup_is_read_again_as_it_was_written(books: Books) -> None:
    backup = saved(books)

    assert read_manifest(backup.path) == backup.manifest
