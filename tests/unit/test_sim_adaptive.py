"""Modelled adaptive training jobs: how far they get on their GPUs, and what they say of it."""

import math

import pytest

from gsched.model.training import Batching
from gschedd.models.goodput.records import ThroughputParameters
from gschedd.sim.adaptive import AdaptiveRun, Outset
from gschedd.sim.ground_truth import ModelledTraining, fitted

#: 0.1 s a sample without the constant part; 0.5 s to synchronise inside a node, 2 s between nodes.
SLOW = ThroughputParameters(
    compute_s=1.0, compute_per_sample_s=0.1, node_sync_s=0.5, network_sync_s=2.0
)
FAST = ThroughputParameters(compute_s=0.5, compute_per_sample_s=0.05, node_sync_s=0.5)
TRUTH = ModelledTraining(
    work=1000.0,
    batch=10,
    models={"slow": SLOW, "fast": FAST},
    noise_scales=((0.5, 30.0), (1.0, 90.0)),
    restart_s=7.0,
)


def run(
    places: tuple[tuple[str, int], ...], batching: Batching | None = None, done: float = 0.0
) -> AdaptiveRun:
    """Return an attempt that began at 100 and does its first step from 107 on."""
    made = AdaptiveRun(TRUTH, places, batching, Outset(done=done, startup_s=7.0))
    made.begin(100.0)
    return made


def test_a_step_takes_what_the_model_says() -> None:
    """The slowest type counts, accumulation takes one pass more, a node boundary costs more."""
    alone, two = TRUTH.step((("slow", 1),), None), TRUTH.step((("slow", 2),), Batching(per_gpu=5))
    apart = TRUTH.step((("slow", 1), ("slow", 1)), Batching(per_gpu=5, accumulation=1))
    mixed = TRUTH.step((("fast", 1), ("slow", 1)), Batching(per_gpu=5))

    assert alone is not None
    assert (alone.samples, alone.step_s, alone.gradient_s) == pytest.approx((10, 2.0, 2.0))
    assert two is not None
    assert (two.samples, two.step_s) == pytest.approx((10, 1.5 + 0.5))
    assert apart is not None
    assert (apart.samples, apart.step_s) == pytest.approx((20, 1.5 + 1.5 + 2.0))
    assert mixed is not None
    assert mixed.step_s == pytest.approx(1.5 + 2.0)
    assert TRUTH.step((("other", 1),), None) is None


def test_progress_follows_the_efficiency_of_the_batch() -> None:
    """Half of the work at one noise scale, half at another: (phi + M0) / (phi + M) each."""
    made = run((("slow", 2),), Batching(per_gpu=20))  # 40 samples in 3.5 s
    first_s = 500 / (40 / 3.5 * (30 + 10) / (30 + 40))
    second_s = 500 / (40 / 3.5 * (90 + 10) / (90 + 40))

    assert made.end_s == pytest.approx(107 + first_s + second_s)
    assert made.done(100.0) == made.done(107.0) == 0.0
    assert made.done(107 + first_s / 2) == pytest.approx(250)
    assert made.done(107 + first_s + second_s / 2) == pytest.approx(750)
    assert made.done(1e9) == 1000.0


def test_what_was_done_before_is_not_done_again() -> None:
    """An attempt that begins behind the first half takes the time of the rest."""
    made = run((("slow", 1),), done=600.0)

    assert made.end_s == pytest.approx(107 + 400 / (10 / 2.0))


def test_another_batch_counts_from_then_on() -> None:
    """Progress and steps are kept; the rest goes at the new rate."""
    made = run((("slow", 1),))  # 10 samples in 2 s
    made.tune(Batching(per_gpu=20), 147.0)  # after 200 samples; 20 in 3 s
    rates = [20 / 3 * (phi + 10) / (phi + 20) for phi in (30, 90)]

    assert made.done(147.0) == pytest.approx(200)
    assert made.steps_done(147.0) == pytest.approx(20)
    assert made.end_s == pytest.approx(147 + 300 / rates[0] + 500 / rates[1])
    assert made.steps_done(150.0) == pytest.approx(21)


def test_a_batch_before_the_first_step_changes_nothing_before_it() -> None:
    """Nothing is done before the first step, whatever was told meanwhile."""
    made = run((("slow", 1),))
    made.tune(Batching(per_gpu=20), 103.0)

    assert made.done(106.9) == 0.0
    assert made.done(110.0) == pytest.approx(20 * 40 / 50)


def test_what_does_not_fit_is_split() -> None:
    """The samples of a GPU stay about the same, in smaller passes; it says what fits."""
    small = ModelledTraining(
        work=100.0, batch=10, models={"": SLOW}, per_gpu_max={"small": 8}, restart_s=0.0
    )
    step = small.step((("small", 2),), Batching(per_gpu=20))
    made = AdaptiveRun(small, (("small", 2),), Batching(per_gpu=20), Outset())
    made.begin(0.0)
    told = made.report(1.0)

    assert fitted(Batching(per_gpu=8, accumulation=4), 8) == Batching(per_gpu=8, accumulation=4)
    assert fitted(Batching(per_gpu=9, accumulation=1), 8) == Batching(per_gpu=6, accumulation=2)
    assert step is not None
    assert (step.batching, step.samples) == (Batching(per_gpu=7, accumulation=2), 42)
    assert told is not None
    assert not told.fits
    assert {sample.batch_per_gpu for sample in small.profile("small")} == {1, 2, 4, 8}


def test_it_tells_the_noise_of_the_moment() -> None:
    """Nothing before the first step; then what a training measures."""
    made = run((("slow", 1),))
    early, late = made.report(107.0), made.report(107 + 150.0)

    assert made.report(106.0) is None
    assert early is not None
    assert late is not None
    assert (early.gradient_sqr, early.gradient_var) == (1.0, 3.0)
    assert (late.gradient_var, late.work_done, late.step) == pytest.approx((9.0, 750, 75))


def test_what_cannot_run_runs_for_ever() -> None:
    """On a type of which nothing is known nothing is ever done."""
    made = run((("other", 1),))

    assert math.isinf(made.end_s)
    assert made.done(1e9) == 0.0
    assert made.report(1e9) is None
