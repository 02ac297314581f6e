"""Algorithm 1 of GPU sharing: tables, and 10,000 cases against the paper read line by line."""

import random
from collections.abc import Sequence

import pytest

from gsched.config.nodes import SharingRules
from gsched.model.resources import Gpu, GpuShareRequest
from gsched.model.states import ShareClass
from gschedd.plan.sharing import Device, SharedGpu, choose

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
CARD_BYTES = 100 * 2**30
PERCENT_BYTES = CARD_BYTES // 100
LIMIT_3 = SharingRules(low_max=3, utilisation_max=0.8, utilisation_assumed=0.0)


def device(name: str, *, high: int, low: int, free: int, util: float = 0.0) -> Device:
    """Return GPU 0 of a node, with so many jobs, so many percent free, so busy."""
    shared = SharedGpu(
        gpu=Gpu(index=0, memory_bytes=CARD_BYTES),
        percent=100,
        memory_bytes=free * PERCENT_BYTES,
        high=high,
        low=low,
        utilisation=util,
    )
    return Device(node=name, shared=shared)


def request(share_class: ShareClass, percent: int) -> GpuShareRequest:
    return GpuShareRequest(
        percent=percent, memory_bytes=percent * PERCENT_BYTES, share_class=share_class
    )


def chosen(
    asked: GpuShareRequest, devices: Sequence[Device], rules: SharingRules = LIMIT_3
) -> str | None:
    found = choose(asked, devices, rules)
    return None if found is None else found.node


A1 = device("A", high=1, low=0, free=60, util=0.5)
B1 = device("B", high=0, low=2, free=30, util=0.4)
A2 = device("A", high=0, low=2, free=50, util=0.3)
B2 = device("B", high=0, low=1, free=20, util=0.3)
C2 = device("C", high=1, low=0, free=80, util=0.3)


@pytest.mark.parametrize(
    ("devices", "asked", "expected"),
    [
        ([], request(LOW, 20), None),
        ([], request(HIGH, 20), None),
        ([A1, B1], request(HIGH, 20), "B"),
        ([A1], request(HIGH, 20), None),
        ([A2, B2, C2], request(LOW, 20), "B"),  # fewest of the class low before memory
        ([A2, B2, C2], request(LOW, 30), "A"),  # those without a high one before C
        ([device("A", high=0, low=3, free=40), device("C", high=1, low=1, free=40, util=0.8)],
         request(LOW, 20), "C"),  # 0.80 is allowed
        ([device("C", high=1, low=1, free=40, util=0.81)], request(LOW, 20), None),
        # no test of the utilisation for a high one, and equal memory fits
        ([device("A", high=0, low=1, free=40, util=0.9)], request(HIGH, 40), "A"),
    ],
)  # fmt: skip
def test_the_reference_table(
    devices: list[Device], asked: GpuShareRequest, expected: str | None
) -> None:
    """The limit is three jobs of the class low after the placement."""
    assert chosen(asked, devices) == expected


@pytest.mark.parametrize(
    ("devices", "asked", "expected"),
    [
        # a high job: fewest low ones first, then the most memory, then the lower name
        ([device("a", high=0, low=2, free=90), device("b", high=0, low=1, free=10)],
         request(HIGH, 10), "b"),
        ([device("a", high=0, low=1, free=40), device("b", high=0, low=1, free=50)],
         request(HIGH, 10), "b"),
        ([device("b", high=0, low=1, free=50), device("a", high=0, low=1, free=50)],
         request(HIGH, 10), "a"),
        # it may join more low ones than may be there
        ([device("a", high=0, low=9, free=50)], request(HIGH, 10), "a"),
        # a low job beside a high one only where nothing else is left
        ([device("a", high=1, low=0, free=90), device("b", high=0, low=2, free=10)],
         request(LOW, 10), "b"),
        ([device("a", high=1, low=0, free=90), device("b", high=0, low=2, free=9)],
         request(LOW, 10), "a"),
        ([device("a", high=1, low=1, free=90), device("b", high=1, low=0, free=20)],
         request(LOW, 10), "b"),
        # busy, full of low ones, and too small: another GPU
        ([device("a", high=0, low=0, free=90, util=0.9), device("b", high=0, low=3, free=90),
          device("c", high=0, low=1, free=19)], request(LOW, 20), None),
    ],
)  # fmt: skip
def test_an_independent_table(
    devices: list[Device], asked: GpuShareRequest, expected: str | None
) -> None:
    assert chosen(asked, devices) == expected


