"""The store: what was committed is there again, and every failure is what it is."""

import hashlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from gsched.errors import ConfigError, StorageError, TryAgainError
from gsched.failpoint import FailpointError, arm
from gsched.model.arrays import count, read_spans
from gsched.model.ids import element_number
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol import actions as a
from gsched.protocol.actions import Alteration
from gschedd.core.apply.nodes import SAFE_ID_JUMP
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.keys import ClientKeys
from gschedd.core.state.records import Job
from gschedd.store.mark import Mark, MarkFile, identity_of
from gschedd.store.purge import KEPT_OF_JOB
from gschedd.store.reader import HistoryFilter, Reader
from gschedd.store.sqlite import DiskFullError, Store
from tests.support.books import Books, batch_of
from tests.support.invariants import content
from tests.support.world import ADMIN, ALICE, BEGIN_S, submission


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Return a head with a store, and one node."""
    made = Books(tmp_path)
    made.register(cpus=4, gpu_types=("a", "b"))
    return made


def reader(books: Books) -> Reader:
    return Reader(books.store.path)


# --- round trips ---


def test_what_was_committed_is_loaded_again(books: Books) -> None:
    """Jobs in every state, an attempt, a node: the whole state, and the next id."""
    running = books.submit("nodes=1:gpus=1")
    books.schedule()
    books.submit("nodes=1:gpus=2,walltime=60", key="abc", start_after_s=0.0)
    books.submit(holds=("user",))
    books.submit(start_after_s=BEGIN_S + 100)
    deleted = books.submit()
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=deleted, action=a.DeleteJob()), books.now_s)
    )
    before = content(books.head.state)

    books.reopen()

    assert content(books.head.state) == before
    assert books.head.state.jobs[running].attempt is not None
    assert books.submit() == deleted + 1


def test_an_array_is_loaded_again_with_its_elements(books: Books) -> None:
    """In few rows, however many elements it has; what is no job yet is made after the restart."""
    array = books.submit("nodes=1:ppn=1", array="0-99999%6")
    books.schedule()
    books.take(
        books.head.command(
            c.ActOnJob(caller=ALICE, job=array, action=a.HoldJob(), elements=read_spans("50-60")),
            books.now_s,
        )
    )
    before = content(books.head.state)
    assert len(books.head.state.jobs) == 7

    books.reopen()

    assert content(books.head.state) == before
    elements = books.head.state.jobs[array].elements
    assert elements is not None
    assert count(elements.left) + count(elements.held) == 100_000 - 6
    first, second = (books.head.state.jobs[element_number(array, index)] for index in (0, 1))
    assert first.attempt is not None
    assert first.spec.request is second.spec.request
    rows = sqlite3.connect(books.store.path).execute("SELECT count(*) FROM jobs").fetchone()
    assert rows == (7,)
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=array, action=a.DeleteJob()), books.now_s)
    )
    books.reopen()
    assert not books.head.state.jobs[array].elements.left  # type: ignore[union-attr] # it is an array
    assert books.submit() == array + 1


def test_an_epoch_begins_with_every_start(books: Books) -> None:
    """So that nodes obey only the newest head."""
    first = books.opened
    books.reopen()

    assert books.opened.epoch == first.epoch + 1
    assert books.opened.cluster == first.cluster
    assert books.opened.behind == ""


def test_equal_parts_of_loaded_jobs_share_memory(books: Books) -> None:
    """A hundred thousand equal jobs hold one request."""
    first, second = books.submit("nodes=1:ppn=2"), books.submit("nodes=1:ppn=2")

    books.reopen()

    jobs = books.head.state.jobs
    assert jobs[first].spec.request is jobs[second].spec.request
    assert jobs[first].spec.owner is jobs[second].spec.owner


def test_client_keys_of_ended_jobs_are_still_known(books: Books) -> None:
    """A retry after a restart gets the same id."""
    job = books.submit(key="abc")
    books.take(
        books.head.command(c.ActOnJob(caller=ALICE, job=job, action=a.DeleteJob()), books.now_s)
    )
    books.reopen()

    asked = submission(key="abc")
    step = books.head.command(
        c.Submit(caller=ALICE, submitted=asked, digests=("", "")), books.now_s
    )

    assert (step.job, step.facts) == (job, ())


def test_two_jobs_of_one_key_fail_the_commit(books: Books) -> None:
    """The database itself refuses what the code must never do."""
    books.submit(key="abc")
    books.head.state.keys = ClientKeys()

    with pytest.raises(StorageError, match="UNIQUE"):
        books.submit(key="abc")


def test_a_gpu_with_two_owners_fails_the_commit(books: Books) -> None:
    """I6 in the database, whatever the code believes."""
    first, second = books.submit("nodes=1:gpus=1"), books.submit("nodes=1:gpus=1")
    books.schedule()
    given = [fact for fact in books.facts if isinstance(fact, f.AttemptAssigned)]
    assert [fact.job for fact in given] == [first, second]
    wrong = structs.replace(given[1], attempt=2, allocation=given[0].allocation)

    with pytest.raises(StorageError, match="gpu_owners"):
        books.store.commit(batch_of([wrong], books.head.state))


def test_a_gpu_changes_hands_within_one_commit(books: Books) -> None:
    """Given back and given away in the order of the facts."""
    first = books.submit("nodes=1:gpus=2")
    second = books.submit("nodes=1:gpus=2")
    books.schedule()
    books.exit(first)
    books.schedule()

    owners = sqlite3.connect(books.store.path).execute("SELECT job FROM gpu_owners").fetchall()
    assert owners == [(second,), (second,)]


# --- reading ---


def test_the_past_can_be_asked_about(books: Books) -> None:
    """By user, name, outcome, time; newest first; totals are over all that match."""
    jobs = [books.submit(name=name) for name in ("one", "two", "other")]
    books.schedule()
    for job, code in zip(jobs, (0, 3, 0), strict=True):
        books.exit(job, code=code, wall_s=10)
    waiting = books.submit()
    past = reader(books)

    def found(**wanted: object) -> list[int]:
        found, _ = past.history(structs.replace(HistoryFilter(), **wanted))
        return [job.id for job in found if isinstance(job, Job)]

    one, two, other = jobs
    assert found() == [other, two, one]
    assert found(limit=1) == [other]
    assert found(failed=True) == [two]
    assert found(name="o*") == [other, one]
    assert found(ids=(one, waiting)) == [one]
    assert found(user="bob") == []
    assert found(outcome="exited", queue="batch") == [other, two, one]
    assert found(since_s=BEGIN_S + 20) == [other, two]
    assert found(until_s=BEGIN_S + 20) == [one]
    totals = past.history(HistoryFilter(limit=1))[1]
    assert (totals.jobs, totals.failed, totals.wall_s, totals.cpu_s) == (3, 1, 30, 30)
    past.close()


def test_a_jobs_story_is_kept(books: Books) -> None:
    """The job, its attempts, its facts, in order; what is unknown is left out."""
    job = books.submit("nodes=1:gpus=1")
    books.schedule()
    books.exit(job)
    past = reader(books)

    (kept,) = past.jobs([job, 99])
    assert kept.state is JobState.DONE
    assert kept.outcome is not None
    assert kept.outcome.kind is OutcomeKind.EXITED
    assert kept.attempt is not None
    assert [attempt.number for attempt in past.attempts(job)] == [1]
    told = [fact for _, fact in past.events(job)]
    assert told == [fact for fact in books.facts if getattr(fact, "job", None) == job]
    assert past.all_facts() == books.facts
    past.close()


def test_facts_that_a_user_repeats_without_end_are_bounded(books: Books) -> None:
    """A job once left 58,310 of them in 30 s, 271 MB, for ever; the newest are kept."""
    job, other = books.submit(), books.submit()

    def alter(number: int, change: Alteration) -> None:
        command = c.ActOnJob(caller=ALICE, job=number, action=a.AlterJob(alteration=change))
        books.take(books.head.command(command, books.now_s))

    for number in range(KEPT_OF_JOB + 30):
        change = Alteration(account=f"a{number}")
        alter(job, change)
    alter(other, Alteration(account="a"))
    past = reader(books)

    altered = [fact for _, fact in past.events(job) if isinstance(fact, f.JobAltered)]
    assert len(altered) == KEPT_OF_JOB
    assert altered[-1].spec.account == f"a{KEPT_OF_JOB + 29}"
    assert isinstance(past.events(job)[0][1], f.JobSubmitted)
    assert len(past.events(other)) == 2
    past.close()


def test_scripts_are_kept_once_by_digest(books: Books) -> None:
    """A digest that is not there means that the database is damaged."""
    script = b"#!/bin/sh\n"
    digest = hashlib.sha256(script).hexdigest()
    submit = c.Submit(caller=ALICE, submitted=submission(), digests=(digest, ""))
    for _ in range(2):
        books.take(books.head.command(submit, books.now_s), {digest: script})
    past = reader(books)

    assert past.blob(digest) == script
    with pytest.raises(StorageError, match="holds no script"):
        past.blob("d2")
    past.close()


def test_the_reader_cannot_write(books: Books) -> None:
    """Its connection is read-only."""
    past = reader(books)

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        past._db.execute("DELETE FROM jobs")
    past.close()


# --- failures ---


def test_a_full_disk_costs_nothing_but_the_batch(books: Books) -> None:
    """Nothing of the batch is there; after making room the same batch goes in."""
    (pages,) = books.store._db.execute("PRAGMA page_count").fetchone()
    books.store._db.execute(f"PRAGMA max_page_count = {pages}")
    step = books.head.command(
        c.Submit(caller=ALICE, submitted=submission(), digests=("d", "")), books.now_s
    )
    batch = batch_of(list(step.facts), books.head.state, {"d": bytes(100_000)})

    with pytest.raises(DiskFullError):
        books.store.commit(batch)
    assert reader(books).jobs([step.job]) == []
    books.store._db.execute("PRAGMA max_page_count = 1000000")
    books.store.commit(batch)

    assert [job.id for job in reader(books).jobs([step.job])] == [step.job]
    books.facts.extend(step.facts)
    assert reader(books).all_facts() == books.facts


def test_a_database_that_somebody_holds_is_a_passing_condition(books: Books) -> None:
    """An operator's shell with an open transaction."""
    other = sqlite3.connect(books.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    books.store._db.execute("PRAGMA busy_timeout = 1")

    with pytest.raises(TryAgainError, match="another program holds"):
        books.submit()
    other.execute("ROLLBACK")
    other.close()
    job = books.head.state.jobs[1]
    books.head.state.unstored.jobs[1] = job
    fact = f.JobSubmitted(at_s=BEGIN_S, job=1, spec=job.spec, state=JobState.QUEUED)
    books.store.commit(batch_of([fact], books.head.state))

    assert [each.id for each in reader(books).jobs([1])] == [1]


def test_any_other_failure_is_the_end(books: Books) -> None:
    """A table that is gone: StorageError, exit code 3."""
    books.store._db.execute("DROP TABLE events")

    with pytest.raises(StorageError, match="no such table") as failed:
        books.submit()

    assert failed.value.exit_code == 3


def test_a_damaged_database_is_not_opened(books: Books) -> None:
    """Random bytes in a page are found at the start."""
    for _ in range(50):
        books.submit()
    books.store.close()
    with open(books.store.path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(8 * 4096))

    with pytest.raises(StorageError):
        books._open()


# --- the mark ---


def test_an_old_copy_of_the_database_is_noticed(books: Books, tmp_path: Path) -> None:
    """What is missing is said, no id comes twice, and it is said again until accepted."""
    books.submit()
    books.store.close()
    copy = Path(books.store.path).read_bytes()
    books._open()
    last = [books.submit() for _ in range(3)][-1]
    books.store.close()
    Path(books.store.path).write_bytes(copy)

    books._open()
    assert "it was cut or is an old copy" in books.opened.behind
    assert f"job {last}" in books.opened.behind
    assert books.opened.forgotten_from == 2
    books.reopen()
    assert books.opened.behind
    assert books.opened.forgotten_from == 2
    assert books.submit() > last + SAFE_ID_JUMP
    books.store.accept_loss()
    books.reopen()
    assert books.opened.behind  # what was lost is not taken back yet
    assert books.opened.forgotten_from == 2
    books.store.end_loss()
    books.reopen()

    assert books.opened.behind == ""


def test_a_snapshot_of_all_files_is_another_file(books: Books, tmp_path: Path) -> None:
    """Database and mark agree, and the copy may even get the same inode: its birth differs."""
    books.submit()
    books.store.close()
    copy = tmp_path.with_name(tmp_path.name + "-copy")
    shutil.copytree(books.directory, copy)
    books._open()
    books.submit()
    books.store.close()
    shutil.rmtree(books.directory)
    shutil.copytree(copy, books.directory)

    books._open()
    assert "is a copy" in books.opened.behind
    assert books.opened.is_copy
    books.reopen()
    assert books.opened.is_copy  # being restarted does not make it an original
    books.store.accept_loss(next_job=books.head.state.next_job + SAFE_ID_JUMP)
    books.store.end_loss()
    books.reopen()

    assert books.opened.behind == ""
    assert books.opened.lineage[-2].accepted
    assert books.submit() > SAFE_ID_JUMP


def test_a_copy_onto_the_file_keeps_its_identity_and_a_copy_to_a_new_file_does_not(
    tmp_path: Path,
) -> None:
    """So the guide has the old database removed before a backup is put back."""
    database, backup = tmp_path / "gsched.db", tmp_path / "backup.db"
    database.write_bytes(b"old")
    backup.write_bytes(b"new")
    before = identity_of(str(database))

    shutil.copyfile(backup, database)
    assert not identity_of(str(database)).is_another(before)
    database.rename(tmp_path / "old.db")  # it lives, so that its inode is not given again
    shutil.copyfile(backup, database)
    assert identity_of(str(database)).is_another(before)


def test_a_restart_a_rename_and_a_change_of_owner_are_no_copy(books: Books) -> None:
    """What administrators and systemd do on ordinary days raises no alarm."""
    books.submit()
    books.store.close()
    moved = books.directory.with_name(books.directory.name + "-moved")
    books.directory.rename(moved)
    books.directory = moved
    for path in moved.iterdir():
        os.chown(path, os.getuid(), os.getgid())
        path.chmod(0o600)

    books._open()

    assert books.opened.behind == ""


def test_every_start_has_an_id_of_its_own(books: Books) -> None:
    """Also two starts on copies of one database, which count the same numbers."""
    books.store.close()
    twin = books.directory.with_name(books.directory.name + "-twin")
    shutil.copytree(books.directory, twin)
    books._open()
    other = Store(str(twin))
    opened = other.open()
    other.close()

    assert opened.epoch == books.opened.epoch
    assert opened.epoch_id != books.opened.epoch_id
    assert opened.lineage[:-1] == books.opened.lineage[:-1]


def test_a_database_that_is_gone_is_not_begun_anew(books: Books) -> None:
    """Jobs have been in it: somebody must say that they are lost."""
    books.submit()
    books.store.close()
    for name in ("gsched.db", "gsched.db-wal", "gsched.db-shm"):
        (books.directory / name).unlink(missing_ok=True)

    with pytest.raises(ConfigError, match="is gone, but jobs up to 1 have been in it"):
        books._open()


def test_a_mark_of_another_cluster_is_noticed(books: Books, tmp_path: Path) -> None:
    """Files of two clusters were mixed."""
    books.store.close()
    (books.directory / "gsched.mark").unlink()
    other = MarkFile(str(books.directory / "gsched.mark"))
    other.write(Mark(cluster="other", epoch=1, seq=0, next_job=1))
    other.close()

    books._open()

    assert books.opened.behind.startswith("the mark belongs to cluster other")


def test_a_database_without_its_mark_may_be_a_backup(books: Books) -> None:
    """Put back on a new machine, say: nothing else would tell."""
    job = books.submit()
    books.store.close()
    (books.directory / "gsched.mark").unlink()

    books._open()

    assert "there is no mark" in books.opened.behind
    assert job in books.head.state.jobs
    assert MarkFile(str(books.directory / "gsched.mark")).read() is not None


def test_a_head_killed_between_commit_and_mark_goes_on(books: Books) -> None:
    """The database is ahead of its mark: nothing is missing."""
    arm("head.mark.before_write:raise")
    try:
        with pytest.raises(FailpointError):
            books.submit()
    finally:
        arm("")

    books.reopen()

    assert books.opened.behind == ""
    assert list(books.head.state.jobs) == [1]


def test_operators_are_named_in_what_they_did(books: Books) -> None:
    """Node facts are in the events, too (I10)."""
    books.take(
        books.head.command(
            c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="kernel")), books.now_s
        )
    )
    books.reopen()

    node = books.head.state.nodes["n1"]
    assert (node.drained, node.reason) == (True, "kernel")
    drained = [fact for fact in reader(books).all_facts() if isinstance(fact, f.NodeDrained)]
    assert [fact.by for fact in drained] == ["admin"]


def test_a_directory_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(StorageError, match="cannot be opened"):
        Store(str(tmp_path / "none")).open()
