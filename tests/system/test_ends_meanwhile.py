"""Jobs that end while somebody asks for them by their numbers."""

from gsched.client import new_job
from tests.support.cluster import Cluster

JOBS = 25


def submitted(cluster: Cluster) -> int:
    """Submit a job that ends at once; return its number."""
    job = new_job(name="short", workdir=str(cluster.jobs), script="#!/bin/sh\n")
    return cluster.head.submit([job]).results[0].id


def test_a_job_that_ends_while_the_database_is_read_is_known(cluster: Cluster) -> None:
    """It is in the head's memory before, and only in the database afterwards."""
    cluster.start_head()
    cluster.start_node("n1")
    first = submitted(cluster)
    cluster.head.wait([first], timeout_s=60.0)

    for _ in range(JOBS):
        asked = [first, submitted(cluster)]
        states: list[str] = []
        while states != ["done", "done"]:
            found = cluster.head.jobs(asked)
            assert found.errors == {}
            assert cluster.head.stories(asked).errors == {}
            states = [row.state for row in found.jobs]
