"""Policies other than the default one, on a real head and two nodes."""

import pytest

from tests.support.cluster import Cluster
from tests.support.commands import Ran, run_command


def run(cluster: Cluster, name: str, *arguments: str) -> Ran:
    return run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)


def start(cluster: Cluster, policy: str) -> None:
    cluster.queues = f'\n[[queue]]\nname = "batch"\npolicy = "{policy}"\n'
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=8)
        cluster.wait_for_node(name)


@pytest.mark.parametrize("policy", ["fifo", "balance"])
def test_jobs_end_well_under_the_policy(cluster: Cluster, policy: str) -> None:
    """More jobs than CPUs, in two waves, so that what the first cost is known to the second."""
    start(cluster, policy)

    assert cluster.head.status().policy == policy
    for wave in range(2):
        for _ in range(10):
            assert run(cluster, "gsub", "-l", "nodes=1:ppn=2", "--", "true").status == 0
        ids = [str(10 * wave + number + 1) for number in range(10)]
        assert run(cluster, "gwait", *ids).status == 0
