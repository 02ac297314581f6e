"""The noise of stochastic gradients, and how far a larger batch goes for it.

Sources: S. McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162, 2018
(the gradient noise scale and its estimators, appendix A); A. Qiao et al., "Pollux", OSDI 2021
(statistical efficiency, equation 6); T. B. Johnson et al., "AdaScale SGD", ICML 2020 (the gain).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Of the averages, per step with the tuned batch: a step with twice the samples counts as two.
SMOOTHING = 0.999
#: Of the variance. Where the signal drowns in it, its estimate may be below zero.
SIGNAL_MIN = 1e-9


@dataclass(frozen=True, slots=True)
class Noise:
    """Gradient statistics of a training.

    Attributes:
        sqr: squared norm of the true gradient.
        var: variance of the gradient of a tuned batch, summed over the parameters.
    """

    sqr: float
    var: float

    def scale(self, tuned_batch: int) -> float:
        """Return the gradient noise scale: the batch whose variance equals ``sqr`` (samples)."""
        return tuned_batch * self.var / self.sqr

    def efficiency(self, batch: int, tuned_batch: int) -> float:
        """Return the progress of a sample in a batch, 1 for one in the tuned batch."""
        scale = self.scale(tuned_batch)
        return (scale + tuned_batch) / (scale + batch)

    def gain(self, ratio: float) -> float:
        """Return AdaScale's gain: the tuned steps that a step is worth, 1 to ``ratio``.

        Args:
            ratio: of its batch to the tuned one, from 1.
        """
        return (self.var + self.sqr) / (self.var / ratio + self.sqr)


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared norms of the gradients of one step.

    Attributes:
        local: mean of those of the single gradients, each of a part of the batch.
        mean: that of the mean of these gradients.
        count: of the single gradients, from 2.
        batches: that they are the gradients of: 1, or 2 of one gradient each.
        steps: for which they stand: they are not taken in each.
    """

    local: float
    mean: float
    count: int
    batches: int = 1
    steps: int = 1

    def estimate(self, ratio: float) -> Noise:
        """Return unbiased estimates of the statistics, which may be below zero.

        Args:
            ratio: of the batch of a step to the tuned one.
        """
        others = self.count - 1
        return Noise(
            sqr=(self.count * self.mean - self.local) / others,
            var=(self.local - self.mean) * ratio * self.batches / others,
        )


class Averages:
    """Smoothed statistics: exponential moving averages that begin without a bias.

    All is linear in the norms, so that each rank can average what it sees, and the mean over ranks
    be taken when it is needed.
    """

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0)  # of sqr, var and weight

    def add(self, norms: Norms, ratio: float) -> None:
        """Take a step into the averages, unless it has overflowed.

        Args:
            norms: of its gradients.
            ratio: of its batch to the tuned one.
        """
        found = norms.estimate(ratio)
        if not (math.isfinite(found.sqr) and math.isfinite(found.var)):
            return
        kept = SMOOTHING ** (ratio * norms.steps)
        news = (found.sqr, found.var, 1.0)
        sqr, var, weight = (
            kept * old + (1.0 - kept) * new for old, new in zip(self._sums, news, strict=True)
        )
        self._sums = (sqr, var, weight)

    def sums(self) -> tuple[float, float, float]:
        """Return what `noise_of` and `restore` take."""
        return self._sums

    def restore(self, sums: Sequence[float]) -> None:
        """Go on from what `sums` has returned."""
        sqr, var, weight = sums
        self._sums = (float(sqr), float(var), float(weight))


def noise_of(sums: Sequence[float]) -> Noise | None:
    """Return the statistics of (mean) `Averages.sums`; None: there is no step in them."""
    sqr, var, weight = sums
    if weight <= 0:
        return None
    var = max(var / weight, 1e-300)
    return Noise(sqr=max(sqr / weight, SIGNAL_MIN * var), var=var)
