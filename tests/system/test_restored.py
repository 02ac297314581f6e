"""A13, A21, A22, B7: a head on a restored or copied state, with real daemons.

Each test takes a snapshot while jobs run, lets the head go on, kills it, and restores the snapshot.
No id may come twice, no outcome may be another job's, no job may run twice, and every job that a
node knows must have its right outcome after `gsched recover --accept`.
"""

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.judge import Judge
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def snapshot(cluster: Cluster) -> Path:
    """Copy the whole state directory as a file system's snapshot would, with the mark and the WAL.

    The database is copied while no commit is under way, so the copy is one moment.
    """
    copy = cluster.directory / "snapshot"
    shutil.copytree(cluster.state_dir, copy)
    return copy


def restore(cluster: Cluster, copy: Path) -> None:
    """Put a snapshot where the state directory was."""
    shutil.rmtree(cluster.state_dir)
    shutil.copytree(copy, cluster.state_dir)


def backup(cluster: Cluster) -> Path:
    """Make a backup of the database alone, as the administrators' guide says."""
    copy = cluster.directory / "backup.db"
    copy.unlink(missing_ok=True)
    with sqlite3.connect(cluster.state_dir / "gsched.db") as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    db.close()
    return copy


def restore_database(cluster: Cluster, copy: Path) -> None:
    """Put a backup in place of the database, as the administrators' guide says."""
    for name in ("gsched.db-wal", "gsched.db-shm"):
        (cluster.state_dir / name).unlink(missing_ok=True)
    shutil.copyfile(copy, cluster.state_dir / "gsched.db")


def safe_mode(cluster: Cluster) -> str:
    return cluster.head.status().safe_mode


def test_a_restored_snapshot_gives_no_id_and_no_outcome_of_another_job(
    cluster: Cluster, judge: Judge
) -> None:
    """The mark and the database agree: only the copy itself and the nodes tell."""
    cluster.start_head()
    cluster.start_node("n1")
    (first,) = Submission(cluster, a_job(cluster, judge)).ids()
    wait_for_end(cluster, [first])
    copy = snapshot(cluster)
    (second,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=7)).ids()
    wait_for_starts(judge, [second])
    cluster.kill_head()
    cluster.stop_node("n1")
    restore(cluster, copy)

    cluster.start_head()  # no node is there that could know better

    assert safe_mode(cluster)
    (refused,) = cluster.head.submit([a_job(cluster, judge)]).results
    assert refused.id == 0
    assert refused.error is not None
    assert refused.error.code == "try_again"
    assert "nothing is submitted or changed in safe mode" in refused.error.message
    cluster.start_node("n1", wait=False)
    wait_until(lambda: "n1 has obeyed" in safe_mode(cluster), what="the node to tell its mark")
    listed = wait_until(lambda: cluster.head.recovery().cases, what="what the node knows")
    assert [(case.job, case.kind) for case in listed] == [(second, "adopted")]
    cluster.head.recover(accept=True)
    (third,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert third > second
    wait_for_end(cluster, [third])
    wait_until(judge.open_gate)
    (story,) = wait_for_end(cluster, [second])
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 7
    assert [judge.count("start", job) for job in (first, second, third)] == [1, 1, 1]


def test_a_job_queued_in_the_backup_that_has_run_since_is_not_run_again(
    cluster: Cluster, judge: Judge
) -> None:
    """Ended and acknowledged, or still running: the node knows, also with ``-r n``."""
    cluster.start_head()
    jobs = [a_job(cluster, judge, rerunnable=False, code=3), a_job(cluster, judge, code=4)]
    jobs.append(a_job(cluster, judge, judge.gate(), code=5))
    ids = Submission(cluster, *jobs).ids()
    copy = backup(cluster)
    cluster.start_node("n1")
    wait_for_starts(judge, ids)
    wait_for_end(cluster, ids[:2])
    cluster.kill_head()
    restore_database(cluster, copy)

    cluster.start_head()
    cluster.wait_for_node("n1")
    assert safe_mode(cluster)
    cluster.head.recover(accept=True)
    wait_until(judge.open_gate)

    stories = wait_for_end(cluster, ids)
    assert [story.row.outcome.exit_code for story in stories if story.row.outcome] == [3, 4, 5]
    assert [judge.count("start", job) for job in ids] == [1, 1, 1]


def test_jobs_that_the_backup_does_not_know_are_adopted_with_their_outcomes(
    cluster: Cluster, judge: Judge
) -> None:
    """One has ended and was acknowledged, one runs on."""
    cluster.start_head()
    cluster.start_node("n1")
    copy = backup(cluster)
    ended, runs = Submission(
        cluster, a_job(cluster, judge, code=3), a_job(cluster, judge, judge.gate(), code=5)
    ).ids()
    wait_for_end(cluster, [ended])
    wait_for_starts(judge, [runs])
    cluster.kill_head()
    restore_database(cluster, copy)

    cluster.start_head()
    cluster.wait_for_node("n1")
    assert safe_mode(cluster)
    cluster.head.recover(accept=True)
    wait_until(judge.open_gate)

    stories = wait_for_end(cluster, [ended, runs])
    assert [story.row.outcome.exit_code for story in stories if story.row.outcome] == [3, 5]
    assert [judge.count("start", job) for job in (ended, runs)] == [1, 1]
