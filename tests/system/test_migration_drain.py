"""Two real training jobs leave a node drained with --migrate, and none of them loses a bit."""

import json
import os

import pytest

from gsched.client import new_job
from gsched.protocol.job_rows import JobStory
from gsched.protocol.node_rows import NodeRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.elastic_runs import SCRIPT, release
from tests.support.forks import training_server
from tests.support.migration import HOLD_AT, OPTIONS, TIMEOUT_S, Watch
from tests.support.torch_python import TRAINING_PATH, torch_python

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("moves")]


class Drained:
    """Two nodes of four GPUs, and two training jobs of two on the first one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.python = torch_python("sklearn")
        cluster.trains = training_server()
        cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'  # it fills n1 first
        cluster.start_head()
        for name in ("n1", "n2"):
            cluster.start_node(name, cpus=8, gpus=4)
        self.watch = Watch(cluster.directory)

    def train(self, name: str) -> str:
        """Start a training that holds at a step; return its number."""
        directory = self.cluster.jobs / name
        directory.mkdir()
        job = new_job(
            name=name,
            workdir=str(directory),
            launch="torchrun",
            python=self.python,
            # slow enough that all ranks hear of the request before the last step
            arguments=(
                *(str(SCRIPT), str(directory)),
                *(*OPTIONS, "--step-s=0.03", f"--hold-at={HOLD_AT}"),
            ),
            resources=("nodes=1:ppn=2:gpus=2",),
            environment={
                "PYTHONPATH": TRAINING_PATH,
                "OMP_NUM_THREADS": "1",
                "PATH": os.environ["PATH"],
            },
            movable=True,
            join="oe",
        )
        result = self.cluster.head.submit([job]).results[0]
        assert result.error is None, result.error
        return str(result.id)

    def holds(self, name: str, number: str) -> bool:
        """Return whether a training holds, and the head has heard of it."""
        there = (self.cluster.jobs / name / f"held-{HOLD_AT}").exists()
        return there and self.story(number).progress is not None

    def story(self, number: str) -> JobStory:
        return self.cluster.head.job(number)

    def node(self, name: str) -> NodeRow:
        return {row.name: row for row in self.cluster.head.nodes().nodes}[name]

    def result(self, name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(
            (self.cluster.jobs / name / "result.json").read_text()
        )
        return found


def test_all_training_jobs_of_a_drained_node_go_on_elsewhere(
    cluster: Cluster, expected: dict[str, object]
) -> None:
    """Each once, both on the other node, with the weights of one that nobody disturbed."""
    site = Drained(cluster)
    names = ("first", "second")
    numbers = {name: site.train(name) for name in names}
    for name, number in numbers.items():
        wait_until(lambda n=name, i=number: site.holds(n, i), TIMEOUT_S, what=name)  # type: ignore[misc] # mypy cannot type a default in a lambda
        assert site.story(number).row.nodes == ("n1",)

    ran = run_command("gnodes", "drain", "n1", "--migrate", "-m", "new driver", head=cluster.socket)
    assert (ran.status, ran.stdout) == (0, "n1: drained: 2 jobs migrate to other nodes\n"), ran
    for name in names:
        release(cluster.jobs / name, HOLD_AT, when_asked=True)
    wait_until(lambda: not site.node("n1").jobs, TIMEOUT_S, what="an empty node")
    node = site.node("n1")
    assert (node.drained, node.gpus_free, node.reason) == (True, 4, "new driver")
    for number in numbers.values():
        wait_until(
            lambda i=number: site.story(i).row.state == "done",  # type: ignore[misc] # as above
            TIMEOUT_S,
            what=f"the end of job {number}",
        )
    site.watch.stop()

    assert site.watch.overlaps == []
    for name, number in numbers.items():
        story = site.story(number)
        assert story.row.outcome is not None
        assert story.row.outcome.exit_code == 0, story.row.outcome
        assert (story.row.moves, story.row.attempt, story.row.nodes) == (1, 2, ("n2",))
        assert story.row.moves_cost_s > 0
        assert any("n1 is drained: new driver" in event.text for event in story.events)
        assert site.result(name)["weights"] == expected["weights"]
