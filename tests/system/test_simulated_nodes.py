"""scripts/bench/nodes against a real head: what drives benchmarks is a node by the protocol."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gsched.client import new_job
from gsched.protocol import actions as a
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.processes import PATIENCE_S


@contextmanager
def simulated(cluster: Cluster, count: int, *, seconds: float) -> Iterator[None]:
    """Run the tool until the end of the block; it must end by SIGTERM without an error."""
    command = [
        sys.executable,
        str(ROOT / "scripts/bench/nodes_bench.py"),
        str(count),
        "--config",
        str(cluster.directory / "head.toml"),
        "--cpus",
        "4",
        "--seconds",
        str(seconds),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as tool:
        try:
            wait_until(lambda: up(cluster) == count, what="the nodes to be up")
            yield
        finally:
            tool.send_signal(signal.SIGTERM)
            _, errors = tool.communicate(timeout=PATIENCE_S)
    assert errors.decode() == ""
    assert tool.returncode == 0


def up(cluster: Cluster) -> int:
    return sum(row.state == "up" for row in cluster.head.nodes().nodes)


def submit(cluster: Cluster, resources: str, count: int = 1) -> list[int]:
    script = "#!/bin/sh\n"
    jobs = [
        new_job(name="x", workdir=str(cluster.jobs), script=script, resources=(resources,))
        for _ in range(count)
    ]
    return [result.id for result in cluster.head.submit(jobs).results]


def states(cluster: Cluster, ids: list[int]) -> set[str]:
    return {str(cluster.head.job(job).row.state) for job in ids}


def test_jobs_on_simulated_nodes_end_with_success(cluster: Cluster) -> None:
    cluster.start_head()
    with simulated(cluster, 3, seconds=0.0):
        ids = submit(cluster, "nodes=1:ppn=1", 30) + submit(cluster, "nodes=3:ppn=4", 2)
        wait_until(lambda: states(cluster, ids) == {"done"}, 60.0, what="all ends")

    outcomes = [cluster.head.job(job).row.outcome for job in ids]
    assert {outcome.kind for outcome in outcomes if outcome is not None} == {"exited"}


def test_a_simulated_node_obeys_a_stop_and_keeps_its_jobs_over_a_restart_of_the_head(
    cluster: Cluster,
) -> None:
    cluster.start_head()
    with simulated(cluster, 2, seconds=3600.0):
        deleted, kept = ids = submit(cluster, "nodes=1:ppn=4", 2)
        wait_until(lambda: states(cluster, ids) == {"running"}, what="two starts")
        cluster.head.act(a.DeleteJob(ids=(str(deleted),)))
        wait_until(lambda: states(cluster, [deleted]) == {"done"}, what="the end of one")
        cluster.kill_head()
        cluster.start_head()
        wait_until(lambda: up(cluster) == 2, what="the nodes to be back")

        assert states(cluster, [kept]) == {"running"}
        assert len(cluster.head.job(kept).attempts) == 1
