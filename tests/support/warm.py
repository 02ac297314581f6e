"""Clusters that run already, for tests that kill no daemon and need no settings of their own.

The start of head, node and launcher takes 0.2 s of CPU time. Each worker keeps one cluster of a
kind and lends it to one test after the other. A test gets a directory for its jobs; the numbers of
its jobs do not begin with 1. The jobs that it leaves are deleted. A cluster that is not as it was
(a daemon has ended, a node is drained, the head has dropped a message) is not lent again.
"""

import os
from pathlib import Path
from typing import NamedTuple

from gsched.errors import GschedError
from gsched.protocol import actions as a
from tests.support.cluster import Cluster, wait_until


class Kind(NamedTuple):
    """What the one node of a cluster has; no CPUs: there is no node."""

    cpus: int = 0
    gpus: int = 0


class WarmClusters:
    """Those of one worker."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._idle: dict[Kind, Cluster] = {}
        self._loans = 0

    def lend(self, kind: Kind) -> Cluster:
        """Return a running cluster."""
        self._loans += 1
        cluster = self._idle.pop(kind, None)
        if cluster is None:
            cluster = self._start(kind)
        cluster.jobs = cluster.directory / f"jobs{self._loans}"
        cluster.jobs.mkdir()
        return cluster

    def _start(self, kind: Kind) -> Cluster:
        marker = f"warm-{os.getpid()}-{self._loans}"
        cluster = Cluster(self._directory / str(self._loans), marker)
        try:
            cluster.start_head()
            if kind.cpus:
                cluster.start_node("n1", cpus=kind.cpus, gpus=kind.gpus)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def take_back(self, kind: Kind, cluster: Cluster) -> None:
        """Keep a cluster for the next test, without the jobs of the last one.

        Raises:
            AssertionError: these could not be deleted.
        """
        is_kept = False
        try:
            _delete_jobs(cluster)
            is_kept = _is_as_it_was(cluster)
        except GschedError:
            pass  # the head does not answer
        finally:
            if is_kept:
                self._idle[kind] = cluster
            else:
                cluster.stop()

    def close(self) -> None:
        """Stop all."""
        for cluster in self._idle.values():
            cluster.stop()


class Lender:
    """Lends clusters to one test: ``warm(cpus=2)``, and ``warm.head_only()`` without a node."""

    def __init__(self, clusters: WarmClusters) -> None:
        self._clusters = clusters
        self._lent: list[tuple[Kind, Cluster]] = []

    def __call__(self, *, cpus: int = 4, gpus: int = 0) -> Cluster:
        """Return a cluster with one node, ``n1``."""
        return self._lend(Kind(cpus, gpus))

    def head_only(self) -> Cluster:
        """Return a cluster without nodes: nothing starts."""
        return self._lend(Kind())

    def _lend(self, kind: Kind) -> Cluster:
        cluster = self._clusters.lend(kind)
        self._lent.append((kind, cluster))
        return cluster

    def give_back(self) -> None:
        """Give all back."""
        while self._lent:
            self._clusters.take_back(*self._lent.pop())

    def logs(self) -> dict[str, str]:
        """Return the end of each log of these clusters, for the report of a failure."""
        return {name: text for _, each in self._lent for name, text in each.logs().items()}


def _is_as_it_was(cluster: Cluster) -> bool:
    """Return whether all daemons live, no node is closed, and no message was dropped."""
    if not cluster.is_alive() or cluster.head.status().dropped:
        return False
    return all(
        row.state == "up" and not row.drained and not row.windows
        for row in cluster.head.nodes().nodes
    )


def _delete_jobs(cluster: Cluster) -> None:
    def unfinished() -> list[str]:
        return [str(row.id) for row in cluster.head.jobs().jobs if row.state != "done"]

    if not (left := unfinished()):
        return
    cluster.head.act(a.DeleteJob(ids=tuple(left), grace_s=0.0))
    wait_until(lambda: not unfinished(), what=f"jobs {left} to be deleted")
