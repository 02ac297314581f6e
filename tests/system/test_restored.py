"""A13, A21, A22, B7: a head on a restored or copied state, with real daemons.

Each test takes a snapshot while jobs run, lets the head go on, kills it, and restores the snapshot.
No id may come twice, no outcome may be another job's, no job may run twice, and every job that a
node knows must have its right outcome after `gsched recover --accept`.
"""

import contextlib
import glob
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from gsched.errors import BadStateError, GschedError
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.guide import shell_blocks
from tests.support.judge import Judge
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts
from tests.support.processes import PATIENCE_S


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
    for name in ("gsched.db", "gsched.db-wal", "gsched.db-shm"):
        (cluster.state_dir / name).unlink(missing_ok=True)
    shutil.copyfile(copy, cluster.state_dir / "gsched.db")


def known(cluster: Cluster) -> list[tuple[int, str]]:
    """Return what `gsched recover` lists; it grows while nodes tell what they know."""
    return [(case.job, case.kind) for case in cluster.head.recovery().cases]


def accept(cluster: Cluster) -> None:
    """Accept the loss, as an operator does who tries again while a node is connecting anew."""

    def is_accepted() -> bool:
        with contextlib.suppress(BadStateError):
            return not cluster.head.recover(accept=True).safe_mode
        return False

    wait_until(is_accepted, what="the head to accept what nodes know")


def safe_mode(cluster: Cluster) -> str:
    return cluster.head.status().safe_mode


