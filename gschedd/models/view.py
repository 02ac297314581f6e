"""What the latest runs of a family say: each quantity on another node, by each way to tell it."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Final

from msgspec import Struct, structs

from gschedd.models.measures import CPU, GPU, LOG_FLOORS, PLACES, WALL, Logs, Sample
from gschedd.models.medians import weighted_median
from gschedd.plan.load import PastRuns

#: Runs looked at: those before have little weight even under the longest half-life.
WINDOW: Final = 32
#: Half-lives that compete, in runs: what drifts wants a short one, what scatters a long one.
HALF_LIVES: Final = (0.7, 4.0, 16.0)
#: Ways of a family itself: those medians, and that of all its runs.
OWN_WAYS: Final = len(HALF_LIVES) + 1
#: From this way on, run times are taken to have been alike all the time.
LASTING: Final = 2
#: Weight of a run that did not do all its work, beside that of one that did.
CUT_SHORT: Final = 0.05


def _decays(half_life: float) -> tuple[float, ...]:
    """Return what each of `WINDOW` runs counts under a half-life, the last one most: 1."""
    decay = math.exp2(-1 / half_life)
    return tuple(accumulate([1.0] + [decay] * (WINDOW - 1), mul))[::-1]


#: What each run of a window counts under each of the half-lives.
DECAYS: Final = tuple(_decays(half_life) for half_life in HALF_LIVES)


def _halves(decays: tuple[float, ...]) -> tuple[tuple[tuple[float, ...], float], ...]:
    """Return what each of 0 to `WINDOW` runs counts, and half of their sum."""
    weights = [decays[WINDOW - count :] for count in range(WINDOW + 1)]
    return tuple([(each, sum(each) / 2) for each in weights])


#: The same by half-life and number of runs, where all of them did all their work.
WHOLE: Final = tuple(map(_halves, DECAYS))
#: Quantities that depend on a node's speed.
TELL_SPEED: Final = frozenset({CPU, GPU, WALL})


#: Returns the logarithms of the speeds of the nodes on which runs were.
SpeedsOf = Callable[[Sequence[Sample]], list[float]]


class PredictionTarget(Struct, frozen=True, kw_only=True):
    """Where a job is to run: the logarithm of that node's speed, and of what was requested."""

    speed: float
    requested: tuple[float | None, ...]
    on_gpu: bool


def gains(bound: float, target: PredictionTarget) -> Logs:
    """Return by how much each quantity differs there from a node of speed 0 (a rate of 1)."""
    speed = target.speed
    busy = -(1 - bound) * speed
    if target.on_gpu:
        return (0.0, 0.0, busy, 0.0, -bound * speed)
    return (busy, 0.0, 0.0, 0.0, -bound * speed)


class View(Struct, kw_only=True):
    """A family at one moment; nothing is worked out before it is requested.

    Attributes:
        samples: the latest runs, oldest first.
        bound: part of the run time that scales with the node's speed.
        ever: the median of all runs that there ever were on a node of speed 0, by quantity; None
            of what was always too little to count.
        uses_request: what was requested tells the sizes of jobs apart.
        all_whole: all samples did all their work.
        kept: runs that stand for all that there ever were, oldest first.
        kept_speeds: of their nodes.
        speeds: of the samples' nodes, logarithms, by what was known of the nodes then.
        speeds_of: gives them as long as nothing more is learned; None if they are there.
    """

    samples: Sequence[Sample]
    bound: float
    ever: tuple[float | None, ...]
    uses_request: bool
    all_whole: bool
    kept: Sequence[Sample] = ()
    kept_speeds: Sequence[float] = ()
    speeds: Sequence[float] = ()
    speeds_of: SpeedsOf | None = None

    def detach(self, speeds_of: SpeedsOf) -> "View":
        """Return the same with what was not worked out so far."""
        if self.speeds_of is None:
            return self
        speeds, kept = speeds_of(self.samples), speeds_of(self.kept)
        return structs.replace(self, speeds=speeds, kept_speeds=kept, speeds_of=None)

    def expect(self, q: int, target: PredictionTarget, way: int) -> float:
        """Return the expected logarithm of a quantity on a node, by one way."""
        ever = self.ever[q]
        if ever is None:
            return LOG_FLOORS[q]
        if way == len(HALF_LIVES):
            return ever + gains(self.bound, target)[q]
        values = self._moved(q, target)
        order = sorted(range(len(values)), key=values.__getitem__)
        return weighted_median(values, order, *self._weights(way))

    def runs(self, target: PredictionTarget, way: int) -> PastRuns:
        """Return how long past runs would have taken on a node, and what each counts.

        Where run times have changed lately, the latest runs tell them, as the way has it.
        """
        if way < LASTING:
            logs, weights = self._moved(WALL, target), self._weights(way)[0]
        else:
            speeds = self.kept_speeds if self.speeds_of is None else self.speeds_of(self.kept)
            pairs = zip(self.kept, speeds, strict=True)
            logs = [each.logs[WALL] - self.bound * (target.speed - speed) for each, speed in pairs]
            weights = [1.0 if each.whole else CUT_SHORT for each in self.kept]
        return tuple(zip(map(math.exp, logs), weights, strict=True))

    def by_all(self, target: PredictionTarget) -> tuple[tuple[float, ...], ...]:
        """Return each quantity as each way predicts it."""
        weights = [self._weights(way) for way in range(len(HALF_LIVES))]
        gain = gains(self.bound, target)
        found: list[tuple[float, ...]] = []
        for q in PLACES:
            ever = self.ever[q]
            if ever is None:
                found.append((LOG_FLOORS[q],) * OWN_WAYS)
                continue
            values = self._moved(q, target)
            order = sorted(range(len(values)), key=values.__getitem__)
            recent = [weighted_median(values, order, each, half) for each, half in weights]
            found.append((*recent, ever + gain[q]))
        return tuple(found)

    def _weights(self, way: int) -> tuple[Sequence[float], float]:
        """Return what each sample counts under a half-life, the last one most, and half of all."""
        whole = WHOLE[way][len(self.samples)]
        if self.all_whole:
            return whole
        pairs = zip(whole[0], self.samples, strict=True)
        weights = [weight if sample.whole else weight * CUT_SHORT for weight, sample in pairs]
        return weights, sum(weights) / 2

    def _moved(self, q: int, target: PredictionTarget) -> list[float]:
        """Return a quantity of the samples as it would have been for the target."""
        samples, here = self.samples, target.speed
        if q in TELL_SPEED and self.speeds_of is not None:
            self.speeds, self.speeds_of = self.speeds_of(samples), None
        if q == WALL:
            bound = self.bound
            pairs = zip(samples, self.speeds, strict=True)
            values = [sample.logs[q] - bound * (here - speed) for sample, speed in pairs]
        elif q in TELL_SPEED:
            follows, gpu = 1 - self.bound, q == GPU
            values = [
                sample.logs[q] - follows * (here - speed)
                if sample.on_gpu is gpu
                else sample.logs[q]
                for sample, speed in zip(samples, self.speeds, strict=True)
            ]
        else:
            values = [sample.logs[q] for sample in samples]
        requested = target.requested[q] if self.uses_request else None
        if requested is not None:
            values = [
                value if (was := sample.requested[q]) is None else value + (requested - was)
                for value, sample in zip(values, samples, strict=True)
            ]
        return values
