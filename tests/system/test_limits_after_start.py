"""Limits count what runs from the first moment after a start of the head (T71)."""

from functools import partial

from gsched.client import new_job
from tests.support.cluster import Cluster, wait_until

SLEEP = "#!/bin/sh\nexec sleep 600\n"


def test_t71_a_limit_counts_running_jobs_from_the_first_cycle_after_a_start(
    cluster: Cluster,
) -> None:
    """The node's report is not waited for: what the database has counts."""
    cluster.queues = "[limits.each_user]\nmax_running = 1\n"
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name)
    jobs = [new_job(name="j", workdir=str(cluster.jobs), script=SLEEP) for _ in range(2)]
    first, second = (result.id for result in cluster.head.submit(jobs).results)
    wait_until(lambda: cluster.head.job(first).row.state == "running", what="the first job")
    busy = cluster.head.job(first).row.nodes[0]
    cluster.kill_node(busy)  # only the other node registers
    cluster.kill_head()
    cluster.start_head()
    free = {"n1": "n2", "n2": "n1"}[busy]
    cluster.wait_for_node(free)
    third = cluster.head.submit([new_job(name="k", workdir="/", script=SLEEP)]).results[0].id

    for job in (second, third):
        wait_until(partial(_names_limit, cluster, job), what="the reason")
        assert cluster.head.job(job).row.state == "queued"


def _names_limit(cluster: Cluster, job: int) -> bool:
    return "limit" in cluster.head.job(job).row.reason