def test_the_printed_comparison_lets_one_more_share_a_gpu() -> None:
    """The listing skips a GPU only with more than the limit; the text calls it the most."""
    full = [device("a", high=0, low=3, free=50)]
    printed = SharingRules(low_max=3, low_max_printed=True)

    assert chosen(request(LOW, 10), full) is None
    assert chosen(request(LOW, 10), full, printed) == "a"
    assert chosen(request(LOW, 10), [device("a", high=0, low=4, free=50)], printed) is None


def test_a_gpu_without_time_left_is_not_joined() -> None:
    """Beyond the paper: shares of its time add up to 100 %, as its memory does."""
    busy = SharedGpu(
        gpu=Gpu(index=0, memory_bytes=CARD_BYTES), percent=30, memory_bytes=CARD_BYTES, low=1
    )
    devices = [Device(node="a", shared=busy)]

    assert choose(GpuShareRequest(percent=30, memory_bytes=1), devices, LIMIT_3) is not None
    assert choose(GpuShareRequest(percent=31, memory_bytes=1), devices, LIMIT_3) is None


def skipped(asked: GpuShareRequest, shared: SharedGpu, rules: SharingRules) -> bool:
    """Return whether the first loop of the listing takes a device out."""
    if asked.memory_bytes > shared.memory_bytes:
        return True
    if asked.share_class == "high":
        return shared.high > 0
    if shared.utilisation > rules.utilisation_max:
        return True
    if rules.low_max_printed:
        return shared.low > rules.low_max
    return shared.low + 1 > rules.low_max


def read_line_by_line(
    asked: GpuShareRequest, devices: list[Device], rules: SharingRules
) -> str | None:
    """Return the node by the listing of Algorithm 1, each line a loop, with the text's limit.

    Of the devices that the paper would draw among, that of the highest probability; equal ones by
    name.
    """
    kept = [each for each in devices if not skipped(asked, each.shared, rules)]
    if asked.share_class == "low":
        alone = [each for each in kept if each.shared.high == 0]
        kept = alone or kept
    best: Device | None = None
    for each in kept:
        if best is None:
            best = each
            continue
        here, there = each.shared, best.shared
        better = here.low < there.low
        if here.low == there.low:
            better = here.memory_bytes > there.memory_bytes
            if here.memory_bytes == there.memory_bytes:
                better = each.node < best.node
        if better:
            best = each
    return None if best is None else best.node


def test_10000_random_cases_are_as_the_paper_reads() -> None:
    """Few values of each, so that limits and ties are met often; in any order of the devices."""
    chance = random.Random(20260)
    joined = 0
    for _ in range(10_000):
        rules = SharingRules(
            low_max=chance.randint(1, 4),
            low_max_printed=chance.random() < 0.3,
            utilisation_max=chance.choice((0.5, 0.8)),
            utilisation_assumed=0.0,
        )
        devices = [
            device(
                f"n{number}",
                high=chance.randint(0, 1),
                low=chance.randint(0, 5),
                free=chance.choice((0, 10, 20, 40, 60)),
                util=chance.choice((0.0, 0.5, 0.8, 0.81, 1.0)),
            )
            for number in range(chance.randint(0, 6))
        ]
        asked = request(chance.choice((HIGH, LOW)), chance.choice((1, 10, 20, 41)))
        expected = read_line_by_line(asked, devices, rules)
        chance.shuffle(devices)

        assert chosen(asked, devices, rules) == expected, (asked, devices, rules)
        joined += expected is not None
    assert 2_000 < joined < 9_000, "the cases decide both ways"
