"""A request that can never be met: which term is to blame, in words."""

import pytest

from gsched.model.request import parse_resources
from gsched.model.resources import Gpu
from gschedd.plan.never import explain_never
from gschedd.plan.space import FreeNode, Spaces

GB = 1024**3


def space(name: str, *, cpus: int, gpus: int = 0, features: tuple[str, ...] = ()) -> FreeNode:
    owned = tuple(Gpu(index=index, type="a100") for index in range(gpus))
    return FreeNode(
        name=name,
        cpus=cpus,
        memory_bytes=8 * GB,
        gpus=owned,
        generic=(("licence", 2),),
        total_cpus=cpus,
        total_memory_bytes=8 * GB,
        total_gpus=gpus,
        total_generic=(("licence", 2),),
        all_gpus=owned,
        features=frozenset({name, *features}),
    )


IDLE = Spaces({"n1": space("n1", cpus=8, features=("ssd",)), "n2": space("n2", cpus=4, gpus=2)})


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (
            "nodes=1:ppn=64",
            (
                "needs 64 CPUs on one node, but no node can provide that; "
                "the largest is n1 with 8 CPUs"
            ),
            "nodes=N",
        ),
        (
            "nodes=1:ppn=2:gpus=3",
            (
                "needs 3 GPUs on one node, but no node can provide that; "
                "the largest is n2 with 4 CPUs, 2 GPUs"
            ),
            "nodes=N",
        ),
        (
            "nodes=1,mem=9gb",
            (
                "needs 9gb memory on one node, but no node can provide that; "
                "the largest is n1 with 8 CPUs, 8gb memory"
            ),
            "nodes=N",
        ),
        (
            "nodes=5",
            "needs 5 nodes, but there are only 2; the largest is n1 with 8 CPUs",
            "at most 2",
        ),
        (
            "nodes=2:ppn=6",
            "needs 2 nodes with 6 CPUs, but only 1 of 2 nodes can; the largest is n1 with 8 CPUs",
            "nodes=N",
        ),
        (
            "nodes=1:ppn=2:nvme",
            "no node is named nvme and none has the feature nvme",
            "nodes and features here: n1, n2, ssd",
        ),
        (
            "nodes=1:gpus=1:gpu_type=h100",
            (
                "needs 1 GPU (h100) on one node, but no node can provide that; "
                "the largest is n1 with 8 CPUs"
            ),
            "GPU types here: a100",
        ),
        (
            "nodes=1,licence=3",
            (
                "needs 3 licence on one node, but no node can provide that; "
                "the largest is n1 with 8 CPUs, "
                "2 licence"
            ),
            "ask for less",
        ),
        (
            "nodes=1:ppn=8:gpus=1",
            (
                "needs 8 CPUs, 1 GPU on one node, but no node can provide that; "
                "the largest is n2 with 4 CPUs, 2 GPUs"
            ),
            "one node must have all of that at once",
        ),
        (
            "select=2:ncpus=8,place=pack",
            (
                "needs 16 CPUs on one node, but no node can provide that; "
                "the largest is n1 with 8 CPUs"
            ),
            "nodes=N",
        ),
        (
            "select=4:ncpus=4",
            (
                "needs 4 chunks with 16 CPUs and 0 GPUs in total; 2 nodes with 12 CPUs and 2 GPUs "
                "cannot hold all of them at the same time, even when idle"
            ),
            "fewer",
        ),
    ],
)
def test_the_term_that_fails_is_named_with_the_largest_node(
    asked: str, message: str, hint: str
) -> None:
    request = parse_resources([asked], generic_names={"licence"}).request

    said = explain_never(request, IDLE)

    assert said[0] == message
    assert hint in said[1]


def test_a_scattered_job_of_more_chunks_than_nodes_says_so() -> None:
    """Each chunk fits; smaller ones would not help."""
    asked = parse_resources(["select=1:ncpus=1+2:ncpus=2,place=scatter"], generic_names=()).request
    assert asked is not None

    message, hint = explain_never(asked, IDLE)

    assert message == "place=scatter needs 3 nodes, there are 2"
    assert "place=free" in hint
