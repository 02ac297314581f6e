"""What a script says of its adaptive training."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Rule(StrEnum):
    """How the learning rate follows the global batch; S is its ratio to the tuned one.

    Source of the first: T. B. Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for
    Distributed Training", ICML 2020, equation 5.
    """

    ADASCALE = "adascale"  # times the gain, 1 to S, of which the gradient noise decides
    SQUARE_ROOT = "square-root"  # times the square root of S
    LINEAR = "linear"  # times S
    NONE = "none"  # as the script sets it


class Until(StrEnum):
    """When an adaptive training is over."""

    EPOCHS = "epochs"  # when it has gone through the samples as often as `Samples` says
    PROGRESS = "progress"  # when it has done as many scale-invariant steps as these are when tuned


class Alone(StrEnum):
    """How the gradient noise is measured where a step has one gradient: one rank, no accumulation.

    Two gradients are compared. Those of two steps are of different weights: the second follows the
    first one's step, and the noise scale comes out too large where the learning rate is large.
    """

    HALVES = "halves"  # every 20th step is done in two micro-batches
    DIFFERENCES = "differences"  # of consecutive steps; takes the memory of one more gradient


class Scaler(Protocol):
    """What is needed of ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """Return what losses are multiplied with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """A training whose global batch may change with its GPUs.

    Attributes:
        batch_max: the most samples in a step over all ranks; 0: whatever gsched says.
        rule: of the learning rate; None: `Rule.ADASCALE` if all optimisers are ``torch.optim.SGD``,
            else `Rule.SQUARE_ROOT`.
        until: when it is over.
        alone: how the gradient noise is measured on one rank without accumulation.
        scaler: that the losses are scaled with; None: they are not.
        replica_ranks: consecutive ranks over which one replica of the model is split: they get the
            same samples.
        inference: nothing is trained: ranks share no gradients, and batches are those of a rank.
    """

    batch_max: int = 0
    rule: Rule | None = None
    until: Until = Until.EPOCHS
    alone: Alone = Alone.HALVES
    scaler: Scaler | None = None
    inference: bool = False
    replica_ranks: int = 1

    def __post_init__(self) -> None:
        if self.replica_ranks != int(self.replica_ranks) or self.replica_ranks < 1:
            raise ValueError(
                f"Adaptive: replica_ranks={self.replica_ranks!r}: should be a whole number from 1"
            )
        if self.batch_max != int(self.batch_max) or self.batch_max < 0:
            raise ValueError(f"Adaptive: batch_max={self.batch_max!r}: should be a whole number")
        if self.rule is not None:
            object.__setattr__(self, "rule", Rule(self.rule))
        object.__setattr__(self, "until", Until(self.until))
        object.__setattr__(self, "alone", Alone(self.alone))
        if self.inference and self.until is Until.PROGRESS:
            raise ValueError("Adaptive: inference=True makes no progress: leave until out")
