"""Goodput of inference jobs: throughput, and what of it is in time; computed by hand."""

import numpy as np
import pytest

from gschedd.models.goodput.inference import BatchInference, LatencyBoundedInference
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
