"""Goodput of inference jobs: throughput, and what of it is in time; computed by hand."""

import numpy as np
import pytest

from gsched.model.training import Inference
from gschedd.models.goodput.inference import (
    BatchInference,
    LatencyBoundedInference,
    goodput_of,
    parts_of,
)
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import BatchLimits, ThroughputParameters, TypeModel
from gschedd.plan.training import Goodputs

#: 10 ms and 1 ms for each sample; up to 90 samples on a replica.
MODEL = GoodputModel(
    limits=BatchLimits(batch=1, batch_max=1000, per_gpu_max=90),
    models=(
        TypeModel(
            gpu_type="a",
            parameters=ThroughputParameters(
                compute_s=0.01, compute_per_sample_s=0.001, node_sync_s=5.0, network_sync_s=5.0
            ),
        ),
    ),
    replica_gpus=(("a", 2),),
)
GPUS = np.array([1, 2, 4, 8])


def test_batch_inference_counts_samples_on_replicas_that_do_not_synchronise() -> None:
    """90 samples in 0.1 s on two GPUs; one GPU is no replica."""
    found = BatchInference(model=MODEL).best("a", np.array([1, 1, 1, 2]), GPUS)

    assert found.goodput.tolist() == pytest.approx([0.0, 900.0, 1800.0, 3600.0])
    assert found.batch_per_gpu.tolist() == [0, 90, 90, 90]


def bounded(latency_s: float, requests_per_s: float = float("inf")) -> Goodputs:
    goodput = LatencyBoundedInference(
        model=MODEL, latency_s=latency_s, requests_per_s=requests_per_s
    )
    return goodput.best("a", np.ones(4, dtype=int), GPUS)


def test_a_bound_on_latency_makes_batches_smaller() -> None:
    """40 ms are enough for 30 samples: 750 a second on a replica."""
    assert bounded(0.04).goodput.tolist() == pytest.approx([0.0, 750.0, 1500.0, 3000.0])
    assert bounded(0.04).batch_per_gpu.tolist() == [0, 30, 30, 30]
    assert bounded(10.0).batch_per_gpu.tolist() == [0, 90, 90, 90], "memory bounds it too"


def test_a_bound_that_no_batch_keeps_leaves_no_goodput() -> None:
    assert bounded(0.0105).goodput.tolist() == [0.0] * 4
    assert bounded(0.0105).batch_per_gpu.tolist() == [0] * 4


def test_more_than_is_asked_for_is_worth_nothing() -> None:
    assert bounded(0.04, requests_per_s=1000.0).goodput.tolist() == pytest.approx(
        [0.0, 750.0, 1000.0, 1000.0]
    )


@pytest.mark.parametrize(
    "inference",
    [None, Inference(), Inference(latency_s=0.04), Inference(latency_s=0.04, requests_per_s=9.0)],
)
def test_the_goodput_of_a_job_comes_back_from_its_parts(inference: Inference | None) -> None:
    assert parts_of(goodput_of(MODEL, inference)) == (MODEL, inference)


def test_without_measurements_a_latency_bounds_nothing() -> None:
    """Else the job would never start, and so never be measured."""
    unknown = GoodputModel(limits=BatchLimits(batch=1, batch_max=8))

    found = goodput_of(unknown, Inference(latency_s=1e-3))

    assert isinstance(found, BatchInference)
    assert all(found.best("a", np.ones(4, dtype=int), GPUS).goodput > 0)
    assert isinstance(goodput_of(MODEL, Inference(latency_s=1e-3)), LatencyBoundedInference)
