"""Nodes that come back with fewer GPUs, or with the same ones in another order."""

from msgspec import structs

from gsched.model.resources import Gpu, Inventory
from gsched.model.states import NodeState
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from tests.scenario.test_node_identity import ROOT
from tests.support.machines import Machine, inventory
from tests.support.world import World


def having(*uuids: str) -> Inventory:
    """Return a node's hardware: a GPU for each UUID, empty for a declared one."""
    gpus = tuple(Gpu(index=index, type="a100", uuid=uuid) for index, uuid in enumerate(uuids))
    return structs.replace(inventory(), gpus=gpus)


def come_back(world: World, *uuids: str) -> str:
    """Let n1 register with other GPUs; return why it is drained, or nothing."""
    world.replace_hardware("n1", having(*uuids))
    node = world.head.state.nodes["n1"]
    assert node.state is NodeState.UP
    assert bool(node.reason) == node.drained
    return node.reason


def test_g7_a_node_that_lost_a_gpu_is_drained_until_an_operator_resumes_it() -> None:
    world = World(Machine("n1", having("GPU-0", "GPU-1", "GPU-2")))

    reason = come_back(world, "GPU-0", "GPU-2")

    assert reason == (
        "GPU 1 a100 is missing: GPU-1 was there at the last registration; "
        "check the GPUs, then resume the node"
    )
    job = world.submit("gpus=1")
    assert job not in world.done
    world.do(c.ActOnNode(caller=ROOT, node="n1", action=a.ResumeNode()))
    world.run_until(20.0)
    assert job in world.done
    assert come_back(world, "GPU-0", "GPU-2") == ""


def test_a_node_whose_driver_is_gone_is_drained() -> None:
    world = World(Machine("n1", having("GPU-0", "GPU-1")))

    assert come_back(world).startswith("GPUs 0 a100, 1 a100 are missing")


def test_g4_gpus_in_another_order_are_not_assigned_while_jobs_own_some() -> None:
    world = World(Machine("n1", having("GPU-0", "GPU-1")))
    job = world.submit("gpus=1")

    assert "in another order" in come_back(world, "GPU-1", "GPU-0")

    world.run_until(20.0)
    assert job in world.done
    world.do(c.ActOnNode(caller=ROOT, node="n1", action=a.ResumeNode()))
    assert come_back(world, "GPU-0", "GPU-1") == "", "nobody owns any"


def test_more_gpus_and_other_declared_ones_drain_nothing() -> None:
    world = World(Machine("n1", having("GPU-0", "", "")))
    world.submit("gpus=1")

    assert come_back(world, "GPU-0", "") == ""
    assert come_back(world, "GPU-0", "GPU-1", "GPU-2") == ""
