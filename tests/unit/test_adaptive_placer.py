"""Configurations that exist, and allocations of them: nothing is split, and little moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.model.resources import Allocation, Chunk, Request, Share
from gsched.model.states import Placement
from gschedd.allocation.adaptive.cluster import (
    Configurations,
    Extra,
    Pool,
    configurations_of,
    pool_of,
)
from gschedd.allocation.adaptive.placer import Placing, placed
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import gpu_count, gpus_by_node
from gschedd.plan.validate import covers
from tests.support.adaptive import typed_nodes
from tests.support.spaces import space
from tests.support.training_jobs import elastic


def listed(table: Configurations, gpu_type: str) -> list[tuple[int, int]]:
    """Return (nodes, GPUs) of the configurations of a type."""
    at = table.types.index(gpu_type)
    rows = range(int(table.starts[at]), int(table.starts[at + 1]))
    return [(int(table.nodes[row]), int(table.gpus[row])) for row in rows]


# --- configurations ---


def test_each_type_has_as_many_configurations_as_nodes_and_powers_of_two() -> None:
    """The 64 GPUs of the published evaluation: 6 + 2, 3 + 3 and 2 + 3 configurations."""
    nodes = {f"t{number}": ("t4", 4) for number in range(6)}
    nodes |= {f"r{number}": ("rtx", 8) for number in range(3)}
    nodes |= {f"a{number}": ("a100", 8) for number in range(2)}
    table = configurations_of(pool_of(typed_nodes(**nodes)))

    assert listed(table, "a100") == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16)]
    assert listed(table, "rtx") == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (3, 24)]
    assert listed(table, "t4") == [
        (1, 1), (1, 2), (1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (6, 24),
    ]  # fmt: skip
    assert table.capacity.tolist() == [16, 24, 24], "one resource for each type"


def test_nodes_that_are_no_power_of_two_count_as_virtual_nodes_that_are() -> None:
    """Seven GPUs are four, two and one: so eight of 15 are in nodes of four."""
    table = configurations_of(Pool(counts={"a": {"n1": 7, "n2": 7, "n3": 1}}))

    assert listed(table, "a") == [(1, 1), (1, 2), (1, 4), (2, 8)]
    assert table.capacity.tolist() == [15, 12, 8]
    assert table.usage[:, 3].tolist() == [8, 8, 8]
    assert table.usage[:, 1].tolist() == [2, 2, 0]


def test_several_nodes_are_those_of_which_there_is_most() -> None:
    """One idle node of eight among nodes of which other jobs have a part."""
    table = configurations_of(Pool(counts={"a": {"n1": 8, "n2": 5, "n3": 5, "n4": 4}}))

    assert listed(table, "a") == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 12), (4, 16)]


def test_what_one_job_needs_is_no_regular_configuration() -> None:
    pool = Pool(counts={"a": {"n1": 4, "n2": 4}})
    extras = [Extra(gpu_type="a", gpus=3), Extra(gpu_type="a", gpus=6), Extra(gpu_type="b", gpus=1)]
    table = configurations_of(pool, [*extras, Extra(gpu_type="a", gpus=9)])

    assert listed(table, "a") == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 6), (2, 8)]
    assert table.regular.tolist() == [True, True, False, True, False, True]


def test_the_pool_is_what_is_free_or_held_by_jobs_that_may_move() -> None:
    nodes = typed_nodes(n1=("a", 4), n2=("a", 4), n3=("t", 2))
    spaces = Spaces(nodes)
    held, other = share("n1", 0, 1), share("n2", 3)
    spaces.take([held, other])
    free = {each.name: each for each in spaces}

    assert pool_of(free, [(held,)]).counts == {"a": {"n1": 4, "n2": 3}, "t": {"n3": 2}}
    assert pool_of(free, [(held,)], {"a": 4, "b": 1}).counts == {"a": {"n1": 3}, "t": {"n3": 2}}


def share(node: str, *indices: int) -> Share:
    return Share(node=node, cpus=len(indices), slots=len(indices), gpu_indices=indices)


# --- placement ---


def placing(
    job: int, gpus: int, granule: int = 0, *, held: Allocation = (), stays: bool = False
) -> Placing:
    return Placing(
        job=job,
        request=elastic(1, 64),
        gpu_type="a",
        gpus=gpus,
        granule=granule or gpus,
        stays=stays,
        allocation=held,
    )


def test_the_fewest_and_smallest_are_evicted() -> None:
    """Four GPUs in one piece: a job of two makes room on n1, two of one on n2, one of one on n3."""
    nodes = typed_nodes(n1=("a", 4), n2=("a", 4), n3=("a", 4), n4=("a", 2))
    spaces = Spaces(nodes)
    held = {
        1: (share("n1", 0, 1),),
        2: (share("n2", 0),),
        3: (share("n2", 1),),
        4: (share("n3", 3),),
    }
    for allocation in held.values():
        spaces.take(allocation)
    stays = [
        placing(job, gpu_count(allocation), held=allocation, stays=True)
        for job, allocation in held.items()
    ]
    found = placed(spaces, [*stays, placing(5, 4)])

    assert gpus_by_node(found[5]) == {"n3": 4}
    assert gpus_by_node(found[4]) != {"n3": 1}
    assert all(found[job] == held[job] for job in (1, 2, 3))


def test_a_job_that_waits_gets_what_is_free_at_once() -> None:
    """Not what a job that leaves has, though that would leave less."""
    nodes = typed_nodes(n1=("a", 2), n2=("a", 4))
    spaces = Spaces(nodes)
    leaving = (share("n1", 0, 1),)
    spaces.take(leaving)

    assert gpus_by_node(placed(spaces, [placing(2, 2)], [leaving])[2]) == {"n2": 2}


def test_cpus_and_memory_hold_as_well() -> None:
    """n1 has GPUs and no CPUs; n2 has both."""
    nodes = {
        "n1": space("n1", cpus=1, gpu_types=("a",) * 2),
        "n2": space("n2", cpus=2, gpu_types=("a",) * 4),
    }

    assert gpus_by_node(placed(Spaces(nodes), [placing(1, 2)])[1]) == {"n2": 2}
    assert placed(Spaces(nodes), [placing(1, 4)]) == {}


def test_a_job_that_finds_no_room_keeps_what_it_has() -> None:
    """It was to grow to four GPUs, for which there are too few CPUs."""
    nodes = {"n1": space("n1", cpus=2, gpu_types=("a",) * 4)}
    spaces = Spaces(nodes)
    held = (share("n1", 0),)
    spaces.take(held)

    assert placed(spaces, [placing(1, 4, held=held)]) == {1: held}


def test_only_gpus_of_the_type_are_given() -> None:
    nodes = {"n1": space("n1", cpus=8, gpu_types=("b", "a", "b", "a"))}
    found = placed(Spaces(nodes), [placing(1, 2)])

    assert found[1][0].gpu_indices == (1, 3)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, FreeNode], dict[int, Allocation]]:
    """Return nodes, and allocations of powers of two on one of them, as fragmented as can be."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 7, 8]), min_size=1, max_size=6))
    nodes = typed_nodes(**{f"n{at}": ("a", size) for at, size in enumerate(sizes)})
    free = {name: list(range(each.total_gpus)) for name, each in nodes.items()}
    held: dict[int, Allocation] = {}
    for job in range(1, draw(st.integers(0, 12)) + 1):
        name = draw(st.sampled_from(sorted(nodes)))
        size = draw(st.sampled_from([1, 1, 1, 2, 4]))
        if len(free[name]) >= size:
            held[job] = (share(name, *sorted(free[name].pop() for _ in range(size))),)
    return nodes, held


