"""Pre-emption on real daemons: a job gives way by its QOS, and runs again; also with kill -9."""

from pathlib import Path

import pytest

from gsched.protocol.job_rows import JobRow
from tests.support.cluster import Cluster, wait_until
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)
RULES = """
[[qos]]
name = "high"
preempts = ["low"]
[[qos]]
name = "low"
[preemption]
by = ["qos"]
min_run_s = 0
[[queue]]
name = "batch"
"""


def submit(cluster: Cluster, qos: str, script: str, *words: str) -> str:
    options = ("-o", "/dev/null", "-e", "/dev/null", "--qos", qos, "--cpus", "2", *words)
    ran = run_here("gsub", *options, "--", "sh", "-c", script, head=cluster.socket)
    assert ran.status == 0, ran.stderr
    return ran.stdout.partition(".")[0].strip()


def row(cluster: Cluster, job: str) -> JobRow:
    return cluster.head.jobs([job]).jobs[0]


def runs(journal: Path) -> int:
    return len(journal.read_text().splitlines()) if journal.exists() else 0


@pytest.mark.parametrize("killed", [False, True], ids=["head-lives", "head-killed"])
def test_a_rerunnable_job_gives_way_to_a_job_of_a_higher_qos_and_runs_again(
    cluster: Cluster, *, killed: bool
) -> None:
    """The job that must not be rerun stays; the other one begins again when its node is free."""
    cluster.queues = RULES
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=2)
    journal, go = cluster.jobs / "journal", cluster.jobs / "go"
    stays = submit(cluster, "low", "sleep 600", "-r", "n")
    gives_way = submit(cluster, "low", f"echo began >> {journal}; sleep 600")
    wait_until(lambda: runs(journal) == 1)
    wait_until(lambda: all(row(cluster, job).state == "running" for job in (stays, gives_way)))
    (node,) = row(cluster, gives_way).nodes

    high = submit(cluster, "high", f"until [ -e {go} ]; do sleep 0.1; done")
    wait_until(lambda: row(cluster, gives_way).state in {"exiting", "queued"})
    if killed:
        cluster.kill_head()
        cluster.start_head()
    wait_until(lambda: row(cluster, high).state == "running", timeout_s=60)
    assert row(cluster, high).nodes == (node,)
    assert row(cluster, gives_way).state == "queued"
    assert row(cluster, stays).state == "running"

    go.touch()
    wait_until(lambda: runs(journal) == 2, timeout_s=60)
    wait_until(lambda: row(cluster, gives_way).state == "running")
    assert row(cluster, stays).state == "running"
