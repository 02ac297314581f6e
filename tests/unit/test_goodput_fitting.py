"""Fitting the throughput model: known parameters are found again, unseen terms stay at bounds."""

import importlib.util
import math
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gschedd.models.goodput.evaluation import step_times
from gschedd.models.goodput.fitting import BETWEEN_LEAST, fit
from gschedd.models.goodput.records import LEAST_S, Observation, ThroughputParameters

#: The examples of a night take longer than a unit test usually may.
pytestmark = pytest.mark.timeout(300)

#: Nodes and GPUs.
ONE_GPU = [(1, 1)]
ONE_NODE = [(1, 1), (1, 2), (1, 4), (1, 8)]
SEVERAL_NODES = [*ONE_NODE, (2, 8), (2, 16), (4, 32)]
BATCHES = (8, 16, 32, 64, 128)

parameters = st.builds(
    ThroughputParameters,
    compute_s=st.floats(1e-3, 0.5),
    compute_per_sample_s=st.floats(1e-4, 0.05),
    node_sync_s=st.floats(1e-3, 0.5),
    node_sync_per_replica_s=st.floats(1e-6, 1e-3),
    network_sync_s=st.floats(1e-3, 0.5),
    network_sync_per_replica_s=st.floats(1e-6, 1e-3),
    overlap=st.floats(1.0, 3.0),
)


def observed(
    own: ThroughputParameters,
    configurations: Iterable[tuple[int, int]],
    *,
    batches: Iterable[int] = BATCHES,
    accumulations: Iterable[int] = (0,),
    noise: float = 0.0,
) -> list[Observation]:
    """Return what a job with these parameters would report; noise is that of logarithms."""
    chance = random.Random(7)
    found = []
    for nodes, gpus in configurations:
        for batch in batches:
            for more in accumulations:
                times = step_times(
                    own, nodes=nodes, replicas=gpus, per_gpu=batch, accumulation=more
                )
                found.append(
                    Observation(
                        gpu_type="a",
                        nodes=nodes,
                        gpus=gpus,
                        batch_per_gpu=batch,
                        accumulation=more,
                        gradient_s=float(times.gradient_s) * math.exp(chance.gauss(0, noise)),
                        step_s=float(times.step_s) * math.exp(chance.gauss(0, noise)),
                    )
                )
    return found


def errors(
    own: ThroughputParameters,
    found: ThroughputParameters,
    configurations: Iterable[tuple[int, int]],
) -> list[float]:
    """Return by how much steps are predicted too long or too short, at other batches, too."""
    pairs = zip(
        observed(own, configurations, batches=(12, 48, 100), accumulations=(0, 3)),
        observed(found, configurations, batches=(12, 48, 100), accumulations=(0, 3)),
        strict=True,
    )
    return [abs(predicted.step_s / true.step_s - 1) for true, predicted in pairs]


@given(parameters)
def test_steps_are_predicted_from_noisy_reports(own: ThroughputParameters) -> None:
    """Two percent of noise: other batches and accumulations are met to about as much."""
    found = fit(observed(own, SEVERAL_NODES, noise=0.02)).parameters

    wrong = errors(own, found, SEVERAL_NODES)
    assert np.median(wrong) < 0.02
    assert max(wrong) < 0.08


def test_known_parameters_are_found_again() -> None:
    """Without noise, only the penalties stand between the fit and the truth."""
    own = ThroughputParameters(
        compute_s=0.02,
        compute_per_sample_s=0.001,
        node_sync_s=0.06,
        node_sync_per_replica_s=0.0005,
        network_sync_s=0.2,
        network_sync_per_replica_s=0.001,
        overlap=1.6,
    )

    found = fit(observed(own, SEVERAL_NODES, accumulations=(0, 1)))

    assert found.loss < 2e-3
    for name in ("compute_s", "compute_per_sample_s", "node_sync_s", "network_sync_s", "overlap"):
        assert getattr(found.parameters, name) == pytest.approx(getattr(own, name), rel=0.05), name


@given(parameters)
def test_one_gpu_tells_computing_alone(own: ThroughputParameters) -> None:
    found = fit(observed(own, ONE_GPU)).parameters

    assert found.compute_s == pytest.approx(own.compute_s, rel=0.02)
    assert found.compute_per_sample_s == pytest.approx(own.compute_per_sample_s, rel=0.02)
    assert structs.astuple(found)[2:] == pytest.approx((LEAST_S,) * 4 + (1.0,), rel=1e-6)


