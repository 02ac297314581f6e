"""What a head does periodically: times that passed while none ran, long runs, runs that fail."""

import sqlite3
import time
from contextlib import closing

import pytest

from gsched.protocol.tasks import TaskOutcome, TaskRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command

pytestmark = pytest.mark.timeout(120)

DUE = "task purge was due while no head ran: it runs now"


def schedule(cluster: Cluster, purge: str) -> None:
    cluster.queues = f'[tasks]\npurge = "{purge}"\npurge_users = "never"\ncheck_rows = "never"\n'


def row_of(cluster: Cluster, name: str = "purge") -> TaskRow:
    return next(row for row in cluster.head.tasks().tasks if row.name == name)


def is_done(cluster: Cluster) -> bool:
    return row_of(cluster).outcome is TaskOutcome.DONE


def listed_as(cluster: Cluster, word: str) -> str:
    """Return the list of tasks once it has a word, else nothing."""
    text = " ".join(run_command("gsched", "tasks", head=cluster.socket).stdout.split())
    return text if word in text else ""


def test_a_task_whose_times_passed_while_no_head_ran_runs_once_at_the_start(
    cluster: Cluster,
) -> None:
    """Whatever its schedule is then; a further restart does not run it again."""
    schedule(cluster, "4s")
    cluster.start_head()
    wait_until(lambda: is_done(cluster), what="the first run")
    before = row_of(cluster)
    assert cluster.stop_head() == 0
    assert before.started_s is not None
    due_s = before.started_s + 9.0  # two of its times
    wait_until(lambda: time.time() > due_s, what="two of its times")
    schedule(cluster, "1d")
    cluster.start_head()

    wait_until(lambda: is_done(cluster) and row_of(cluster).started_s != before.started_s)
    made_up = row_of(cluster)
    assert made_up.started_s is not None
    assert made_up.next_s is not None
    assert abs(made_up.next_s - made_up.started_s - 86_400.0) < 60.0
    assert cluster.log("head.log").count(DUE) == 1

    assert cluster.stop_head() == 0
    cluster.start_head()
    again = row_of(cluster)
    assert (again.started_s, again.outcome) == (made_up.started_s, TaskOutcome.DONE)
    assert abs((again.next_s or 0.0) - made_up.next_s) < 60.0
    assert cluster.log("head.log").count(DUE) == 1


def test_a_task_runs_once_at_a_time_and_says_why_it_failed(cluster: Cluster) -> None:
    """Another program holds the database for longer than the task's period, and than it waits."""
    schedule(cluster, "4s")
    cluster.start_head()
    wait_until(lambda: is_done(cluster), what="the first run")
    with closing(sqlite3.connect(cluster.state_dir / "gsched.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        running = wait_until(
            lambda: (row := row_of(cluster)).overlaps >= 2 and row, what="two more of its times"
        )
        shown = run_command("gsched", "tasks", head=cluster.socket)
        again = run_command("gsched", "tasks", "run", "purge", head=cluster.socket)
        listed = wait_until(lambda: listed_as(cluster, "failed"), 60.0, what="the run that fails")
        other.execute("ROLLBACK")

    assert running
    assert running.outcome is TaskOutcome.RUNNING
    assert "times while it ran" in " ".join(shown.stdout.split())
    assert again.status != 0
    assert "task purge runs already" in again.stderr
    log = cluster.log("head.log")
    assert "task purge still runs, since" in log
    assert "is not started a second time: its period is too short" in log

    assert "purge 4s" in listed
    assert "another program holds the database" in listed
    assert "task purge: another program holds the database; it runs again at its next time" in log
    wait_until(lambda: is_done(cluster), what="its next run")
    assert cluster.head_process.poll() is None
