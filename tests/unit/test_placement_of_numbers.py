"""Numbers of GPUs turned into places: who stays, who moves, and that it always works out."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.resources import Allocation, Request, Share
from gsched.model.states import Placement
from gschedd.allocation.placement import PlacementRequest, fits, settle
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import gpus_by_node
from tests.support.training_jobs import elastic, gpu_nodes


def on(node: str, *indices: int) -> Allocation:
    """Return what a training has that runs on these GPUs of a node."""
    count = len(indices)
    return (Share(node=node, cpus=count, slots=count, gpu_indices=indices),)


def wanted(
    job: int, gpus: int, allocation: Allocation = (), request: Request | None = None
) -> PlacementRequest:
    return PlacementRequest(
        job=job, gpus=gpus, request=request or elastic(1, 64), allocation=allocation
    )


def beside(nodes: dict[str, FreeNode], training_jobs: Sequence[PlacementRequest]) -> Spaces:
    """Return what is free beside what training jobs have."""
    free = Spaces(nodes)
    for each in training_jobs:
        free.take(each.allocation)
    return free


def places(
    nodes: dict[str, FreeNode], training_jobs: Sequence[PlacementRequest]
) -> dict[int, Allocation]:
    return settle(beside(nodes, training_jobs), training_jobs)


def test_a_new_training_goes_where_it_leaves_the_least() -> None:
    """Two GPUs beside six that are taken, and not on the node that is whole."""
    nodes = gpu_nodes(8, 8)

    found = places(nodes, [wanted(1, 6, on("n1", *range(6))), wanted(2, 2)])

    assert found == {1: on("n1", *range(6)), 2: on("n1", 6, 7)}


def test_who_keeps_its_number_stays_where_it_is_if_there_is_room_for_the_others() -> None:
    """The other one grows on its own node, and keeps the GPUs that it has."""
    nodes = gpu_nodes(8)

    found = places(nodes, [wanted(1, 2, on("n1", 2, 3)), wanted(2, 4, on("n1", 6, 7))])

    assert found == {1: on("n1", 2, 3), 2: on("n1", 0, 1, 6, 7)}


def test_who_shrinks_keeps_what_it_has_as_far_as_it_may() -> None:
    assert places(gpu_nodes(8), [wanted(1, 2, on("n1", 4, 5, 6, 7))]) == {1: on("n1", 4, 5)}


def test_fragments_are_joined_by_moving_the_fewest() -> None:
    """A whole node is needed: of the two that are half empty the one with less on it is vacated."""
    nodes = gpu_nodes(4, 4)
    running = [wanted(1, 2, on("n1", 0, 1)), wanted(2, 1, on("n2", 3))]

    found = places(nodes, [*running, wanted(3, 4)])

    assert found == {1: on("n1", 0, 1), 2: on("n1", 2), 3: on("n2", 0, 1, 2, 3)}


def test_a_pinned_job_stays_and_the_other_is_spread() -> None:
    """A whole node is needed, and neither job may leave its own: the third one gets two of each."""
    nodes = gpu_nodes(4, 4)
    running = [
        structs.replace(wanted(1, 2, on("n1", 0, 1)), pinned=True),
        structs.replace(wanted(2, 1, on("n2", 3)), pinned=True),
    ]

    found = places(nodes, [*running, wanted(3, 4)])

    assert (found[1], found[2]) == (on("n1", 0, 1), on("n2", 3))
    assert sum(gpus_by_node(found[3]).values()) == 4


def test_more_than_a_node_has_goes_to_whole_nodes() -> None:
    """Nobody has to move for it: the node on which one runs is left alone."""
    nodes = gpu_nodes(4, 4, 4)

    found = places(nodes, [wanted(1, 1, on("n2", 0)), wanted(2, 8)])

    assert found[1] == on("n2", 0)
    assert gpus_by_node(found[2]) == {"n1": 4, "n3": 4}


def test_what_is_asked_for_in_one_piece_is_not_spread() -> None:
    packed = Request(chunks=elastic().chunks, placement=Placement.PACK, places_max=8)

    assert places(gpu_nodes(4, 4), [wanted(1, 8, (), packed)]) == {}
    assert gpus_by_node(places(gpu_nodes(4, 4), [wanted(1, 8)])[1]) == {"n1": 4, "n2": 4}


def test_where_cpus_have_run_out_gpus_are_of_no_use() -> None:
    """Six GPUs, but only four CPUs."""
    assert places(gpu_nodes(6, cpus=4), [wanted(1, 6)]) == {}
    assert gpus_by_node(places(gpu_nodes(6, cpus=4), [wanted(1, 4)])[1]) == {"n1": 4}


def test_who_runs_on_a_node_that_was_drained_stays() -> None:
    """Nobody else is put there; two cannot both go to the other node, so the new one gets none."""
    nodes = gpu_nodes(2, 2)
    running = wanted(1, 2, on("n1", 0, 1))
    free = beside(nodes, [running])
    closed = Spaces({each.name: each for each in free})
    closed.put(_drained(free["n1"]))

    assert settle(closed, [running, wanted(2, 2)]) == {1: on("n1", 0, 1), 2: on("n2", 0, 1)}
    assert settle(closed, [running, wanted(2, 4)]) == {1: on("n1", 0, 1)}


def _drained(space: FreeNode) -> FreeNode:
    fields = {name: getattr(space, name) for name in space.__struct_fields__}
    return FreeNode(**{**fields, "open": False})


@st.composite
def alike(draw: st.DrawFn) -> tuple[dict[str, FreeNode], list[PlacementRequest]]:
    """Return nodes alike, training jobs somewhere on them, and numbers that are powers of two."""
    size = draw(st.sampled_from([2, 4, 8]))
    nodes = gpu_nodes(*[size] * draw(st.integers(1, 4)))
    free = [(name, index) for name in nodes for index in range(size)]
    free = list(draw(st.permutations(free)))
    left = len(free)
    made: list[PlacementRequest] = []
    for job in range(1, draw(st.integers(1, 8)) + 1):
        gpus = draw(st.sampled_from([0, 1, 2, 4, 8, 16]))
        if gpus > left:
            continue
        left -= gpus
        count = draw(st.sampled_from([0, 1, 2, 4]))
        owned, free = free[:count], free[count:]
        allocation = tuple(
            Share(node=name, cpus=len(mine), slots=len(mine), gpu_indices=mine)
            for name in nodes
            if (mine := tuple(sorted(index for at, index in owned if at == name)))
        )
        made.append(wanted(job, gpus, allocation))
    return nodes, made


@given(alike())
def test_powers_of_two_on_nodes_alike_always_find_room(
    given_: tuple[dict[str, FreeNode], list[PlacementRequest]],
) -> None:
    """As long as there are enough GPUs, whoever runs where: all get their numbers, none overlap."""
    nodes, training_jobs = given_
    free = beside(nodes, training_jobs)

    found = settle(free, training_jobs)

    assert {job: sum(gpus_by_node(place).values()) for job, place in found.items()} == {
        each.job: each.gpus for each in training_jobs
    }
    left = Spaces(nodes)
    for place in found.values():
        assert fits(place, left)
        left.take(place)
    for each in training_jobs:
        if each.gpus <= len(next(iter(nodes.values())).all_gpus) and each.gpus:
            assert len(found[each.job]) == 1 or found[each.job] == each.allocation