def test_half_of_computing_is_constant_where_one_batch_was_seen() -> None:
    own = ThroughputParameters(compute_s=0.02, compute_per_sample_s=0.001)

    found = fit(observed(own, ONE_GPU, batches=(30,))).parameters

    assert found.compute_s == pytest.approx(0.025, rel=1e-3)
    assert found.compute_per_sample_s == pytest.approx(0.025 / 30, rel=1e-3)


@given(parameters)
def test_nodes_that_were_not_seen_together_cost_more_than_one(own: ThroughputParameters) -> None:
    found = fit(observed(own, ONE_NODE)).parameters

    assert found.network_sync_s == pytest.approx(BETWEEN_LEAST * found.node_sync_s)
    slopes = found.network_sync_per_replica_s, found.node_sync_per_replica_s
    assert slopes[0] == pytest.approx(BETWEEN_LEAST * slopes[1])


def test_two_replicas_tell_no_slope() -> None:
    own = ThroughputParameters(
        compute_s=0.02, compute_per_sample_s=0.001, network_sync_s=0.1, overlap=2.0
    )

    found = fit(observed(own, [(1, 1), (2, 2)])).parameters

    assert found.network_sync_per_replica_s == pytest.approx(LEAST_S)
    assert found.node_sync_s == pytest.approx(LEAST_S)
    assert found.network_sync_s == pytest.approx(0.1, rel=0.2)


def test_times_of_passes_may_be_missing() -> None:
    """A script that reports whole steps only: computing follows from one GPU."""
    own = ThroughputParameters(
        compute_s=0.02, compute_per_sample_s=0.001, node_sync_s=0.05, overlap=1.5
    )
    steps = [structs.replace(seen, gradient_s=0.0) for seen in observed(own, ONE_NODE)]

    assert max(errors(own, fit(steps).parameters, ONE_NODE)) < 0.03


@given(parameters)
def test_fitting_again_from_before_is_as_good(own: ThroughputParameters) -> None:
    """To two tenths of a percent: slopes at their bounds start elsewhere."""
    steps = observed(own, SEVERAL_NODES, noise=0.05)
    first = fit(steps)

    again = fit(steps, first.parameters)

    assert again.loss <= first.loss + 2e-3


@given(parameters)
def test_reports_of_more_gpus_are_added_to_what_is_known(own: ThroughputParameters) -> None:
    """Bounds of an earlier fit are no knowledge: what is seen now replaces them."""
    alone = fit(observed(own, ONE_GPU)).parameters

    steps = observed(own, SEVERAL_NODES)
    assert fit(steps, alone).loss <= fit(steps).loss + 2e-3


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is not installed")
@pytest.mark.parametrize("configurations", [ONE_GPU, ONE_NODE, SEVERAL_NODES])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_general_solver_finds_less_loss(
    configurations: list[tuple[int, int]], noise: float
) -> None:
    """SciPy's L-BFGS-B on the loss as the source states it, from several starts."""
    from scipy.optimize import minimize

    own = ThroughputParameters(
        compute_s=0.02,
        compute_per_sample_s=0.001,
        node_sync_s=0.06,
        node_sync_per_replica_s=0.0005,
        network_sync_s=0.2,
        network_sync_per_replica_s=0.001,
        overlap=1.6,
    )
    steps = observed(own, configurations, noise=noise)
    nodes, gpus, batches = (
        np.array([getattr(seen, name) for seen in steps])
        for name in ("nodes", "gpus", "batch_per_gpu")
    )
    gradient_s, step_s = (
        np.array([getattr(seen, name) for seen in steps]) for name in ("gradient_s", "step_s")
    )

    def rmse(predicted: Any, true: Any) -> float:
        return float(np.sqrt(np.mean(np.log(predicted / true) ** 2)))

    def loss(logs: Iterable[float]) -> float:
        values = [math.exp(value) for value in logs]
        tried = ThroughputParameters(
            **dict(zip(ThroughputParameters.__struct_fields__, values, strict=True))
        )
        times = step_times(tried, nodes=nodes, replicas=gpus, per_gpu=batches)
        slopes = (values[3] / values[2]) ** 2 + (values[5] / values[4]) ** 2
        return (
            rmse(times.gradient_s, gradient_s)
            + rmse(times.step_s, step_s)
            + 1e-3 * (values[6] - 1) ** 2
            + 1e-2 * slopes
        )

    found = fit(steps)
    unseen = found.parameters if configurations is ONE_GPU else own
    bounds = [(math.log(LEAST_S), 2.0)] * 6 + [(0.0, math.log(10.0))]
    starts = [
        [math.log(value) for value in structs.astuple(unseen)],
        [-3.0, -6, -3, -8, -3, -8, 0.5],
    ]
    least = min(
        minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200}).fun
        for start in starts
    )
    assert found.loss <= least + 1e-3
