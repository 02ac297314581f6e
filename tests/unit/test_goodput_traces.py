"""The throughput model on step times of real networks, measured for Sia's evaluation."""

import numpy as np
import pytest

from scripts.reproduce.goodput_steps import (
    NETWORKS,
    TRACES,
    TYPES,
    Errors,
    batch_of,
    borrowed,
    configuration_of,
    grown,
    held_out,
    known,
    read_steps,
)

pytestmark = [
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces: {TRACES} is missing"),
    pytest.mark.timeout(120),
]


def figures(errors: Errors) -> tuple[float, float]:
    """Return median and 90th percentile."""
    half, most = np.percentile(errors, [50, 90])
    return float(half), float(most)


@pytest.mark.parametrize("gpu_type", TYPES)
@pytest.mark.parametrize("network", ["bert", "cifar10", "deepspeech2", "imagenet", "ncf"])
def test_steps_at_other_batches_and_gpu_counts_are_predicted(network: str, gpu_type: str) -> None:
    """Half of the batch sizes, and half of the configurations, are known."""
    steps = read_steps(network, gpu_type)

    for of in (batch_of, configuration_of):
        half, most = figures(held_out(steps, of))
        assert half < 0.14, of
        assert most < 0.28, of


def test_what_a_job_knows_makes_its_next_size_predictable() -> None:
    """A profile on one GPU nearly halves the error of no profile; all data halve it again."""
    steps = [read_steps(network, name) for network in NETWORKS for name in TYPES]

    blind = [error for each in steps for error in grown(each, with_profile=False)]
    profiled = [error for each in steps for error in grown(each, with_profile=True)]
    oracle = [error for each in steps for error in known(each)]

    assert figures(profiled)[0] < 0.15
    assert figures(oracle)[0] < 0.08
    assert figures(oracle)[0] < 0.6 * figures(profiled)[0]
    assert figures(profiled)[0] < 0.7 * figures(blind)[0]


@pytest.mark.parametrize("network", NETWORKS)
def test_slow_networks_of_gpus_are_foreseen_by_borrowing(network: str) -> None:
    """T4 nodes synchronise slowly: the scaling of RTX nodes says so before it was seen."""
    t4, rtx = read_steps(network, "t4"), read_steps(network, "rtx2080ti")

    assert figures(borrowed(t4, rtx, lent=True))[0] < figures(borrowed(t4, rtx, lent=False))[0]
