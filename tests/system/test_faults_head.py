"""A1 to A9 of the fault table: the head is killed between any two steps of a job's life."""

from pathlib import Path

import pytest

from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from tests.support.cluster import Cluster, wait_until
from tests.support.judge import Judge, facts_of, verdict
from tests.support.mishaps import (
    Submission,
    a_job,
    delete,
    restart_dead_head,
    wait_for_death,
    wait_for_end,
    wait_for_starts,
)


@pytest.fixture
def judge(cluster: Cluster) -> Judge:
    return Judge(cluster.jobs)


def database(cluster: Cluster) -> Path:
    return cluster.state_dir / "gsched.db"


def submitted(cluster: Cluster) -> list[int]:
    return [fact.job for fact in facts_of(database(cluster)) if isinstance(fact, f.JobSubmitted)]


def armed(point: str) -> dict[str, str]:
    return {"GSCHED_FAIL": f"{point}:kill"}


def ready(cluster: Cluster, *nodes: str) -> None:
    """Start head and nodes, then stop the head, so that it can be started with a failpoint."""
    cluster.start_head()
    for name in nodes:
        cluster.start_node(name, wait=False)
    for name in nodes:
        cluster.wait_for_node(name)
    cluster.stop_head()


#: A head that stands still does so until the end of its test, seconds.
STUCK_S = 600


def start_armed(cluster: Cluster, point: str, *nodes: str) -> None:
    cluster.start_head(armed(point))
    for name in nodes:
        cluster.wait_for_node(name)


def start_stuck(cluster: Cluster, point: str, *nodes: str) -> None:
    """Start a head that stands still at a failpoint, until it is killed.

    A head that is killed right after it has sent a message may take the message along: its
    connection is reset if it had something to read itself.
    """
    cluster.start_head({"GSCHED_FAIL": f"{point}:sleep={STUCK_S}"})
    for name in nodes:
        cluster.wait_for_node(name)


