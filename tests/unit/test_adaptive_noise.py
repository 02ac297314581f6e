"""Gradient statistics and what follows from them, against vectors of which all is known."""

import random

import pytest

from gsched.elastic.adaptive.noise import Averages, Noise, Norms, noise_of

Vector = list[float]


def drawn(seed: int, mean: Vector, deviation: float, batch: int, count: int) -> list[Vector]:
    """Return gradients of batches of samples that scatter around a true gradient."""
    source = random.Random(seed)
    spread = deviation / batch**0.5
    return [[source.gauss(each, spread) for each in mean] for _ in range(count)]


def norms_of(gradients: list[Vector]) -> Norms:
    count = len(gradients)
    mean = [sum(parts) / count for parts in zip(*gradients, strict=True)]
    local = sum(sum(part * part for part in each) for each in gradients) / count
    return Norms(local=local, mean=sum(part * part for part in mean), count=count)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_estimates_are_unbiased_whatever_the_number_of_gradients(count: int) -> None:
    """128 weights, |g|² = 8, a variance of 128·4 of one sample; tuned for batches of 32."""
    true, per_gpu, tuned = [0.25] * 128, 16, 32
    ratio = count * per_gpu / tuned
    found = [
        norms_of(drawn(seed, true, 2.0, per_gpu, count)).estimate(ratio) for seed in range(300)
    ]

    assert sum(each.sqr for each in found) / 300 == pytest.approx(8.0, rel=0.06)
    assert sum(each.var for each in found) / 300 == pytest.approx(128 * 4 / 32, rel=0.06)


def test_two_steps_with_a_gradient_each_are_one_estimate() -> None:
    true, batch, tuned = [0.25] * 128, 64, 32
    estimates = []
    for seed in range(300):
        pair = norms_of(drawn(seed, true, 2.0, batch, 2))
        norms = Norms(local=pair.local, mean=pair.mean, count=2, batches=2, steps=2)
        estimates.append(norms.estimate(batch / tuned))

    assert sum(each.var for each in estimates) / 300 == pytest.approx(128 * 4 / 32, rel=0.06)
    assert sum(each.sqr for each in estimates) / 300 == pytest.approx(8.0, rel=0.06)


def test_averages_begin_without_a_bias_and_forget() -> None:
    averages = Averages()
    assert noise_of(averages.sums()) is None
    averages.add(Norms(local=3.0, mean=2.0, count=2), 1.0)
    first = noise_of(averages.sums())
    assert first is not None
    assert (first.sqr, first.var) == pytest.approx((1.0, 1.0))
    for _ in range(5_000):
        averages.add(Norms(local=30.0, mean=20.0, count=2), 1.0)
    last = noise_of(averages.sums())
    assert last is not None
    assert last.sqr == pytest.approx(10.0, rel=0.01)


def test_a_step_with_twice_the_batch_counts_as_two() -> None:
    """And an estimate that stands for several steps as all of them."""
    single, double, rare = Averages(), Averages(), Averages()
    for _ in range(2):
        single.add(Norms(local=3.0, mean=2.0, count=2), 1.0)
    double.add(Norms(local=3.0, mean=2.5, count=2), 2.0)  # the same estimates
    rare.add(Norms(local=3.0, mean=2.0, count=2, steps=2), 1.0)

    assert double.sums()[2] == pytest.approx(single.sums()[2])
    assert rare.sums() == pytest.approx(single.sums())


def test_gradients_that_overflowed_are_left_out() -> None:
    averages = Averages()
    averages.add(Norms(local=3.0, mean=2.0, count=2), 1.0)
    before = averages.sums()
    averages.add(Norms(local=float("inf"), mean=2.0, count=2), 1.0)
    averages.add(Norms(local=3.0, mean=float("nan"), count=2), 1.0)

    assert averages.sums() == before


def test_efficiency_is_the_progress_of_a_sample() -> None:
    """It is the gain, in tuned steps, for each of the tuned batches that a step uses."""
    noise = Noise(sqr=2.0, var=6.0)
    assert noise.scale(tuned_batch=100) == 300.0
    assert noise.efficiency(100, 100) == 1.0
    for ratio in (1.0, 2.0, 8.0, 64.0):
        efficiency = noise.efficiency(int(100 * ratio), 100)
        assert noise.gain(ratio) == pytest.approx(ratio * efficiency)
        assert 1.0 <= noise.gain(ratio) <= ratio
    assert noise.gain(4.0) == pytest.approx(8.0 / (1.5 + 2.0))  # AdaScale, equation 5


def test_noise_that_hides_the_gradient_leaves_a_gain() -> None:
    noise = noise_of((-1.0, 2.0, 1.0))

    assert noise is not None
    assert noise.sqr > 0
    assert noise.gain(8.0) == pytest.approx(8.0)
