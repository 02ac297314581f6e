"""Predictions on a real cluster: made, kept over a restart, scored, shown, and purged."""

import sqlite3

import msgspec
import pytest

from gsched.protocol.predictions import NodePredictionRow, NodePredictions, PredictionsReply
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command

#: Needs a second of CPU time, whatever else runs.
BUSY = "i=0; while [ $i -lt 1000000 ]; do i=$((i + 1)); done"


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    ran = run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran


def past(cluster: Cluster, *arguments: str) -> PredictionsReply:
    """Return what ghist --predictions says of past runs."""
    ran = run(cluster, "ghist", "--predictions", "--json", *arguments)
    return msgspec.json.decode(ran.stdout, type=PredictionsReply)


def node_now(cluster: Cluster, *names: str) -> NodePredictionRow:
    """Return what gnodes --predictions says of the only node."""
    ran = run(cluster, "gnodes", "--predictions", "--json", *names)
    (node,) = msgspec.json.decode(ran.stdout, type=NodePredictions).nodes
    return node


def run_busy(cluster: Cluster, count: int) -> list[str]:
    """Run jobs of one kind, one after the other, and return their ids."""
    ids: list[str] = []
    for _ in range(count):
        asked = ("--kind", "busy", "-o", "/dev/null", "-j", "oe", "--", "sh", "-c", BUSY)
        job = run(cluster, "gsub", *asked).stdout.strip()
        run(cluster, "gwait", job)
        ids.append(job.partition(".")[0])
    return ids


def start(cluster: Cluster, more: str = "") -> None:
    """Start a head with the default policy and a node of two CPUs."""
    cluster.queues = more
    cluster.start_head()
    cluster.start_node("n1", cpus=2, sample_s=0.2)


def rows_of(cluster: Cluster) -> list[int]:
    """Return the jobs in the history."""
    db = sqlite3.connect(f"file:{cluster.state_dir / 'gsched.db'}?mode=ro", uri=True)
    found = [row[0] for row in db.execute("SELECT job FROM history ORDER BY id")]
    db.close()
    return found


def test_a_restarted_head_still_knows_what_a_kind_costs(cluster: Cluster) -> None:
    """And says so beside what was measured; the first one it could only guess."""
    start(cluster)
    before = run_busy(cluster, 3)
    cluster.kill_head()
    cluster.start_head()
    cluster.wait_for_node("n1")
    (after,) = run_busy(cluster, 1)

    last, first = past(cluster, after, before[0]).rows
    walls_s = [each.measured.wall_s or 0.0 for each in past(cluster, *before).rows]

    assert (last.job, first.job) == (int(after), int(before[0]))
    assert (first.basis, first.records) == ("requested", 0)
    assert (last.basis, last.records) == ("kind", 3)
    assert last.kind.endswith(":kind:busy"), "whose job it is sees its kind"
    said, measured, high = last.predicted, last.measured, last.high
    assert said is not None
    assert said.wall_s is not None
    assert measured.wall_s is not None
    assert 0.8 * min(walls_s) <= said.wall_s <= 1.25 * max(walls_s), "as those of its kind took"
    assert last.errors.wall == pytest.approx(said.wall_s / measured.wall_s - 1)
    assert measured.use.cpu_cores > 0
    assert said.use.cpu_cores > 0
    assert high is not None
    assert high.wall_s is not None
    assert said.wall_s <= high.wall_s
    errors = past(cluster, "--name", "sh").errors
    assert errors.wall is not None
    assert errors.wall.runs == 3, "of the first one no run time was predicted"
    assert errors.cpu is not None
    assert errors.cpu.runs == 4
    table = run(cluster, "ghist", "--predictions").stdout.splitlines()
    assert [line.split("\t")[0] for line in table[1:]] == [
        f"{job}.test" for job in (after, *reversed(before))
    ]


def test_nodes_are_shown_with_what_is_expected_there(cluster: Cluster) -> None:
    """Of the job that runs now, beside the last heartbeat and the errors of those before."""
    start(cluster)
    run_busy(cluster, 2)
    asked = ("--kind", "busy", "-o", "/dev/null", "-j", "oe", "--", "sleep", "60")
    job = run(cluster, "gsub", *asked).stdout.strip()
    wait_until(lambda: cluster.head.job(job).row.state == "running", what="the job to run")

    node = node_now(cluster, "n1")

    assert (node.name, node.jobs, node.unpredicted) == ("n1", 1, 0)
    assert node.has.memory_bytes > 0
    assert node.predicted.cpu_cores > 0
    assert node.measured is not None
    assert node.measured.memory_bytes > 0
    assert node.errors.cpu is not None
    assert node.errors.cpu.runs == 2
    run(cluster, "gdel", job)
    wait_until(lambda: cluster.head.job(job).row.state == "done", what="the job to end")
    node = node_now(cluster)
    assert (node.jobs, node.predicted.cpu_cores) == (0, 0)


def test_a_head_that_is_told_not_to_learn_keeps_nothing(cluster: Cluster) -> None:
    """And says why there is nothing to show."""
    start(cluster, "[history]\nlearn = false\n")
    run(cluster, "gwait", run(cluster, "gsub", "--", "true").stdout.strip())

    assert rows_of(cluster) == []
    assert "does not learn" in run(cluster, "ghist", "--predictions").stderr
    assert "does not learn" in run(cluster, "gnodes", "--predictions").stderr


def test_a_head_purges_when_an_operator_wants_it(cluster: Cluster) -> None:
    """What it is told to; a job that runs meanwhile goes on, and ids go on where they were."""
    start(cluster)
    for _ in range(3):
        run(cluster, "gwait", run(cluster, "gsub", "--", "true").stdout.strip())
    running = run(cluster, "gsub", "--", "sleep", "600").stdout.strip()
    wait_until(lambda: cluster.head.job(running).row.state == "running", what="the job to run")
    assert rows_of(cluster) == [1, 2, 3]
    assert cluster.stop_head() == 0
    cluster.queues = "[history]\nkeep_rows = 1\nkeep_jobs_days = 1e-6\n"
    cluster.start_head()
    cluster.wait_for_node("n1")

    run(cluster, "gsched", "tasks", "run", "purge")
    assert rows_of(cluster) == [3]
    left = run_command("gstat", "-f", "1", head=cluster.socket)
    assert left.status != 0
    assert "Unknown Job Id 1.test" in left.stderr
    assert cluster.head.job(running).row.state == "running"
    run(cluster, "gdel", running)
    wait_until(lambda: cluster.head.job(running).row.outcome, what="the job to end")
    assert run(cluster, "gsub", "--", "true").stdout.strip() == "5.test"