@given(clusters(), st.data())
def test_every_choice_within_the_resources_is_placed_whole(
    cluster: tuple[dict[str, FreeNode], dict[int, Allocation]], data: st.DataObject
) -> None:
    """What the assignment may choose, the placer can place, whoever stays at first."""
    nodes, held = cluster
    spaces = Spaces(nodes)
    for allocation in held.values():
        spaces.take(allocation)
    free = {each.name: each for each in spaces}
    table = configurations_of(pool_of(free, held.values()))
    left = table.capacity.copy()
    placings: list[Placing] = []
    leaving: list[Allocation] = []
    for job in data.draw(st.permutations([*held, *range(100, 106)])):
        now = table.find("a", 1, gpu_count(held[job])) if job in held else -1
        pick = data.draw(st.sampled_from([now, now, -1, *range(len(table.gpus))]))
        if pick < 0 or np.any(table.usage[:, pick] > left):
            leaving.append(held.get(job, ()))
            continue
        left -= table.usage[:, pick]
        placings.append(
            placing(
                job,
                int(table.gpus[pick]),
                int(table.granules[pick]),
                held=held.get(job, ()),
                stays=pick == now,
            )
        )
    found = placed(spaces, placings, leaving)

    after = Spaces(nodes)
    for each in placings:
        assert each.job in found, f"no room for {each}"
        allocation = found[each.job]
        counts = gpus_by_node(allocation)
        assert sum(counts.values()) == each.gpus
        assert all(count % each.granule == 0 for count in counts.values()), "nothing is split"
        if all(space.total_gpus < 2 * each.granule for space in nodes.values()):
            assert len(counts) == each.gpus // each.granule, "each granule is a whole node"
        assert covers(each.request, allocation, after) == ""
        after.take(allocation)
    assert found.keys() == {each.job for each in placings}
    if all(each.stays for each in placings):
        assert all(found[each.job] == each.allocation for each in placings)