def test_a21_a_restored_snapshot_gives_no_id_and_no_outcome_of_another_job(
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
    assert "nothing is submitted or changed in safe mode (" in refused.error.message
    assert refused.error.message.endswith("); an operator ends it with gsched recover")
    cluster.start_node("n1", wait=False)
    wait_until(lambda: "n1 has obeyed" in safe_mode(cluster), what="the node to tell its mark")
    wait_until(lambda: known(cluster) == [(second, "adopted")], what="what the node knows")
    accept(cluster)
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
    wait_until(lambda: cluster.head.recovery().nodes, what="the node to tell")
    assert safe_mode(cluster)
    accept(cluster)
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
    wait_until(lambda: cluster.head.recovery().nodes, what="the node to tell")
    assert safe_mode(cluster)
    accept(cluster)
    wait_until(judge.open_gate)

    stories = wait_for_end(cluster, [ended, runs])
    assert [story.row.outcome.exit_code for story in stories if story.row.outcome] == [3, 5]
    assert [judge.count("start", job) for job in (ended, runs)] == [1, 1]


SHORT = {"GSCHED_TEST_REMOVE_DELAY_S": "0.2"}


def is_buried(cluster: Cluster, job: int, node: str = "n1") -> bool:
    """Return whether a node has removed the records of a job, and keeps its end in the log."""
    directory = cluster.node_dir(node)
    log = directory / "ended.jsonl"
    gone = not (directory / "attempts" / f"{job}.1").exists()
    return gone and log.exists() and f'"job":{job},' in log.read_text()


def test_a_restarted_node_knows_what_ended_and_was_acknowledged_before(
    cluster: Cluster, judge: Judge
) -> None:
    """Its records are gone; the log of ended attempts has the outcome, also with ``-r n``."""
    cluster.start_head()
    ids = Submission(
        cluster, a_job(cluster, judge, rerunnable=False, code=3), a_job(cluster, judge, code=4)
    ).ids()
    copy = backup(cluster)
    cluster.start_node("n1", env=SHORT)
    wait_for_end(cluster, ids)
    (unknown,) = Submission(cluster, a_job(cluster, judge, code=6)).ids()
    wait_for_end(cluster, [unknown])
    wait_until(lambda: all(is_buried(cluster, job) for job in (*ids, unknown)), what="the burial")
    cluster.kill_node("n1")
    cluster.kill_head()
    restore_database(cluster, copy)

    cluster.start_head()
    cluster.start_node("n1")
    finished = [(job, "finished") for job in (*ids, unknown)]
    wait_until(lambda: known(cluster) == finished, what="what the node knows")
    accept(cluster)

    stories = wait_for_end(cluster, [*ids, unknown])
    assert [story.row.outcome.exit_code for story in stories if story.row.outcome] == [3, 4, 6]
    assert [judge.count("start", job) for job in (*ids, unknown)] == [1, 1, 1]


def test_while_known_nodes_are_away_only_an_operators_word_goes_on_and_jobs_are_held(
    cluster: Cluster, judge: Judge
) -> None:
    """What waits may run there: it is held, and a late node is asked before it comes in."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.stop_node("n1")
    cluster.wait_for_node("n1", "unreachable")
    (job,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=5)).ids()
    copy = backup(cluster)
    cluster.start_node("n1")
    wait_for_starts(judge, [job])
    cluster.stop_node("n1")
    cluster.kill_head()
    restore_database(cluster, copy)
    cluster.start_head()

    with pytest.raises(GschedError, match="n1 not connected"):
        cluster.head.recover(accept=True)
    assert cluster.head.recover(accept=True, without_nodes=True).safe_mode == ""
    assert cluster.head.job(job).row.state == "held"
    cluster.start_node("n2")
    (other,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert other > job
    wait_for_end(cluster, [other])
    assert judge.count("start", job) == 1
    cluster.start_node("n1")

    wait_until(lambda: cluster.head.job(job).row.state == "running", what="the job to be adopted")
    wait_until(judge.open_gate)
    (story,) = wait_for_end(cluster, [job])
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 5
    assert judge.count("start", job) == 1


def test_a_mere_copy_needs_no_operator_when_all_nodes_confirm_it(
    cluster: Cluster, judge: Judge
) -> None:
    """The head was moved: nothing is missing, and its jobs go on."""
    cluster.start_head()
    cluster.start_node("n1")
    (runs,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=5)).ids()
    wait_for_starts(judge, [runs])
    cluster.stop_head()
    restore(cluster, snapshot(cluster))

    cluster.start_head()
    wait_until(lambda: not safe_mode(cluster), what="the node to confirm the copy")

    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert job > runs + 1000
    wait_until(judge.open_gate)
    stories = wait_for_end(cluster, [runs, job])
    assert [story.row.outcome.exit_code for story in stories if story.row.outcome] == [5, 0]
    assert [judge.count("start", each) for each in (runs, job)] == [1, 1]


def test_of_two_heads_on_copies_the_nodes_obey_one_and_the_other_stops(
    cluster: Cluster, judge: Judge, tmp_path: Path
) -> None:
    """A13: the second begins in safe mode; once it is accepted the first is fenced."""
    cluster.start_head()
    cluster.start_node("n1")
    (runs,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=5)).ids()
    wait_for_starts(judge, [runs])
    cluster.wait_for_start(runs)  # nothing more is written
    twin = Cluster(tmp_path / "twin", cluster._marker)
    shutil.copytree(cluster.state_dir, twin.state_dir, dirs_exist_ok=True)
    (twin.state_dir / "gschedd.port").unlink()
    twin.head_settings["node_port"] = 0
    try:
        twin.start_head()
        assert twin.head.status().epoch == cluster.head.status().epoch + 1
        assert "is a copy" in safe_mode(twin)
        (later,) = Submission(cluster, a_job(cluster, judge)).ids()
        wait_for_end(cluster, [later])
        cluster.stop_node("n1")
        own_port, cluster._node_port = cluster._node_port, twin._node_port
        cluster.start_node("n1", wait=False)  # it dials the twin now
        wait_until(lambda: twin.head.recovery().nodes, what="the node to tell the twin")
        assert "n1 has obeyed" in safe_mode(twin)
        twin.head.recover(accept=True)
        (other,) = [result.id for result in twin.head.submit([a_job(cluster, judge)]).results]
        assert other > later
        wait_for_end(twin, [other])
        wait_until(judge.open_gate)
        (story,) = wait_for_end(twin, [runs])
        assert story.row.outcome is not None
        assert story.row.outcome.exit_code == 5
        cluster.stop_node("n1")
        cluster._node_port = own_port
        cluster.start_node("n1", wait=False)  # and comes back to the first one

        assert cluster.head_process.wait(PATIENCE_S) == 78
        assert "another head has taken over" in cluster.log("head.log")
        assert [judge.count("start", job) for job in (runs, later, other)] == [1, 1, 1]
    finally:
        twin.stop()


def test_one_node_of_several_that_claims_a_huge_epoch_is_refused_until_an_operator_believes_it(
    cluster: Cluster, judge: Judge
) -> None:
    """It cannot stop the cluster, and it exhausts no numbers."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.start_node("n2")
    mark_path = cluster.node_dir("n2") / "head.json"
    wait_until(mark_path.exists, what="the mark of the head on n2")
    cluster.stop_node("n2")
    mark = json.loads(mark_path.read_text())
    for claim in ({"epoch": 2**31, "next_job": 2**52}, {"epoch": 7, "epoch_id": "ff" * 16}):
        mark_path.write_text(json.dumps({**mark, **claim}))
        cluster.start_node("n2", wait=False)
        words = f"epoch {claim['epoch']} "

        def is_refused(words: str = words) -> bool:
            return words in cluster.head.status().quarantined.get("n2", "")

        wait_until(is_refused, what="the node to be refused")
        rows = {row.name: row for row in cluster.head.nodes().nodes}
        assert "has obeyed a head" in rows["n2"].refused
        assert safe_mode(cluster) == ""
        (job,) = Submission(cluster, a_job(cluster, judge)).ids()
        assert job < 10
        wait_for_end(cluster, [job])
        cluster.stop_node("n2")

    cluster.head.recover(accept=False, believe="n2")
    cluster.start_node("n2", wait=False)

    wait_until(lambda: "n2 has obeyed" in safe_mode(cluster), what="safe mode by its word")
    wait_until(lambda: len(cluster.head.recovery().nodes) == 2, what="both nodes to be asked")
    accept(cluster)
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)


