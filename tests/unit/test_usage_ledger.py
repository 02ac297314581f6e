"""The usage ledger against sums over time."""

import math
import random

import pytest

from gsched.config.shares import SharesConfig
from gschedd.shares.ledger import GIB, Held, UsageLedger, rate_of

ANN = ("lab", "ann")
BOB = ("lab", "bob")
ONE_CPU = Held(cpus=1)


def ledger(half_life_s: float = 100.0) -> UsageLedger:
    return UsageLedger(SharesConfig(half_life_s=half_life_s, memory_gb=0.0, gpu=0.0))


def test_the_largest_of_cpus_memory_and_gpus_is_billed_by_default() -> None:
    config = SharesConfig(cpu=1.0, memory_gb=0.25, gpu=10.0, gpus={"h100": 40.0})
    held = Held(cpus=8, memory_bytes=16 * GIB, gpus={"a100": 0.5, "h100": 1.0})

    assert rate_of(config, held) == 45.0
    assert rate_of(config, Held(cpus=8, memory_bytes=16 * GIB)) == 8.0
    summed = SharesConfig(cpu=1.0, memory_gb=0.25, gpu=10.0, gpus={"h100": 40.0}, combine="sum")
    assert rate_of(summed, held) == 45.0 + 8.0 + 4.0


def test_usage_halves_in_each_half_life() -> None:
    book = ledger(half_life_s=100.0)
    book.hold(1, ANN, ONE_CPU, 0.0)
    row = book.bill(1, 1e-3, 1e-3)
    assert row is not None

    first = book.usage_of(ANN, 1e-3)
    assert first == pytest.approx(1e-3, rel=1e-5)
    assert book.usage_of(ANN, 1e-3 + 300) == pytest.approx(first / 8)
    assert row.billed == row.cpu_s == pytest.approx(1e-3)


def test_without_a_half_life_usage_is_the_plain_sum() -> None:
    book = ledger(half_life_s=0.0)
    book.hold(1, ANN, ONE_CPU, 0.0)
    book.hold(2, ANN, Held(cpus=3), 5.0)
    book.bill(1, 10.0, 10.0)

    assert book.usage_of(ANN, 20.0) == 10 + 3 * 15
    assert book.usage_of(ANN, 1e9) == 10 + 3 * (1e9 - 5)


def brute_usage(spans: list[tuple[float, float, float]], now_s: float, half_life_s: float) -> float:
    """Return the integral of rate x 2^-(age / half-life), in small steps."""
    step_s = 0.05
    total = 0.0
    for begin_s, end_s, rate in spans:
        steps = max(1, round((min(end_s, now_s) - begin_s) / step_s))
        width_s = (min(end_s, now_s) - begin_s) / steps
        for step in range(steps):
            age_s = now_s - (begin_s + (step + 0.5) * width_s)
            total += rate * width_s * 2 ** (-age_s / half_life_s)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_usage_is_the_integral_over_time_whatever_starts_and_ends_when(seed: int) -> None:
    rng = random.Random(seed)
    half_life_s = rng.choice((7.0, 60.0, 500.0))
    book = ledger(half_life_s)
    running: dict[int, tuple[float, int]] = {}
    spans: list[tuple[float, float, float]] = []
    now_s = 0.0
    for job in range(60):
        now_s += rng.random() * 5
        cpus = rng.randint(1, 9)
        begin_s = max(0.0, now_s - rng.choice((0.0, 0.0, 3.0)))  # the head heard of it later
        book.hold(job, ANN, Held(cpus=cpus), begin_s)
        running[job] = (begin_s, cpus)
        while running and rng.random() < 0.45:
            ended = rng.choice(list(running))
            begin_s, cpus = running.pop(ended)
            end_s = max(begin_s, now_s - rng.choice((0.0, 0.0, 2.0)))
            book.bill(ended, end_s, now_s)
            spans.append((begin_s, end_s, cpus))
    spans += [(begin_s, math.inf, cpus) for begin_s, cpus in running.values()]

    for later_s in (now_s, now_s + 13.7, now_s + 3 * half_life_s):
        wanted = brute_usage(spans, later_s, half_life_s)
        assert book.usage_of(ANN, later_s) == pytest.approx(wanted, rel=1e-4)


def test_decay_changes_no_ratio() -> None:
    book = ledger(half_life_s=50.0)
    book.hold(1, ANN, ONE_CPU, 0.0)
    book.hold(2, BOB, Held(cpus=7), 3.0)
    book.bill(1, 40.0, 40.0)
    book.bill(2, 90.0, 90.0)

    ratios = [book.usage_of(ANN, at_s) / book.usage_of(BOB, at_s) for at_s in (90.0, 1e3, 5e3)]

    assert ratios == pytest.approx([ratios[0]] * 3)


def test_a_hundred_years_make_no_infinity() -> None:
    book = ledger(half_life_s=60.0)
    book.hold(1, ANN, ONE_CPU, 0.0)

    assert book.usage_of(ANN, 3e9) == pytest.approx(60 / math.log(2))
    book.bill(1, 3e9, 3e9)
    assert book.usage_of(ANN, 3e9 + 60) == pytest.approx(30 / math.log(2))


def test_a_clock_that_goes_back_makes_no_usage_negative_and_spoils_no_later_usage() -> None:
    book = ledger(half_life_s=10.0)
    book.hold(1, ANN, ONE_CPU, 1e6)
    book.bill(1, 1e6 + 5, 1e6 + 5)  # it was set to the future, and now it is set back
    before = book.usage_of(ANN, 100.0)
    book.hold(2, ANN, ONE_CPU, 1e6)
    book.bill(2, 105.0, 105.0)

    assert book.usage_of(ANN, 105.0) == pytest.approx(before)
    book.hold(3, ANN, ONE_CPU, 105.0)
    book.bill(3, 115.0, 115.0)
    assert book.usage_of(ANN, 115.0) == pytest.approx(before / 2 + 5 / math.log(2))
    assert all(book.usage_of(ANN, at_s) >= 0 for at_s in (-1e9, 0.0, 1e12))


def test_rounding_leaves_nothing_behind_a_million_jobs() -> None:
    book = ledger(half_life_s=1e5)
    book.hold(0, ANN, Held(cpus=2), 0.0)
    for job in range(1, 20_000):
        book.hold(job, ANN, Held(cpus=1000), float(job))
        book.release(job)

    wanted = 2 * 1e5 / math.log(2) * (1 - 2 ** (-20_000 / 1e5))
    assert book.usage_of(ANN, 20_000.0) == pytest.approx(wanted, rel=1e-9)
    book.release(0)
    assert book.usage_of(ANN, 20_000.0) == 0.0


def test_new_rates_are_those_of_running_attempts_from_their_start_on() -> None:
    book = ledger(half_life_s=0.0)
    book.hold(1, ANN, ONE_CPU, 0.0)
    book.hold(2, ANN, ONE_CPU, 0.0)
    book.bill(1, 10.0, 10.0)
    book.configure(SharesConfig(half_life_s=0.0, cpu=3.0, memory_gb=0.0, gpu=0.0))

    assert book.usage_of(ANN, 10.0) == 10 + 3 * 10
