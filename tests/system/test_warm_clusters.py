"""What a test gets from a cluster that other tests have used (`tests.support.warm`)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.protocol import actions as a
from tests.support.cluster import Cluster, wait_until
from tests.support.warm import Lender, WarmClusters


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Lender]:
    clusters = WarmClusters(tmp_path)
    made = Lender(clusters)
    yield made
    made.give_back()
    clusters.close()


def test_a_cluster_is_lent_to_one_test_after_the_other(lender: Lender) -> None:
    first = lender(cpus=1)
    process = first.head_process.pid
    lender.give_back()

    assert lender(cpus=1).head_process.pid == process
    assert lender.head_only().head_process.pid != process


def test_the_next_test_finds_neither_jobs_nor_files_of_the_last_one(lender: Lender) -> None:
    first = lender(cpus=1)
    directory = first.jobs
    script = "#!/bin/sh\ntrap '' TERM\ntouch runs; while :; do sleep 0.1; done"
    long, waits = (new_job(name="x", workdir=str(directory), script=script) for _ in range(2))
    first.head.submit([long, waits])
    wait_until((directory / "runs").exists, what="the job's start")
    lender.give_back()

    second = lender(cpus=1)
    assert [row.state for row in second.head.jobs().jobs if row.state != "done"] == []
    assert second.jobs != directory
    assert list(second.jobs.iterdir()) == []


HARM: dict[str, Callable[[Cluster], object]] = {
    "a killed head": lambda cluster: cluster.kill_head(),
    "a killed node": lambda cluster: cluster.kill_node("n1"),
    "a drained node": lambda cluster: cluster.head.node_action(
        a.DrainNode(nodes=("n1",), reason="a test")
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_cluster_that_is_not_as_it_was_is_not_lent_again(lender: Lender, harm: str) -> None:
    first = lender()
    HARM[harm](first)
    lender.give_back()

    assert first.head_process.poll() is not None
    assert [row.state for row in lender().head.nodes().nodes] == ["up"]
