"""What a user can say of a distributed training, so that its run time can be planned."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.model.numbers import Number


class Profiling(StrEnum):
    """Which elastic trainings run on their fewest GPUs until it is known what their steps take."""

    AUTO = "auto"  # those of which nothing is known, and those that ask
    ASKED = "asked"  # those that ask
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

    parameters: float = 0.0
    samples: float = 0.0
    batch: float = 0.0
    epochs: float = 0.0
    step_time_s: float = 0.0
    iterations: float = 0.0
    rates: tuple[tuple[Number, float], ...] = ()
