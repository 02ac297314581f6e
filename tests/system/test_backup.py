"""Backups of a real head under load, killed in the middle, and put in place elsewhere."""

import json
import os
import signal
from pathlib import Path

import pytest

from gschedd.upkeep.backups import BackupManifest, verify
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.judge import Judge
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def gsched(cluster: Cluster, *arguments: str, fail: str = "") -> Ran:
    return run_command(
        "gsched",
        *arguments,
        "--config",
        str(cluster.directory / "head.toml"),
        env={"GSCHED_FAIL": fail},
    )


def checked(path: Path) -> BackupManifest:
    return verify(str(path), lambda _what, _done, _total: None)


@pytest.mark.parametrize("point", ["backup.before_check", "backup.before_rename"])
def test_backups_under_load_are_each_one_moment_also_after_one_was_killed(
    cluster: Cluster, judge: Judge, point: str
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    target = cluster.directory / "backups"
    submissions = [Submission(cluster, *[a_job(cluster, judge)] * 5) for _ in range(4)]
    killed = gsched(cluster, "backup", str(target), fail=f"{point}:kill")
    assert killed.status == -signal.SIGKILL
    (left,) = os.listdir(target)
    assert left.endswith(".partial")
    if point == "backup.before_check":
        refused = gsched(cluster, "restore", "--check", str(target / left))
        assert refused.status == 156
        assert "is not a backup of gsched" in refused.stderr

    made = gsched(cluster, "backup", str(target), "--json")

    assert made.status == 0, made.stderr
    jobs = [job for submission in submissions for job in submission.ids()]
    (name,) = os.listdir(target)
    contents = checked(target / name).contents
    assert contents.rows["jobs"] == contents.rows["specs"] == contents.next_job - 1
    assert json.loads(made.stdout)["backup"]["path"] == str(target / name)
    wait_for_end(cluster, jobs)


def test_a_backup_on_a_new_machine_runs_each_job_once_and_gives_no_number_twice(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=1)
    (ended,) = Submission(cluster, a_job(cluster, judge)).ids()
    wait_for_end(cluster, [ended])
    (runs,) = Submission(cluster, a_job(cluster, judge, judge.gate(), code=5)).ids()
    wait_for_starts(judge, [runs])
    (waits,) = Submission(cluster, a_job(cluster, judge, code=6)).ids()
    used_s = cluster.head.shares().rows[0].cpu_s
    assert used_s > 0
    target = cluster.directory / "backups"
    assert gsched(cluster, "backup", str(target)).status == 0
    (later,) = Submission(cluster, a_job(cluster, judge)).ids()
    (backup,) = target.iterdir()
    refused = gsched(cluster, "restore", str(backup))
    assert refused.status == 78
    assert "another gschedd" in refused.stderr
    cluster.kill_head()
    cluster.state_dir.rename(cluster.directory / "lost")
    cluster.state_dir.mkdir(mode=0o700)

    restored = gsched(cluster, "restore", str(backup))

    assert restored.status == 0, restored.stderr
    assert "safe mode" in restored.stdout
    cluster.start_head()
    assert cluster.head.shares().rows[0].cpu_s == used_s
    assert "SAFE MODE: there is no mark" in cluster.log("head.log")
    wait_until(lambda: "n1 has obeyed" in cluster.head.status().safe_mode, what="what n1 knows")
    wait_until(lambda: cluster.head.recovery().nodes, what="the node to report its jobs")
    recovered = run_command("gsched", "recover", "--accept", head=cluster.socket)
    assert recovered.status == 0, recovered.stdout
    wait_until(judge.open_gate)
    wait_for_end(cluster, [runs, waits])
    assert [judge.count("start", job) for job in (runs, waits)] == [1, 1]
    (new,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert new > later


def test_a_directory_that_cannot_be_made_is_refused_with_what_to_do(cluster: Cluster) -> None:
    cluster.start_head()
    config = cluster.directory / "head.toml"
    ran = gsched(cluster, "backup", str(config / "below"))

    assert ran.status == 73
    assert f"{config}/below: cannot be created" in ran.stderr
    assert "the account of the head, can write" in ran.stderr