@given(clusters(), st.data())
def test_who_stays_is_moved_only_for_a_larger_job(
    cluster: tuple[dict[str, FreeNode], dict[int, Allocation]], data: st.DataObject
) -> None:
    """One job comes: if there is room in one piece, nothing moves, else only smaller ones do."""
    nodes, held = cluster
    spaces = Spaces(nodes)
    for allocation in held.values():
        spaces.take(allocation)
    size = data.draw(st.sampled_from([1, 2, 4]))
    stays = [placing(job, gpu_count(a), held=a, stays=True) for job, a in held.items()]
    found = placed(spaces, [*stays, placing(100, size)])
    moved = [job for job, allocation in held.items() if found.get(job) != allocation]

    if any(len(each.gpus) >= size for each in spaces):
        assert moved == []
    assert all(gpu_count(held[job]) < size for job in moved)
    sizes = [size, *map(gpu_count, held.values())]
    if all(
        sum(each for each in sizes if each >= least)
        <= sum(each.total_gpus // least * least for each in nodes.values())
        for least in (1, 2, 4)
    ):
        assert found.keys() == {100, *held}, "nobody loses what he has for one that comes"


def test_places_of_several_gpus_are_not_split() -> None:
    """Two GPUs a place: four of seven and two of three, not three of them."""
    request = Request(
        chunks=(Chunk(count=1, cpus=1, gpus=2),), placement=Placement.FREE, places_max=4
    )
    each = Placing(job=1, request=request, gpu_type="a", gpus=4, granule=4)
    found = placed(Spaces(typed_nodes(n1=("a", 3), n2=("a", 7))), [each])

    assert gpus_by_node(found[1]) == {"n2": 4}
    assert found[1][0].slots == 2


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_jobs_makes_no_difference(order: int) -> None:
    nodes = typed_nodes(n1=("a", 4), n2=("a", 4))
    jobs = [placing(job, size) for job, size in enumerate([1, 2, 4, 1], 1)]

    assert placed(Spaces(nodes), jobs[::order]) == placed(Spaces(nodes), jobs)
