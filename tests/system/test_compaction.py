"""Real training jobs fragment two real nodes; one is moved for another that needs a whole node."""

from typing import Final

import pytest

from gsched.client import HeadClient
from scripts.reproduce.compaction_case import Part, Told
from scripts.reproduce.compaction_live import Live
from scripts.reproduce.compaction_main import costs_of
from scripts.reproduce.compaction_sim import simulate
from tests.support.cluster import Cluster
from tests.support.commands import run_command
from tests.support.forks import training_server
from tests.support.torch_python import TORCH_START

pytestmark = [pytest.mark.timeout(420), pytest.mark.xdist_group("moves")]

#: The first ones run for longer than the last one can wait, however busy this machine is.
PARTS: Final = (
    Part(name="opener", work_s=3.0, gpus=2, node="n2", submit_s=0.0),
    Part(name="left", work_s=600.0, deadline_s=3000.0, submit_s=0.5),
    Part(name="filler", work_s=5.0, deadline_s=3000.0, submit_s=0.5),
    Part(name="right", work_s=600.0, deadline_s=3000.0, submit_s=1.0),
    Part(name="whole", work_s=3.0, gpus=2, deadline_s=200.0, submit_s=None),
)


class Desk:
    """Where the user of a cluster sits."""

    def __init__(self, cluster: Cluster, policy: str) -> None:
        self._cluster = cluster
        cluster.trains = training_server()  # or skip
        cluster.queues = f'\n[training]\npolicy = "{policy}"\nmove_s = 15\n'
        cluster.start_head()
        for name in ("n1", "n2"):
            cluster.start_node(name, cpus=4, gpus=2)

    @property
    def head(self) -> HeadClient:
        return self._cluster.head

    def run(self, *command: str) -> tuple[str, str]:
        name, *arguments = command
        if name == "gsub":
            arguments[:0] = ["-v", f"PYTHONPATH={TORCH_START}"]
        ran = run_command(
            name, *arguments, head=self._cluster.socket, cwd=self._cluster.jobs, env={"TZ": "UTC"}
        )
        assert ran.status == 0, ran
        return ran.stdout, ran.stderr


def decided(told: Told) -> list[str]:
    return [str(step) for step in told.steps]


def test_a_fragment_is_moved_and_the_third_is_in_time_live_as_simulated(cluster: Cluster) -> None:
    """Under DRS; with what the real run measured the simulator decides the same."""
    desk = Desk(cluster, "drs")
    live = Live(desk, "drs", PARTS)
    live.fragment()
    live.add_last()
    live.wait_for(["whole"])
    told = live.told()

    assert decided(told)[-2:] == ["left n1>n2", "whole n1"]
    assert told.met("whole")
    assert "expected to be met" in live.said["whole"]
    assert decided(simulate("drs", costs_of(told), PARTS)) == decided(told)

    left = live.story("left")
    assert (left.row.state, left.row.moves, left.row.nodes) == ("running", 1, ("n2",))
    assert left.move is not None
    assert left.checkpoint is not None
    assert left.checkpoint.at_s <= (left.move.left_s or 0.0)
    assert live.story("right").row.moves == 0
    assert "to make room for job" in desk.run("gstat", "-f", str(live.jobs["left"]))[0]
    desk.run("gdel", "-W", "0", str(live.jobs["left"]), str(live.jobs["right"]))