def follow_the_guide(cluster: Cluster, line: str) -> None:
    """Do what a line of the guide says, on this cluster in place of the installed one."""
    command = line.partition("#")[0].strip()
    match command.split():
        case ["systemctl", "stop", "gschedd"]:
            cluster.stop_head()
        case ["systemctl", "start", "gschedd"]:
            cluster.start_head()
            cluster.wait_for_node("n1")
            wait_until(lambda: cluster.head.recovery().nodes, what="the node to tell")
        case ["gsched", *arguments]:
            here = str(cluster.directory / "backup")
            arguments = [
                found
                for each in arguments
                for found in glob.glob(each.replace("/backup", here))
                or [each.replace("/backup", here)]
            ]
            config = (
                [] if "recover" in arguments else ["--config", str(cluster.directory / "head.toml")]
            )
            ran = run_command("gsched", *arguments, *config, head=str(cluster.socket))
            assert ran.status == (1 if arguments == ["recover"] else 0), ran
        case _:
            raise AssertionError(f"unknown line of the guide: {line}")


def test_backup_and_restore_work_as_the_guide_says(cluster: Cluster, judge: Judge) -> None:
    """Line by line; what has happened since the backup is taken back, what must be held is held."""
    cluster.start_head()
    cluster.start_node("n1", cpus=1)
    (blocks,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=5)).ids()
    wait_for_starts(judge, [blocks])
    waits, once = Submission(
        cluster, a_job(cluster, judge, code=6), a_job(cluster, judge, rerunnable=False)
    ).ids()
    save, restoring = shell_blocks("administrators-guide.md", "### Backup and restore")
    for line in save.splitlines():
        follow_the_guide(cluster, line)
    wait_until(lambda: judge.open_gate() and judge.count("end", waits) == 1)
    wait_for_end(cluster, [blocks, waits, once])
    (later,) = Submission(cluster, a_job(cluster, judge, code=7)).ids()
    wait_for_end(cluster, [later])

    for line in restoring.splitlines():
        follow_the_guide(cluster, line)

    stories = wait_for_end(cluster, [blocks, waits, once, later])
    outcomes = [story.row.outcome for story in stories]
    assert [outcome.exit_code for outcome in outcomes if outcome] == [5, 6, 0, 7]
    assert [judge.count("start", job) for job in (blocks, waits, once, later)] == [1] * 4
    (new,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert new > later
