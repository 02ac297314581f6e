"""The earliest possible end: nothing beats it, and on a plain cluster something reaches it."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.model.request import parse_resources
from gsched.model.resources import Request
from gschedd.core.training.best_case import MAX_COUNTS, shortest_run
from gschedd.models.runtime import PaperSpeed, WalltimeSpeed
from gschedd.plan.training import Fabric, Layout, Size
from tests.support.world import World, node, settings

VGG = Size(speed=PaperSpeed(parameters=138e6, batch=16, step_time_s=0.2), work=1e6)
SPEEDS = {"fast": 2.0, "slow": 0.5}


def asked(text: str, most: int = 0) -> Request:
    request = parse_resources([text], generic_names=()).request
    return structs.replace(request, places_max=most) if most > request.places else request


def spreads(rooms: list[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield every number of GPUs on each node, up to ``most`` together."""
    for counts in itertools.product(*(range(room + 1) for room in rooms)):
        if 0 < sum(counts) <= most:
            yield counts


@given(
    rooms=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    types=st.lists(st.sampled_from(["fast", "slow", "usual"]), min_size=3, max_size=3),
    most=st.integers(1, 12),
    between=st.sampled_from([1e9, 6e9, 50e9]),
    special=st.sampled_from([0.1e9, 100e9]),
)
def test_no_placement_beats_it(
    rooms: list[int], types: list[str], most: int, between: float, special: float
) -> None:
    fabric = Fabric(
        between_bytes_s=between,
        between={("n0", "n1"): special},
        inside={"n0": special},
        devices=SPEEDS,
    )
    world = World(
        *(node(f"n{at}", cpus=8, gpu_types=(types[at],) * room) for at, room in enumerate(rooms))
    )
    best = shortest_run(
        asked("select=1:ngpus=1", most),
        VGG,
        state=world.head.state,
        settings=settings(fabric=fabric),
    )
    kinds = {f"n{at}": types[at] for at in range(len(rooms))}
    runs = [
        VGG.work
        / VGG.speed.rate(
            fabric.layout({f"n{at}": count for at, count in enumerate(counts) if count}, kinds)
        )
        for counts in spreads(rooms, most)
    ]

    assert best.run_s <= min(runs) * (1 + 1e-9)
    assert best.most_gpus == min(most, sum(rooms))
    if special <= between and len(set(types[: len(rooms)])) == 1 and len(rooms) == 1:
        assert best.run_s == pytest.approx(min(runs)), "and it is no dream"


@pytest.mark.parametrize(
    ("text", "most", "gpus"),
    [
        ("select=1:ngpus=1", 8, 8),
        ("select=1:ngpus=2", 3, 6),
        ("nodes=2:gpus=2", 0, 4),
        ("nodes=2:gpus=4", 0, 8),
        ("select=4:ngpus=1,place=pack", 0, 4),
        ("select=1:ngpus=1,place=pack", 8, 4),
        ("select=1:ncpus=4:ngpus=1", 8, 4),
    ],
)
def test_places_are_what_the_request_says(text: str, most: int, gpus: int) -> None:
    """Scattered, packed, or free; where CPUs run out, GPUs that are idle do not count."""
    world = World(node("a", cpus=8, gpus=4), node("b", cpus=8, gpus=4))
    best = shortest_run(
        asked(text, most), Size(speed=WalltimeSpeed(gpus=64), work=64.0),
        state=world.head.state, settings=settings(),
    )  # fmt: skip

    assert (best.gpus, best.most_gpus) == (gpus, gpus)
    assert best.run_s == pytest.approx(64.0 * 64 / gpus)


@pytest.mark.parametrize(
    "text", ["nodes=3:gpus=1", "select=5:ngpus=1,place=pack", "select=9:ngpus=1"]
)
def test_what_fits_nowhere_never_ends(text: str) -> None:
    world = World(node("a", cpus=8, gpus=4), node("b", cpus=8, gpus=4))
    best = shortest_run(asked(text), VGG, state=world.head.state, settings=settings())

    assert (best.run_s, best.most_gpus) == (float("inf"), 0)


@pytest.mark.parametrize("types", [("slow", "fast"), ("fast", "slow")])
def test_of_unlike_gpus_in_a_node_the_fastest_counts(types: tuple[str, str]) -> None:
    """One GPU is enough, and it may be that one: what it can do is not impossible."""
    world = World(node("a", cpus=8, gpu_types=types))
    fabric = Fabric(devices=SPEEDS)
    best = shortest_run(
        asked("select=1:ngpus=1"), VGG, state=world.head.state, settings=settings(fabric=fabric)
    )

    alone = Layout(counts=(1,), device=SPEEDS["fast"])
    assert best.run_s == pytest.approx(VGG.work / VGG.speed.rate(alone))


def test_one_node_goes_before_two_although_the_fit_is_worse() -> None:
    """Best fit would take the two small nodes, and be slower than what is possible."""
    world = World(node("a", cpus=8, gpus=2), node("b", cpus=8, gpus=2), node("c", cpus=8, gpus=8))
    fabric = Fabric(between_bytes_s=1e6)
    best = shortest_run(
        asked("select=4:ngpus=1"), VGG, state=world.head.state, settings=settings(fabric=fabric)
    )

    assert best.run_s == pytest.approx(VGG.work / VGG.speed.rate(fabric.layout({"c": 4})))


def test_a_wide_range_is_sampled_with_both_its_ends() -> None:
    """The cost is bounded; the largest number that fits is not passed over."""
    looked: list[int] = []

    class Counting:
        def rate(self, layout: object) -> float:
            looked.append(layout.gpus)  # type: ignore[attr-defined] # a Layout
            return 1.0

    world = World(*(node(f"n{at:03}", cpus=8, gpus=8) for at in range(100)))
    best = shortest_run(
        asked("select=1:ngpus=1", 800), Size(speed=Counting(), work=1.0),
        state=world.head.state, settings=settings(),
    )  # fmt: skip

    assert (min(looked), max(looked), best.most_gpus) == (1, 800, 800)
    assert len(looked) <= MAX_COUNTS + 2
