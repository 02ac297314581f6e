"""GPU types and layouts on nodes with GPUs of several types: one rule for the head and policies."""

import pytest
from msgspec import structs

from gsched.model.resources import Share
from gschedd.allocation.changes import Speeds
from gschedd.plan.layouts import fastest, held_gpus, layout_of, slowest_type
from gschedd.plan.space import Spaces
from gschedd.plan.training import Fabric
from gschedd.policies.training.drs.options import FreeNodes, form_of
from tests.support.spaces import space
from tests.support.training_jobs import elastic, snapshot_of

FABRIC = Fabric(devices={"fast": 1.0, "slow": 0.25})
#: Two GPUs of each type on one node, the fast ones first; and a node of slow ones.
MIXED = space("mixed", cpus=8, gpu_types=("fast", "fast", "slow", "slow"))
NODES = Spaces({"mixed": MIXED, "slow": space("slow", cpus=8, gpu_types=("slow", "slow"))})


def on(node: str, *gpus: int) -> Share:
    return Share(node=node, cpus=len(gpus), gpu_indices=gpus)


@pytest.mark.parametrize(
    ("allocation", "device"),
    [
        ((on("mixed", 0, 1),), 1.0),
        ((on("mixed", 2),), 0.25),
        ((on("mixed", 0, 3),), 0.25),
        ((on("mixed", 0), on("slow", 0)), 0.25),
        ((on("unknown", 0),), 1.0),
    ],
)
def test_an_allocation_is_as_fast_as_the_slowest_of_its_own_gpus(
    allocation: tuple[Share, ...], device: float
) -> None:
    """Whatever else its nodes have, and in whatever order."""
    layout = layout_of(allocation, NODES.gpus_of, FABRIC)

    assert layout.device == device
    assert layout.gpus == sum(len(share.gpu_indices) for share in allocation)


def test_where_no_type_differs_in_speed_none_is_looked_at() -> None:
    """The layout is the same as with types."""
    allocation = (on("mixed", 0, 3), on("slow", 0))
    same = structs.replace(FABRIC, devices={"fast": 1.0, "slow": 1.0})

    assert layout_of(allocation, NODES.gpus_of, Fabric()) == layout_of(
        allocation, NODES.gpus_of, same
    )


def test_without_gpus_the_cpus_count() -> None:
    """As in what an idle cluster could give; a place without any counts as one."""
    allocation = (Share(node="mixed", cpus=3), Share(node="slow", cpus=0))

    assert layout_of(allocation, NODES.gpus_of, FABRIC).counts == (3, 1)


def test_before_gpus_are_chosen_the_slowest_counts_and_at_best_the_fastest() -> None:
    """The order of a node's GPUs makes no difference."""
    for gpus in (MIXED.all_gpus, MIXED.all_gpus[::-1]):
        assert slowest_type(gpus, FABRIC) == "slow"
        assert fastest(gpus, FABRIC) == 1.0
    assert slowest_type((), FABRIC) == ""
    assert held_gpus((on("mixed", 1, 2),), NODES.gpus_of) == {"mixed": MIXED.all_gpus[1:3]}


def test_policies_that_count_gpus_plan_a_mixed_node_by_its_slowest() -> None:
    """It was the first GPU's type: a deadline could be guaranteed at four times the true speed."""
    seen = structs.replace(snapshot_of({"mixed": MIXED}, []), fabric=FABRIC)
    speeds = Speeds(seen)

    assert speeds.layout(2).device == 0.25
    assert speeds.layout_of((on("mixed", 0, 1),)).device == 1.0


@pytest.mark.parametrize(("gpu_type", "device"), [("", 0.25), ("slow", 0.25), ("fast", 1.0)])
def test_a_request_for_a_type_is_planned_with_that_type(gpu_type: str, device: float) -> None:
    """It was the slowest of the node, also for a request that only takes the fast ones."""
    free = FreeNodes(form_of(elastic(gpu_type=gpu_type)), Spaces({"mixed": MIXED}), FABRIC)

    assert {option.layout.device for option in free.options((1, 2))} == {device}
