"""What a user can say of a distributed training, so that its run time can be planned."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.model.numbers import Amount, Number


class Profiling(StrEnum):
    """Which elastic training jobs run on their fewest GPUs until their steps were measured."""

    AUTO = "auto"  # those of which nothing is known, and those that ask
    REQUESTED = "requested"  # those that ask
    NEVER = "never"


class Urgency(StrEnum):
    """How soon a training is wanted, in terms of its run time on one GPU."""

    URGENT = "urgent"
    NORMAL = "normal"
    RELAXED = "relaxed"


#: Allowed time as a multiple of the run time on one GPU: alpha of equation 6.
#: Source: Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.
ALPHA: Final[Mapping[Urgency, float]] = MappingProxyType(
    {Urgency.URGENT: 0.5, Urgency.NORMAL: 1.0, Urgency.RELAXED: 1.5}
)


class Scaling(StrEnum):
    """What of an adaptive training follows its allocation."""

    ADAPTIVE = "adaptive"  # number and type of GPUs, and the global batch
    STRONG = "strong"  # number and type of GPUs; the global batch stays
    RIGID = "rigid"  # the type of GPUs only


class Inference(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What the answers of a job are worth that infers and does not train.

    Attributes:
        latency_s: time that a batch may take, seconds; 0: any time.
        requests_per_s: samples that arrive, on all GPUs together; more answers are worth nothing.
            0: all samples are there.
    """

    latency_s: Amount = 0.0
    requests_per_s: Amount = 0.0


class Adaptive(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """A training whose batch size and GPUs a policy may choose for the best goodput.

    Attributes:
        batch: samples in a step on all GPUs together, for which its user has tuned it (count).
        batch_max: the most samples in a step (count).
        batch_per_gpu_max: the most samples that fit on one GPU (count); 0: not known.
        scaling: what follows the allocation.
        gpu_types: types of GPUs that it runs on; empty: any.
        replica_gpus: pairs (GPU type, GPUs of one replica of a model that is split over several);
            one GPU where the type is missing.
        preemptible: a policy may migrate it while it runs.
        inference: it does not train, and its batches are those of a GPU; None: it trains.
    """

    batch: Number
    batch_max: Number
    batch_per_gpu_max: Number = 0
    scaling: Scaling = Scaling.ADAPTIVE
    gpu_types: tuple[str, ...] = ()
    replica_gpus: tuple[tuple[str, Number], ...] = ()
    preemptible: bool = True
    inference: Inference | None = None


class Batching(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """How the samples of a step are split; the global batch is GPUs x per_gpu x (accumulation + 1).

    Attributes:
        per_gpu: samples of a forward and backward pass on each GPU, or on each replica (count).
        accumulation: passes before the one whose gradients are synchronised (count).
    """

    per_gpu: Number
    accumulation: Number = 0


class Training(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """The size of a training, in one of two ways; what is 0 or empty was not said.

    Either by its model and data: ``parameters``, ``samples``, ``batch``, ``epochs`` and
    ``step_time_s``. Or by what was measured: ``iterations`` to do, and ``rates``, how many of them
    are done in a second on a number of GPUs, the global batch being the same on all of them.

    Attributes:
        parameters: of the model (count).
        samples: in the data set (count).
        batch: samples in a step on each GPU (count).
        epochs: passes over the data set.
        step_time_s: of one step on one GPU, without communication, seconds.
        iterations: steps of the whole training.
        rates: pairs (GPUs, iterations per second), by GPUs.
    """

    parameters: Amount = 0.0
    samples: Amount = 0.0
    batch: Amount = 0.0
    epochs: Amount = 0.0
    step_time_s: Amount = 0.0
    iterations: Amount = 0.0
    rates: tuple[tuple[Number, Amount], ...] = ()
