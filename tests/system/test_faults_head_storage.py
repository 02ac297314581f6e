"""The head's disk: broken, cut, exchanged, newer, gone (A19, A22 and table B)."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.errors import HeadUnreachableError, TryAgainError
from gsched.head_calls import error_from
from gsched.protocol.job_rows import OutcomeRow
from gschedd.core.state import facts as f
from gschedd.store.schema import SCHEMA_VERSION
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.judge import Judge, facts_of, verdict
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts
from tests.support.processes import PATIENCE_S


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def database(cluster: Cluster) -> Path:
    return cluster.state_dir / "gsched.db"


def refused_start(cluster: Cluster) -> tuple[int, str]:
    """Start a head that must not start; return its exit code and what it said."""
    already = len(cluster.log("head.log"))
    cluster.start_head(wait=False)
    code = cluster.head_process.wait(PATIENCE_S)
    said = cluster.log("head.log")[already:]
    assert "Traceback" not in said
    return code, said


# --- B4: a flush fails once ---


def test_b4_one_failed_flush_stops_the_head_and_nothing_acknowledged_is_lost(
    cluster: Cluster, judge: Judge
) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here to make a system call fail")
    cluster.start_head()
    cluster.start_node("n1")
    (before,) = Submission(cluster, a_job(cluster, judge, judge.gate())).ids()
    wait_for_starts(judge, [before])
    head = cluster.head_process
    tracer = subprocess.Popen(
        [strace, "-f", "-p", str(head.pid), "-o", str(cluster.directory / "strace"),
         "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO:when=1"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert tracer.stderr is not None
    if b"attached" not in (line := tracer.stderr.readline()):
        tracer.kill()
        pytest.skip(f"strace may not look at processes here: {line.decode()}")

    submission = Submission(cluster, a_job(cluster, judge))

    assert head.wait(PATIENCE_S) == 3
    tracer.wait(PATIENCE_S)
    tracer.stderr.close()
    assert "INJECTED" in (cluster.directory / "strace").read_text()
    assert "stopping at once" in cluster.log("head.log")
    cluster.start_head()
    (after,) = submission.ids()  # it was not acknowledged, so it is sent again
    wait_until(lambda: judge.open_gate() and not cluster.head.jobs().jobs)
    assert verdict(judge, database(cluster), [before, after], attempts_max=1) == []


# --- B6: the database has lost something ---


def cut_log(cluster: Cluster) -> None:
    """Cut half of the write-ahead log off: SQLite itself finds nothing wrong with that."""
    log = cluster.state_dir / "gsched.db-wal"
    size = log.stat().st_size
    assert size > 0
    os.truncate(log, size // 2)


def old_copy(cluster: Cluster) -> Path:
    """Return a copy of the database as it is now, made as a backup would be."""
    copy = cluster.directory / "backup.db"
    with sqlite3.connect(database(cluster)) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    return copy


@pytest.mark.parametrize("how", ["cut log", "old copy", "no log"])
def test_b6_a_database_that_lost_something_starts_nothing_until_an_operator_accepts(
    cluster: Cluster, judge: Judge, how: str
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    wait_for_end(cluster, Submission(cluster, a_job(cluster, judge)).ids())
    backup = old_copy(cluster)
    known = Submission(cluster, *(a_job(cluster, judge) for _ in range(10))).ids()
    wait_for_end(cluster, known)
    cluster.kill_head()
    cluster.kill_node("n1")
    if how == "cut log":
        cut_log(cluster)
    else:
        (cluster.state_dir / "gsched.db-wal").unlink()
        (cluster.state_dir / "gsched.db-shm").unlink()
    if how == "old copy":
        shutil.copy(backup, database(cluster))

    cluster.start_head()
    script = cluster.directory / "job.sh"
    script.write_text(judge.script())
    refused = run_command("gsub", str(script), head=str(cluster.socket))
    cluster.start_node("n1", wait=False)

    assert refused.status == 75
    assert "nothing is submitted or changed in safe mode" in refused.stderr
    assert "cut or is an old copy" in cluster.head.status().safe_mode
    told = run_command("gsched", "recover", head=str(cluster.socket))
    assert told.status == 1
    assert "Safe mode" in told.stdout
    cluster.kill_head()
    cluster.start_head()  # a restart is no operator's word
    cluster.wait_for_node("n1")
    wait_until(lambda: cluster.head.recovery().nodes, what="the node to tell what it knows")

    accepted = run_command("gsched", "recover", "--accept", head=str(cluster.socket))

    assert accepted.status == 0, accepted
    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert job > max(known)
    assert all(cluster.head.job(old).row.state == "done" for old in known)
    wait_for_end(cluster, [job])
    assert judge.count("start", job) == 1
    assert [judge.count("start", old) for old in known] == [1] * 10
    cluster.stop_node("n1")
    cluster.kill_head()
    cluster.start_head()
    assert cluster.head.status().safe_mode == ""  # accepted once is accepted for good


def test_b6_an_accepted_loss_stays_accepted_though_nothing_happens_after_it(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    backup = old_copy(cluster)
    (lost,) = Submission(cluster, a_job(cluster, judge)).ids()
    cluster.stop_head()
    shutil.copy(backup, database(cluster))
    cluster.start_head()
    assert cluster.head.status().safe_mode

    assert cluster.head.recover(accept=True).safe_mode == ""
    cluster.kill_head()
    cluster.start_head()

    assert cluster.head.status().safe_mode == ""
    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert job > lost


def test_b6_in_safe_mode_what_only_nodes_know_is_neither_killed_nor_forgotten(
    cluster: Cluster, judge: Judge
) -> None:
    """Until an operator accepts, a better copy of the database may still come."""
    cluster.start_head()
    cluster.start_node("n1")
    backup = old_copy(cluster)
    better = cluster.directory / "better.db"
    runs, ended = Submission(
        cluster, a_job(cluster, judge, judge.gate()), a_job(cluster, judge, judge.gate("other"))
    ).ids()
    wait_for_starts(judge, [runs, ended])
    cluster.stop_head()
    shutil.copy(database(cluster), better)
    wait_until(lambda: judge.open_gate("other") and judge.count("end", ended))
    shutil.copy(backup, database(cluster))
    cluster.start_head()
    cluster.wait_for_node("n1")
    assert cluster.head.status().safe_mode
    cluster.stop_head()

    shutil.copy(better, database(cluster))
    (cluster.state_dir / "gsched.mark").unlink()
    cluster.start_head()  # it knows nothing of its past: the node confirms that nothing is missing
    wait_until(lambda: not cluster.head.status().safe_mode, what="the node to confirm the copy")

    (story,) = wait_for_end(cluster, [ended])
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 0
    wait_until(lambda: judge.open_gate() and cluster.head.job(runs).row.state == "done")
    assert judge.count("start", runs) == judge.count("end", runs) == 1


# --- A19, A22: another schema, no database ---


def test_a19_an_older_head_refuses_a_newer_schema_and_leaves_the_database_alone(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    cluster.stop_head()
    with sqlite3.connect(database(cluster)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = hashlib.sha256(database(cluster).read_bytes()).digest()
    mark = (cluster.state_dir / "gsched.mark").read_bytes()

    code, said = refused_start(cluster)

    assert code == 78
    assert f"has schema {SCHEMA_VERSION + 1}" in said
    assert hashlib.sha256(database(cluster).read_bytes()).digest() == before
    assert (cluster.state_dir / "gsched.mark").read_bytes() == mark
    assert [x.job for x in facts_of(database(cluster)) if isinstance(x, f.JobSubmitted)] == [job]


def test_a22_a_head_whose_database_is_gone_makes_no_empty_one(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    (job,) = Submission(cluster, a_job(cluster, judge, judge.gate())).ids()
    wait_for_starts(judge, [job])
    cluster.stop_head()
    kept = cluster.directory / "kept.db"
    shutil.move(database(cluster), kept)

    code, said = refused_start(cluster)

    assert code == 78
    assert "is gone" in said
    assert f"jobs up to {job}" in said
    assert not database(cluster).exists()
    with pytest.raises(HeadUnreachableError):
        cluster.head.status()
    shutil.move(kept, database(cluster))
    cluster.start_head()
    wait_until(lambda: judge.open_gate() and not cluster.head.jobs().jobs)
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []


def test_b5_a_damaged_page_is_found_at_the_start_and_not_served(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    Submission(cluster, *(a_job(cluster, judge) for _ in range(50))).ids()
    assert cluster.stop_head() == 0
    with open(database(cluster), "r+b") as stream:
        stream.seek(4096)
        stream.write(os.urandom(8 * 4096))

    code, said = refused_start(cluster)

    assert code == 3
    assert "backup" in said
    assert not (cluster.state_dir / "gschedd.port").exists()


def test_a12_a_stopped_head_is_not_replaced_by_an_impatient_second_one(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    first = cluster.head_process
    first.send_signal(signal.SIGSTOP)
    try:
        code, said = refused_start(cluster)
    finally:
        first.send_signal(signal.SIGCONT)

    assert code == 78
    assert f"pid {first.pid}" in said
    assert cluster.head.job(job).row.state == "queued"
    first.kill()
    first.wait()


# --- damaged rows; an administrator's shell ---


def submit(cluster: Cluster, body: str, **more: object) -> int:
    """Queue a script of one line; return its id."""
    script = f"#!/bin/sh\n{body}\n"
    job = new_job(name="j", workdir=str(cluster.jobs), script=script, grace_s=1.0, **more)
    result = cluster.head.submit([job]).results[0]
    if result.error is not None:
        raise error_from(result.error)
    return result.id


def outcome(cluster: Cluster, job: int) -> OutcomeRow:
    """Return how a job ended, once it has."""
    found = cluster.head.wait([job], timeout_s=60)[0].row.outcome
    assert found is not None, "it has not ended"
    return found


def spoil(cluster: Cluster, statement: str) -> None:
    """Stop the head, change its database, and start it again."""
    cluster.stop_head()
    with sqlite3.connect(database(cluster)) as db:
        assert db.execute(statement).rowcount >= 1
    db.close()
    cluster.start_head()


def test_a_damaged_record_costs_only_its_own_job(cluster: Cluster) -> None:
    """A head with a bad waiting, a bad running and a bad finished job serves all others (A16)."""
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    head = cluster.head
    done, sound = (submit(cluster, f"touch {name}") for name in ("done", "sound"))
    head.wait([done, sound])
    runs = submit(cluster, "touch runs; exec sleep 600")
    wait_until((cluster.jobs / "runs").exists)
    held = submit(cluster, "true", holds=("user",))

    spoil(cluster, f"UPDATE specs SET spec = 'x' WHERE job IN ({done}, {runs}, {held})")

    log = cluster.log("head.log")
    assert "Traceback" not in log
    assert f"job {runs} is set aside: its record is damaged" in log
    found = run_command("gsched", "doctor", head=str(cluster.socket))
    assert f"job {runs}: " in found.stdout
    listed = run_command("ghist", "--json", head=str(cluster.socket))
    assert json.loads(listed.stdout)["damaged"] == [done]
    assert [row["id"] for row in json.loads(listed.stdout)["jobs"]] == [sound]
    cluster.wait_for_node("n1")
    refused = run_command("gdel", str(held), head=str(cluster.socket))
    assert refused.status == 0, refused.stderr
    row = next(row for row in head.nodes().nodes if row.name == "n1")
    assert row.drained
    assert f"job {runs} runs here" in row.reason

    assert run_command("gdel", str(runs), head=str(cluster.socket)).status == 0
    assert run_command("gnodes", "resume", "n1", head=str(cluster.socket)).status == 0
    again = submit(cluster, "true")
    assert again == held + 1
    assert outcome(cluster, again).exit_code == 0


def test_a_damaged_script_fails_its_job_and_not_the_head(cluster: Cluster) -> None:
    """It is not run, and the next job is."""
    cluster.start_head()
    job = submit(cluster, "touch ran")
    spoil(cluster, "UPDATE blobs SET data = CAST('#!/bin/sh' AS BLOB)")

    cluster.start_node("n1")

    assert "damaged" in outcome(cluster, job).message
    assert not (cluster.jobs / "ran").exists()
    other = submit(cluster, "touch other")
    assert outcome(cluster, other).exit_code == 0


def test_a_shell_that_holds_the_database_hangs_nobody(cluster: Cluster) -> None:
    """gsub is told what is so, gstat shows what it can, and all goes on afterwards (B3)."""
    cluster.start_head()
    cluster.start_node("n1")
    first = submit(cluster, "true")
    cluster.head.wait([first])
    shell = sqlite3.connect(database(cluster), isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")

    with pytest.raises(TryAgainError, match="another program holds the database"):
        submit(cluster, "touch after")
    shown = run_command("gstat", head=str(cluster.socket))
    assert shown.status == 0
    assert "may not be durable yet" in shown.stderr
    with pytest.raises(TryAgainError):
        submit(cluster, "true")

    shell.execute("ROLLBACK")
    shell.close()
    wait_until((cluster.jobs / "after").exists, what="the job of the commit that waited")
    last = wait_until(lambda: accepted(cluster), what="the head to take jobs again")
    assert outcome(cluster, last).exit_code == 0


def accepted(cluster: Cluster) -> int:
    """Return the id of a new job, or 0 while the head takes none."""
    with contextlib.suppress(TryAgainError):
        return submit(cluster, "true")
    return 0
