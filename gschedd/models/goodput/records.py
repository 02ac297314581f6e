"""What is known of an adaptive training job: parameters, noise, limits and observations.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023, and Qiao et al., "Pollux", OSDI 2021, whose goodput model it uses.
"""

from typing import Final

from msgspec import Struct

#: Lower bound of each time in the model, seconds: a term that was never observed is this small.
LEAST_S: Final = 1e-8
#: Bounds of the overlap of computing and synchronisation: none, and nearly complete.
OVERLAP_LEAST: Final = 1.0
OVERLAP_MOST: Final = 10.0


class ThroughputParameters(Struct, frozen=True, kw_only=True, cache_hash=True):
    """The parameters of the throughput model of one job on one GPU type; times in seconds.

    With m samples per replica and micro-step, s additional accumulation steps, K replicas::

        T_grad = compute_s + compute_per_sample_s * m
        T_sync = 0                                                          with K = 1
               = node_sync_s + node_sync_per_replica_s * (K - 2)            on one node
               = network_sync_s + network_sync_per_replica_s * (K - 2)      on several nodes
        T_iter = s * T_grad + (T_grad^overlap + T_sync^overlap)^(1 / overlap)

    The defaults are the bounds: synchronisation takes no time, so scaling is perfect.
    """

    compute_s: float = LEAST_S
    compute_per_sample_s: float = LEAST_S
    node_sync_s: float = LEAST_S
    node_sync_per_replica_s: float = LEAST_S
    network_sync_s: float = LEAST_S
    network_sync_per_replica_s: float = LEAST_S
    overlap: float = OVERLAP_LEAST


class GradientNoise(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Smoothed statistics of the gradient at the initial batch M0.

    The noise scale is phi = M0 * variance / square_norm. Both 0: not known, which counts as
    phi = 0, so that the batch stays as small as possible until the noise has been measured.

    Attributes:
        square_norm: squared norm of the true gradient.
        variance: sum of the variances of the gradient's elements at batch M0.
    """

    square_norm: float = 0.0
    variance: float = 0.0


class BatchLimits(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Which batches a job may be run with; counts of samples.

    Attributes:
        batch: global batch M0 that the user tuned.
        batch_max: largest global batch.
        per_gpu_min: smallest batch of one replica and micro-step.
        per_gpu_max: largest that fits into memory; 0: not known, no bound.
        fixed: the global batch stays M0 on all numbers of GPUs (strong scaling, rigid jobs).
    """

    batch: int
    batch_max: int
    per_gpu_min: int = 1
    per_gpu_max: int = 0
    fixed: bool = False


class Observation(Struct, frozen=True, kw_only=True):
    """What the steps of a job took on one configuration.

    Attributes:
        nodes, gpus: on which it ran.
        batch_per_gpu: samples of one micro-step on one replica.
        accumulation: additional accumulation steps.
        gradient_s: mean time of forward and backward of one micro-step, without
            synchronisation, seconds; 0: not measured.
        step_s: mean time of the whole optimiser step, seconds.
        profiled: it is no step of the training, but was timed apart from it.
    """

    gpu_type: str
    nodes: int
    gpus: int
    batch_per_gpu: int
    accumulation: int = 0
    gradient_s: float = 0.0
    step_s: float
    profiled: bool = False


class TypeModel(Struct, frozen=True, kw_only=True, cache_hash=True):
    """The throughput model of one job on one GPU type.

    Attributes:
        parameters: fitted to what was observed on this type.
        scaling: of another type, whose scaling is borrowed while only single replicas were seen
            on this one; None: its own.
        per_gpu_max: largest batch of a replica that fits into the memory of this type; 0: as in
            the limits of the job.
    """

    gpu_type: str
    parameters: ThroughputParameters
    scaling: ThroughputParameters | None = None
    per_gpu_max: int = 0
