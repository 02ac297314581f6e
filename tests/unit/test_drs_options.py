"""Plans for training jobs on what is free: which there are, how fast, and where they lie."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.resources import Chunk, Request
from gsched.model.states import Placement
from gschedd.plan.layouts import has_alike_gpus
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import BETWEEN_BYTES_S, INSIDE_BYTES_S, Fabric, Layout, gpus_by_node
from gschedd.policies.training.drs.choice import Curve, best_of
from gschedd.policies.training.drs.options import FreeNodes, Paces, PlacementOption, form_of
from tests.support.spaces import space
from tests.support.training_jobs import (
    ALEXNET,
    RESNET50,
    elastic,
    gpu_nodes,
)

FORM = form_of(elastic())


def free_nodes(
    nodes: Mapping[str, FreeNode],
    *,
    form: Request = FORM,
    fabric: Fabric | None = None,
) -> FreeNodes:
    return FreeNodes(form, Spaces(nodes), fabric or Fabric())


def described(options: tuple[PlacementOption, ...]) -> list[tuple[int, bool, tuple[int, ...]]]:
    return [(each.gpus, each.across, each.layout.counts) for each in options]


def placed(nodes: FreeNodes, option: PlacementOption) -> dict[str, int]:
    return gpus_by_node(nodes.allocate(option))


def test_every_plan_is_made_once() -> None:
    """On one node up to the most that is free there, across nodes up to all; fewest nodes first."""
    nodes = free_nodes(gpu_nodes(1, 3))

    assert described(nodes.options((1, 2, 3, 4, 5))) == [
        (1, False, (1,)),
        (2, False, (2,)),
        (3, False, (3,)),
        (2, True, (1, 1)),
        (3, True, (2, 1)),
        (4, True, (3, 1)),
    ]


def test_a_single_node_has_no_plans_across_nodes() -> None:
    """The paper makes them where several nodes have free GPUs."""
    assert {each.across for each in free_nodes(gpu_nodes(4, 0)).options((1, 2))} == {False}


def test_a_plan_for_one_node_takes_the_best_fit() -> None:
    """The first in order of free GPUs that has enough."""
    nodes = free_nodes(gpu_nodes(4, 2, 3))
    (option, *_) = nodes.options((3,))

    assert placed(nodes, option) == {"n3": 3}


def test_a_plan_across_nodes_uses_up_the_smallest_first() -> None:
    """What each has until there is enough; the allocation begins with the node with the most."""
    nodes = free_nodes(gpu_nodes(4, 2, 1))
    option = next(each for each in nodes.options((5,)) if each.across)

    assert placed(nodes, option) == {"n1": 2, "n2": 2, "n3": 1}
    assert [share.node for share in nodes.allocate(option)][-1] == "n3"


def test_a_plan_across_nodes_may_land_on_one_and_is_timed_there() -> None:
    """The smallest node has enough for it: then it is as fast as inside that node."""
    nodes = free_nodes(gpu_nodes(3, 4))
    option = next(each for each in nodes.options((2,)) if each.across)

    assert placed(nodes, option) == {"n1": 2}
    assert option.layout == Layout(counts=(2,), bandwidth_bytes_s=INSIDE_BYTES_S)


def test_what_is_taken_is_seen_after_a_refresh() -> None:
    """As if all had been looked at anew."""
    nodes = gpu_nodes(4, 4, 2)
    spaces = Spaces(nodes)
    seen = FreeNodes(FORM, spaces, Fabric())
    for count in (2, 3, 1):
        allocation = seen.allocate(seen.options((count,))[0])
        spaces.take(allocation)
        seen.refresh([share.node for share in allocation])
        anew = FreeNodes(FORM, spaces, Fabric())

        assert seen.options(range(1, 11)) == anew.options(range(1, 11))
        assert seen.fewest == anew.fewest


def test_places_of_several_gpus_are_not_broken() -> None:
    """Two GPUs for each place: an odd one is no use."""
    nodes = free_nodes(gpu_nodes(3, 2, 1), form=form_of(elastic(1, 4, gpus=2)))

    assert described(nodes.options((2, 4))) == [
        (2, False, (2,)),
        (2, True, (2,)),
        (4, True, (2, 2)),
    ]


def test_places_that_scatter_or_pack_do_so() -> None:
    """One place a node, or all of them on one."""
    scatter = Request(chunks=(Chunk(count=2, gpus=2),), placement=Placement.SCATTER)
    packed = structs.replace(elastic(), placement=Placement.PACK)

    assert [each.layout.counts for each in free_nodes(
        gpu_nodes(4, 4), form=form_of(scatter)).options((4,))] == [(2, 2)]  # fmt: skip
    assert {each.across for each in free_nodes(
        gpu_nodes(4, 4), form=form_of(packed)).options((1, 2, 5))} == {False}  # fmt: skip


def test_other_resources_limit_gpus() -> None:
    """A node with four GPUs and one CPU gives one place."""
    nodes = {"n1": space("n1", cpus=1, gpu_types=("",) * 4)}

    assert described(free_nodes(nodes).options((1, 2))) == [(1, False, (1,))]


def test_bandwidth_is_that_of_the_slowest_connection_used() -> None:
    """Each pair of nodes may have its own, and each node inside."""
    fabric = Fabric(between={("n1", "n2"): 1e9, ("n1", "n3"): 2e9}, inside={"n2": 40e9})
    nodes = free_nodes(gpu_nodes(1, 2, 3), fabric=fabric)
    options = nodes.options((1, 2, 3, 4, 5))
    found = {(each.gpus, each.across): each.layout for each in options if not each.pool}

    assert found[2, False].bandwidth_bytes_s == 40e9  # n2
    assert found[3, True].bandwidth_bytes_s == 1e9  # n1, n2
    assert found[4, True].bandwidth_bytes_s == 1e9
    assert free_nodes(gpu_nodes(0, 2, 3), fabric=fabric).options((4,))[0].layout == Layout(
        counts=(2, 2), bandwidth_bytes_s=BETWEEN_BYTES_S
    )


def test_on_several_kinds_of_nodes_there_are_plans_within_each() -> None:
    """Else the small fast node would only be used together with slow ones."""
    nodes = {
        "slow": space("slow", gpu_types=("old",) * 2),
        "fast": space("fast", gpu_types=("new",) * 4),
        "fast2": space("fast2", gpu_types=("new",) * 4),
    }
    fabric = Fabric(devices={"new": 2.0})
    kinds = free_nodes(nodes, fabric=fabric)

    assert {each.layout.device for each in kinds.options((6,))} == {1.0, 2.0}
    best = max(kinds.options((6,)), key=lambda each: each.layout.device)
    assert placed(kinds, best) == {"fast": 4, "fast2": 2}
    (first, *_) = kinds.options((2,))
    assert placed(kinds, first) == {"slow": 2}, "best fit over all nodes comes first"


def test_a_plan_that_is_no_longer_free_is_refused() -> None:
    """Rather than placed elsewhere."""
    option = free_nodes(gpu_nodes(4)).options((3,))[0]

    with pytest.raises(ValueError, match="not what is free"):
        free_nodes(gpu_nodes(2)).allocate(option)


def test_requests_of_other_kinds_are_placed_whole() -> None:
    """Several chunks, or no GPUs: no count can be chosen for them."""
    assert has_alike_gpus(elastic())
    assert not has_alike_gpus(Request(chunks=(Chunk(gpus=1), Chunk(gpus=2))))
    assert not has_alike_gpus(Request())


def test_a_plan_slower_than_one_gpu_has_no_pace() -> None:
    """Inequality 11; the fewest that it may have are exempt, or it could never run."""
    paces = Paces()
    two = Layout(counts=(2,))

    assert paces[ALEXNET, 1][two] == float("inf")
    assert paces[ALEXNET, 2][two] == pytest.approx(1 / ALEXNET.rate(two))
    assert paces[RESNET50, 1][two] == pytest.approx(1 / RESNET50.rate(two))


# --- performance ---

_paced = st.lists(
    st.tuples(st.integers(1, 8), st.floats(0.01, 2.0)), max_size=8, unique_by=lambda each: each[0]
)


def options_of(pairs: list[tuple[int, float]]) -> list[tuple[PlacementOption, float]]:
    return [
        (PlacementOption(gpus=gpus, layout=Layout(counts=(gpus,))), pace)
        for gpus, pace in sorted(pairs)
    ]


@given(_paced, st.floats(0.1, 100), st.floats(-50, 200))
@example([(1, 3.0), (2, 2.0)], 1.0, 4.0)  # both perform alike: the one on fewer GPUs is taken
def test_one_training_alone_gets_what_a_curve_says(
    pairs: list[tuple[int, float]], work: float, slack_s: float
) -> None:
    """For one it is worked out at once, for many of one speed by a curve: the plan is the same."""
    options = options_of(pairs)
    curve = Curve(options)

    paces = {option.layout: pace for option, pace in options}
    alone = best_of([each for each, _ in options], paces, work=work, slack_s=slack_s)

    assert alone == curve.choices(work, slack_s)


@given(_paced, st.floats(0.1, 100), st.floats(-50, 200))
def test_the_best_plan_is_that_of_trying_all(
    pairs: list[tuple[int, float]], work: float, slack_s: float
) -> None:
    """Equation 12 for each plan: the largest that is not below 0, fewer GPUs where equal."""
    tried = {gpus: (slack_s - work * pace) / gpus for gpus, pace in pairs}
    met = {gpus: value for gpus, value in tried.items() if value >= 0}
    found = Curve(options_of(pairs)).choices(work, slack_s)[0]

    if found is None:
        assert not met
    else:
        best = max(tried.values())
        assert tried[found[0].gpus] == pytest.approx(best, abs=1e-3 + 1e-9 * work)


def test_a_plan_below_the_hull_is_never_best() -> None:
    """Two GPUs gain so little that either one or three are better, whatever time is left."""
    curve = Curve(options_of([(1, 1.0), (2, 0.9), (3, 0.2)]))
    chosen = []
    for slack_s in (0.5, 1.05, 1.2, 1.39, 1.41, 2.0, 9.0):
        found = curve.choices(1.0, slack_s)[0]
        assert found is not None
        chosen.append(found[0].gpus)

    assert chosen == [3, 3, 3, 3, 1, 1, 1]


@given(_paced)
def test_the_fastest_plan_is_on_the_fewest_gpus_that_are_so_fast(
    pairs: list[tuple[int, float]],
) -> None:
    """Among equals the one that takes less."""
    found = Curve(options_of(pairs)).fastest

    if not pairs:
        assert found is None
    else:
        assert found is not None
        least = min(pace for _, pace in pairs)
        assert (found[0].gpus, found[1]) == min(each for each in pairs if each[1] == least)


def test_a_deadline_that_is_just_met_is_met() -> None:
    """Equality counts, and rounding does not."""
    curve = Curve(options_of([(1, 0.1)]))

    assert curve.choices(3.0, 3.0 * 0.1)[0] is not None
    assert curve.choices(3.0, 3.0 * 0.1 - 1e-6)[0] is not None
    assert curve.choices(3.0, 3.0 * 0.1 - 0.1)[0] is None
    assert curve.choices(3.0, float("-inf"))[0] is None
    assert curve.choices(0.0, 0.0)[0] is not None
