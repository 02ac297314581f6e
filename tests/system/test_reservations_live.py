"""Reservations on real daemons: on time with a long job in the way, and through kill -9."""

import getpass
import json
from typing import Any

import pytest

from gsched.protocol.job_rows import JobRow
from tests.support.cluster import Cluster, wait_until
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(240)
ME = getpass.getuser()
NO_OUTPUT = ("-o", "/dev/null", "-e", "/dev/null")


def run(cluster: Cluster, *words: str) -> str:
    ran = run_here(*words, head=cluster.socket)
    assert ran.status == 0, ran.stderr
    return ran.stdout


def submit(cluster: Cluster, *words: str) -> str:
    sleep = ("--", "sleep", "600")
    return run(cluster, "gsub", *NO_OUTPUT, *words, *sleep).partition(".")[0].strip()


def row(cluster: Cluster, job: str) -> JobRow:
    return cluster.head.jobs([job]).jobs[0]


def reserved(cluster: Cluster) -> list[dict[str, Any]]:
    return json.loads(run(cluster, "gres", "--json"))["reservations"]  # type: ignore[no-any-return]  # as it is


def restart(cluster: Cluster) -> None:
    """Kill -9 the head; the next one has what was durable."""
    cluster.kill_head()
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.wait_for_node(name)


def test_one_begins_with_a_long_job_in_the_way_and_no_other_job_starts_in_it(
    cluster: Cluster,
) -> None:
    """The head is killed after its creation, after its beginning and before its end."""
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=2)
    long = [submit(cluster, "--cpus", "2") for _ in range(2)]
    other = submit(cluster, "--cpus", "2", "--walltime", "10m")
    wait_until(lambda: all(row(cluster, job).state == "running" for job in long))
    words = ("--start", "+4s", "--duration", "1h", "--nodes", "1", "--users", ME)
    assert "in_the_way = " in run(cluster, "gres", "create", "course", *words)
    mine = submit(cluster, "--reservation", "course", "--cpus", "1")
    restart(cluster)
    (kept,) = reserved(cluster)
    (node,) = (share["node"] for share in kept["reservation"]["shares"])

    started_s = wait_until(lambda: row(cluster, mine).started_s, timeout_s=60)
    assert started_s is not None
    assert row(cluster, mine).nodes == (node,)
    assert started_s >= kept["reservation"]["from_s"] - 1.0
    left = [job for job in long if row(cluster, job).state == "queued"]
    assert len(left) == 1, "the one on that node has given way"
    restart(cluster)
    assert row(cluster, mine).state == "running"
    assert [each["running"] for each in reserved(cluster)] == [[int(mine)]]
    assert row(cluster, other).state == "queued"

    run(cluster, "gres", "alter", "course", "--end", "+2s")
    restart(cluster)
    wait_until(lambda: not reserved(cluster), timeout_s=60)
    wait_until(lambda: row(cluster, mine).state == "queued", timeout_s=60)
    wait_until(lambda: row(cluster, left[0]).state == "running", timeout_s=60)
    assert "there is no reservation course" in row(cluster, mine).reason
