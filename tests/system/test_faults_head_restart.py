"""A11 to A17 of the fault table: a head that is away, doubled, old, or restarted all the time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from tests.support import records
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.judge import Judge, facts_of, verdict
from tests.support.mishaps import Submission, a_job, wait_for_end, wait_for_starts

MANY_JOBS = 200
RESTARTS = 20


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def database(cluster: Cluster) -> Path:
    return cluster.state_dir / "gsched.db"


def exit_record(cluster: Cluster, node: str, job: int) -> dict[str, float | int | str]:
    """Wait for a supervisor's exit record and return it."""
    directory = cluster.node_dir(node) / "attempts" / f"{job}.1"
    wait_until(lambda: records.ended(directory), 60.0, what=f"the exit record of job {job}")
    record = records.ended(directory)
    assert record is not None
    return record


def test_a11_jobs_that_end_while_the_head_is_down_are_recorded_with_their_true_times(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=8)
    ends, fails, runs_over = Submission(
        cluster,
        a_job(cluster, judge, judge.gate()),
        a_job(cluster, judge, judge.gate(), code=9),
        a_job(cluster, judge, judge.gate("never"), resources=("walltime=3",)),
    ).ids()
    wait_for_starts(judge, [ends, fails, runs_over])
    cluster.kill_head()

    wait_until(
        lambda: judge.open_gate() and judge.count("end", ends) + judge.count("end", fails) == 2
    )
    records = {job: exit_record(cluster, "n1", job) for job in (ends, fails, runs_over)}
    cluster.start_head()

    stories = {s.row.id: s for s in wait_for_end(cluster, [ends, fails, runs_over])}
    back_s = cluster.head.status().started_s
    for job, story in stories.items():
        assert story.row.ended_s == records[job]["ended_s"]
        assert story.row.ended_s < back_s
        assert story.row.started_s == records[job]["started_s"]
    outcomes = {job: story.row.outcome for job, story in stories.items() if story.row.outcome}
    assert [outcomes[job].exit_code for job in (ends, fails)] == [0, 9]
    assert outcomes[runs_over].kind == OutcomeKind.WALLTIME  # its supervisor saw to it alone
    assert judge.count("end", runs_over) == 0
    assert verdict(judge, database(cluster), [ends, fails, runs_over], attempts_max=1) == []


def test_a12_a_second_head_on_the_same_state_directory_refuses_and_names_the_first(
    cluster: Cluster,
) -> None:
    cluster.start_head()
    config = cluster.directory / "head.toml"
    before = cluster.head.status()

    second = subprocess.run(
        [sys.executable, "-m", "gschedd.main", "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert second.returncode == 78
    assert f"pid {cluster.head_process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    after = cluster.head.status()  # by the same socket, which the second one has not taken away
    assert (
        (after.pid, after.epoch)
        == (before.pid, before.epoch)
        == (
            cluster.head_process.pid,
            before.epoch,
        )
    )


def test_a12_the_lock_of_a_killed_head_is_free_for_the_next(cluster: Cluster) -> None:
    cluster.start_head()
    first = cluster.head.status()
    cluster.kill_head()
    assert (cluster.state_dir / "gschedd.pid").read_text().strip() == str(first.pid)

    cluster.start_head()

    assert cluster.head.status().epoch == first.epoch + 1


def test_a13_a_head_on_an_old_copy_of_everything_starts_nothing_and_says_why(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    cluster.stop_head()
    copy = cluster.directory / "copy"
    shutil.copytree(cluster.state_dir, copy)  # the mark as well: only nodes can know better now
    for _ in range(2):
        cluster.start_head()
        cluster.wait_for_node("n1")
        cluster.stop_head()
    shutil.rmtree(cluster.state_dir)
    shutil.move(copy, cluster.state_dir)

    cluster.start_head()

    assert "is a copy" in cluster.head.status().safe_mode
    wait_until(lambda: "n1 has obeyed" in cluster.head.status().safe_mode, what="the node's word")
    cluster.kill_head()
    cluster.start_head()  # being restarted does not make it any younger
    assert cluster.head.status().safe_mode
    wait_until(lambda: "n1 has obeyed" in cluster.head.status().safe_mode, what="its word again")
    (result,) = cluster.head.submit([a_job(cluster, judge)]).results
    assert result.error is not None
    assert judge.lines() == []


def test_a13_an_old_head_hears_from_nodes_which_job_numbers_are_used(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    cluster.kill_head()
    copy = cluster.directory / "copy"
    shutil.copytree(cluster.state_dir, copy)
    cluster.start_head()
    jobs = Submission(cluster, *(a_job(cluster, judge) for _ in range(3))).ids()
    wait_for_end(cluster, jobs)
    cluster.stop_node("n1")
    cluster.kill_head()
    shutil.rmtree(cluster.state_dir)
    shutil.move(copy, cluster.state_dir)

    cluster.start_head()  # of the same epoch as the one before: the numbers of jobs tell
    cluster.start_node("n1", wait=False)
    wait_until(lambda: cluster.head.recovery().nodes, what="the node to tell what it knows")

    assert cluster.head.recover(accept=True).safe_mode == ""
    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    assert job > max(jobs)
    wait_for_end(cluster, [job])
    assert judge.count("start", job) == 1
    assert [judge.count("start", old) for old in jobs] == [1, 1, 1]


def test_a17_twenty_quick_restarts_lose_and_relaunch_none_of_200_running_jobs(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1", cpus=MANY_JOBS)
    jobs = Submission(
        cluster, *(a_job(cluster, judge, judge.gate()) for _ in range(MANY_JOBS))
    ).ids()
    wait_for_starts(judge, jobs)

    for _ in range(RESTARTS):
        cluster.kill_head()
        cluster.start_head()

    cluster.wait_for_node("n1")
    rows = cluster.head.jobs().jobs
    assert {row.id for row in rows} == set(jobs)
    assert {(row.state, row.attempt) for row in rows} == {("running", 1)}
    wait_until(lambda: judge.open_gate() and not cluster.head.jobs().jobs, 60.0)
    assert {judge.count("start", job) for job in jobs} == {1}
    launches = [x for x in facts_of(database(cluster)) if isinstance(x, f.AttemptAssigned)]
    assert len(launches) == MANY_JOBS
    assert verdict(judge, database(cluster), jobs, attempts_max=1) == []