def test_a1_head_killed_after_reading_a_submit_before_commit_gives_one_job(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1")
    start_armed(cluster, "head.submit.before_commit", "n1")

    submission = Submission(cluster, a_job(cluster, judge))
    wait_for_death(cluster.head_process)
    assert submitted(cluster) == []
    cluster.start_head()
    (job,) = submission.ids()

    wait_for_end(cluster, [job])
    assert submitted(cluster) == [job]
    assert judge.count("start", job) == 1
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []


def test_a2_head_killed_after_commit_before_ack_answers_the_retry_with_the_same_id(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1")
    start_armed(cluster, "head.submit.after_commit", "n1")

    submission = Submission(cluster, a_job(cluster, judge))
    wait_for_death(cluster.head_process)
    (committed,) = submitted(cluster)
    cluster.start_head()

    assert submission.ids() == [committed]
    wait_for_end(cluster, [committed])
    assert submitted(cluster) == [committed]
    assert judge.count("start", committed) == 1
    assert verdict(judge, database(cluster), [committed], attempts_max=1) == []


def test_a2_the_same_key_gives_the_same_id_long_after_the_job_is_over(
    cluster: Cluster, judge: Judge
) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    asked = a_job(cluster, judge)
    (job,) = Submission(cluster, asked).ids()
    wait_for_end(cluster, [job])

    cluster.kill_head()
    cluster.start_head()

    assert Submission(cluster, asked).ids() == [job]
    assert submitted(cluster) == [job]


def test_a3_head_killed_after_ack_before_scheduling_keeps_job_and_queue_time(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster)
    start_armed(cluster, "head.submit.after_ack")

    (job,) = Submission(cluster, a_job(cluster, judge)).ids()
    restart_dead_head(cluster)

    story = cluster.head.job(job)
    (fact,) = (x for x in facts_of(database(cluster)) if isinstance(x, f.JobSubmitted))
    assert story.row.state == "queued"
    assert story.row.submitted_s == fact.at_s < cluster.head.status().started_s
    cluster.start_node("n1")
    wait_for_end(cluster, [job])
    assert judge.count("start", job) == 1
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []


def test_a4_head_killed_after_placement_before_launch_sends_the_same_attempt_again(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1")
    start_armed(cluster, "head.assign.after_commit", "n1")

    submission = Submission(cluster, a_job(cluster, judge))
    wait_for_death(cluster.head_process)
    assert not list((cluster.node_dir("n1") / "attempts").iterdir())  # nothing has been sent
    cluster.start_head()

    wait_for_end(cluster, submission.ids())
    assert verdict(judge, database(cluster), submission.ids(), attempts_max=1) == []


def test_a5_head_killed_after_launch_was_sent_finds_the_attempt_running(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1")
    start_stuck(cluster, "head.launch.after_send", "n1")

    submission = Submission(cluster, a_job(cluster, judge, judge.gate()))
    wait_until(judge.lines, what="the job to run without a head")
    cluster.kill_head()
    cluster.start_head()
    (job,) = submission.ids()

    wait_until(lambda: cluster.head.job(job).row.started_s, what="the head to know it runs")
    assert cluster.head.job(job).row.attempt == 1
    wait_until(lambda: judge.open_gate() and cluster.head.job(job).row.state == "done")
    assert judge.count("start", job) == 1
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []


def test_a6_head_killed_between_two_nodes_launches_sends_the_missing_one(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1", "n2")
    start_stuck(cluster, "head.launch.after_send", "n1", "n2")

    job = a_job(cluster, judge, judge.gate(), resources=("nodes=2",), every_node=True)
    submission = Submission(cluster, job)
    wait_until(judge.lines, what="the part that was launched to run")
    cluster.kill_head()
    launched = [n for n in ("n1", "n2") if list((cluster.node_dir(n) / "attempts").iterdir())]
    assert len(launched) == 1
    cluster.start_head()
    (number,) = submission.ids()
    wait_for_starts(judge, [number], 2)

    wait_until(lambda: judge.open_gate() and cluster.head.job(number).row.state == "done")
    assert {line.node for line in judge.lines() if line.what == "start"} == {"n1", "n2"}
    assert verdict(judge, database(cluster), [number], attempts_max=1) == []


@pytest.mark.parametrize("when", ["before_commit", "after_commit", "after_ack"])
def test_a7_a8_head_killed_over_an_exit_report_records_it_once(
    cluster: Cluster, judge: Judge, when: str
) -> None:
    ready(cluster, "n1")
    start_armed(cluster, f"head.exit.{when}", "n1")

    submission = Submission(cluster, a_job(cluster, judge, code=3))
    wait_for_death(cluster.head_process)
    ended = [x for x in facts_of(database(cluster)) if isinstance(x, f.PartEnded)]
    assert len(ended) == (0 if when == "before_commit" else 1)
    cluster.start_head()
    (job,) = submission.ids()

    (story,) = wait_for_end(cluster, [job])
    assert story.row.outcome is not None
    assert story.row.outcome.exit_code == 3
    cluster.wait_for_node("n1")  # which has reported it a second time by now
    cluster.kill_head()
    cluster.start_head()
    cluster.wait_for_node("n1")
    assert cluster.head.job(job).events == story.events
    assert cluster.head.history().total_jobs == 1
    assert judge.count("start", job) == 1
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []


def test_a9_head_killed_after_committing_a_deletion_still_ends_the_job(
    cluster: Cluster, judge: Judge
) -> None:
    ready(cluster, "n1")
    start_armed(cluster, "head.delete.after_commit", "n1")
    (job,) = Submission(cluster, a_job(cluster, judge, judge.gate())).ids()
    wait_for_starts(judge, [job])

    assert delete(cluster.head, job) is None
    restart_dead_head(cluster)

    (story,) = wait_for_end(cluster, [job])
    assert story.row.outcome is not None
    assert story.row.outcome.kind == OutcomeKind.CANCELLED
    assert judge.count("end", job) == 0
    assert verdict(judge, database(cluster), [job], attempts_max=1) == []
