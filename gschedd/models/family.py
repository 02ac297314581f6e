"""The runs of jobs that are alike, and what has been learned about foretelling them.

Several ways to foretell compete: weighted medians under three half-lives, the median of all runs
that there ever were, and what wider families say. Each is scored on every run before that is added,
and the one that was off the least is believed, for each quantity by itself.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Final

from msgspec import Struct

from gschedd.models.measures import LOG_FLOORS, QUANTITIES, Logs, Q, Sample
from gschedd.models.medians import LongMedian, weighted_median

#: Runs looked at: those before have little weight even under the longest half-life.
WINDOW: Final = 32
#: Moments remembered of what would have been said then; the older, the fewer.
MAX_MOMENTS: Final = 64
#: Half-lives that compete, in runs: what drifts wants a short one, what scatters a long one.
HALF_LIVES: Final = (0.7, 4.0, 16.0)
#: Ways of a family itself: those medians, and that of all its runs.
OWN_WAYS: Final = len(HALF_LIVES) + 1
#: Wider families that may be believed instead, at most.
WIDER: Final = 4
#: Error that each way is taken to have before it was ever scored: own ones are believed first.
FIRST_ERRORS: Final = (0.3, 0.25, 0.26, 0.3) + (0.4,) * WIDER
#: By how much better than the median of all runs the others must be: it cannot be led astray.
HANDICAPS: Final = (1.25, 1.2, 1.15, 1.0) + (1.25,) * WIDER
#: Runs that this first belief is worth, and the share forgotten with each run later on.
FIRST_RUNS: Final = 3
FORGET: Final = 0.02
#: A family that is well known thinks anew after this many runs only: learning is to be cheap.
EVERY: Final = 4
#: An error beyond a factor of e says "wrong", whatever its size: one outlier decides nothing.
MAX_ERROR: Final = 1.0
#: Weight of a run that did not do all its work, beside that of one that did.
CUT_SHORT: Final = 0.05
#: Part of the run time expected to scale with a node's speed, before anything shows it.
PRIOR_BOUND: Final = 0.8
#: How much spread of speeds (sum of squared logarithms) outweighs that.
PRIOR_SPREAD: Final = 0.3
#: By how much more the busy cores tell about it than the run time, which the input moves, too.
CPU_TELLS: Final = 4.0


def _decays(half_life: float) -> tuple[float, ...]:
    """Return what each of `WINDOW` runs counts under a half-life, the last one most: 1."""
    decay = math.exp2(-1 / half_life)
    return tuple(accumulate([1.0] + [decay] * (WINDOW - 1), mul))[::-1]


#: The same for each of the half-lives.
DECAYS: Final = tuple(_decays(half_life) for half_life in HALF_LIVES)
#: Quantities that depend on a node's speed.
TELL_SPEED: Final = frozenset({Q.CPU, Q.GPU, Q.WALL})

#: Returns the logarithm of the speed of the node on which a run was.
SpeedOf = Callable[[Sample], float]


class Target(Struct, frozen=True, kw_only=True):
    """Where a job is to run: the logarithm of that node's speed, and of what was asked for."""

    speed: float
    asked: tuple[float | None, ...]
    on_gpu: bool


class Moment(Struct, frozen=True, kw_only=True):
    """What a family said from some time on, by each own way, of a job on a node of speed 0."""

    at_s: float
    asked: tuple[float | None, ...]
    said: tuple[tuple[float, ...], ...]


class Lesson(Struct, frozen=True, kw_only=True):
    """What a run taught a family.

    Attributes:
        own: what the family's own ways had foretold, the best of them for each quantity.
        missed: by how much what would have been said was off; None if the run scores nothing.
    """

    own: Logs | None
    missed: Logs | None


class Family:
    """The latest runs of jobs that are alike, and how well each way has foretold them.

    Attributes:
        samples: the latest runs, oldest first.
        bound: part of the run time that scales with the node's speed: 1 for what computes all the
            time, 0 for what waits for a clock, a disk or a network.
        misses: by how much each quantity was missed lately, logarithms.
    """

    __slots__ = (
        "_errors",
        "_ever",
        "_live",
        "_moments",
        "_scored",
        "_seen",
        "bound",
        "misses",
        "samples",
        "use_asked",
    )

    def __init__(self, *, use_asked: bool = False) -> None:
        self.samples: deque[Sample] = deque(maxlen=WINDOW)
        self.bound = PRIOR_BOUND
        self.use_asked = use_asked
        self.misses: tuple[deque[float], ...] = tuple(deque(maxlen=WINDOW) for _ in QUANTITIES)
        self._errors = [list(FIRST_ERRORS) for _ in Q]
        self._ever = tuple(LongMedian() for _ in QUANTITIES)
        self._live = frozenset({Q.CPU, Q.MEMORY, Q.WALL})
        self._moments: list[Moment] = []
        self._scored = 0
        self._seen = 0

    def __len__(self) -> int:
        return len(self.samples)

    def best_way(self, q: Q, wider: int) -> int:
        """Return which way to believe: below OWN_WAYS an own one, else a wider family's place."""
        errors = self._errors[q]
        best, least = 0, errors[0] * HANDICAPS[0]
        for way in range(1, OWN_WAYS + wider):  # a plain loop, as it runs for every job and way
            error = errors[way] * HANDICAPS[way]
            if error < least:
                best, least = way, error
        return best

    def expect(self, q: Q, target: Target, speed_of: SpeedOf) -> float:
        """Return the expected logarithm of a quantity on a node, by the best own way.

        Args:
            q: the quantity.
            target: that node and what was asked for.
            speed_of: gives the speed of a sample's node, by what is known of the nodes now.
        """
        if q not in self._live:
            return LOG_FLOORS[q]
        way = self.best_way(q, 0)
        if way == len(HALF_LIVES):
            return self._ever[q].value() + self._gain(q, target)
        speeds = self._speeds(speed_of) if q in TELL_SPEED else ()
        values = self._moved(q, target, speeds)
        order = sorted(range(len(values)), key=values.__getitem__)
        return weighted_median(values, order, self._weights(way))

    def learn(
        self, sample: Sample, target: Target, speed_of: SpeedOf, wider: Sequence[Logs]
    ) -> Lesson:
        """Score what would have been foretold for a run, then add the run.

        Args:
            wider: what the own ways of wider families foretell, the nearest family first.

        Returns:
            Nothing is scored for a run before which none had ended, nor for one cut short by a
            failure: nobody wants to foretell that.
        """
        own: Logs | None = None
        missed: Logs | None = None
        moment = self._moment(sample.started_s)
        if moment is not None:
            foretold = [self._then_said(q, target, moment) for q in QUANTITIES]
            for q in QUANTITIES:
                foretold[q].extend(logs[q] for logs in wider)
            own = tuple(foretold[q][self.best_way(q, 0)] for q in QUANTITIES)
            if sample.whole:
                said = [foretold[q][self.best_way(q, len(wider))] for q in QUANTITIES]
                missed = tuple(log - value for log, value in zip(sample.logs, said, strict=True))
                self._score(sample, foretold)
                for q in QUANTITIES:
                    self.misses[q].append(missed[q])
        self.samples.append(sample)
        self._add_for_ever(sample, target)
        if self._seen < WINDOW or self._seen % EVERY == 0:
            speeds = self._speeds(speed_of)
            self.bound = self._bound(speeds)
            self._remember(sample, speeds)
        self._seen += 1
        return Lesson(own=own, missed=missed)

    def _score(self, sample: Sample, foretold: Sequence[Sequence[float]]) -> None:
        step = max(FORGET, 1 / (self._scored + FIRST_RUNS + 1))
        self._scored += 1
        for q in QUANTITIES:
            errors, log = self._errors[q], sample.logs[q]
            for way, value in enumerate(foretold[q]):
                error = abs(log - value)
                errors[way] += step * ((error if error < MAX_ERROR else MAX_ERROR) - errors[way])  # noqa: FURB136 -- a call of min() costs twice the time

    def _add_for_ever(self, sample: Sample, target: Target) -> None:
        self._live |= {q for q in QUANTITIES if sample.logs[q] > LOG_FLOORS[q]}
        if sample.whole or len(self.samples) == 1:
            for q in self._live:
                self._ever[q].add(sample.logs[q] - self._gain(q, target))

    def _remember(self, sample: Sample, speeds: Sequence[float]) -> None:
        """Note what is said from now on; of the older moments every second is forgotten."""
        anywhere = Target(speed=0.0, asked=sample.asked, on_gpu=sample.on_gpu)
        weights = [self._weights(way) for way in range(len(HALF_LIVES))]
        said = tuple(self._by_all(q, anywhere, speeds, weights) for q in QUANTITIES)
        self._moments.append(Moment(at_s=sample.ended_s, asked=sample.asked, said=said))
        if len(self._moments) > MAX_MOMENTS:
            half = MAX_MOMENTS // 2
            self._moments[:half] = self._moments[:half:2]

    def _moment(self, at_s: float) -> Moment | None:
        """Return what was said at some time.

        A run is scored by what could be said when it started: runs that ended beside it often
        began beside it, too, and would make the last value look better than it is.
        """
        return next((each for each in reversed(self._moments) if each.at_s <= at_s), None)

    def _then_said(self, q: Q, target: Target, moment: Moment) -> list[float]:
        shift = self._gain(q, target)
        asked, then_asked = target.asked[q], moment.asked[q]
        if self.use_asked and asked is not None and then_asked is not None:
            shift += asked - then_asked
        return [value + shift for value in moment.said[q]]

    def _by_all(
        self, q: Q, target: Target, speeds: Sequence[float], weights: Sequence[Sequence[float]]
    ) -> tuple[float, ...]:
        """Return a quantity as each own way foretells it."""
        if q not in self._live:
            return (LOG_FLOORS[q],) * OWN_WAYS
        values = self._moved(q, target, speeds)
        order = sorted(range(len(values)), key=values.__getitem__)
        recent = [weighted_median(values, order, each) for each in weights]
        return (*recent, self._ever[q].value() + self._gain(q, target))

    def _weights(self, way: int) -> Sequence[float]:
        """Return what each sample counts under a half-life, the last one most."""
        weights = DECAYS[way][-len(self.samples) :]
        if all(sample.whole for sample in self.samples):
            return weights
        pairs = zip(weights, self.samples, strict=True)
        return [weight if sample.whole else weight * CUT_SHORT for weight, sample in pairs]

    def _speeds(self, speed_of: SpeedOf) -> list[float]:
        """Return the speed of each sample's node; it is the same for all quantities."""
        return [speed_of(sample) for sample in self.samples]

    def _gain(self, q: Q, target: Target) -> float:
        """Return by how much a quantity differs there from a node of speed 0 (a rate of 1)."""
        if q is Q.WALL:
            return -self.bound * target.speed
        if q is (Q.GPU if target.on_gpu else Q.CPU):
            return -(1 - self.bound) * target.speed
        return 0.0

    def _moved(self, q: Q, target: Target, speeds: Sequence[float]) -> list[float]:
        """Return a quantity of the samples as it would have been for the target.

        Args:
            speeds: of the samples' nodes; only looked at for quantities of `TELL_SPEED`.
        """
        values = [sample.logs[q] for sample in self.samples]
        if q in TELL_SPEED:
            follows = self.bound if q is Q.WALL else 1 - self.bound
            here = target.speed
            for place, sample in enumerate(self.samples):
                if q is Q.WALL or sample.on_gpu == (q is Q.GPU):
                    values[place] -= follows * (here - speeds[place])
        asked = target.asked[q] if self.use_asked else None
        if asked is not None:
            for place, sample in enumerate(self.samples):
                was = sample.asked[q]
                if was is not None:
                    values[place] += asked - was
        return values

    def _bound(self, speeds: Sequence[float]) -> float:
        """Return by how much run time and busy cores have followed the speeds: a regression."""
        rows = [
            (speed, sample.logs[Q.WALL], sample.logs[Q.GPU if sample.on_gpu else Q.CPU])
            for sample, speed in zip(self.samples, speeds, strict=True)
            if sample.whole
        ]
        if len(rows) < 2:
            return self.bound
        mid = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        spread = sum((speed - mid[0]) ** 2 for speed, _, _ in rows)
        slope_wall = sum((speed - mid[0]) * (wall - mid[1]) for speed, wall, _ in rows)
        slope_busy = sum((speed - mid[0]) * (busy - mid[2]) for speed, _, busy in rows)
        evidence = -slope_wall + CPU_TELLS * (spread + slope_busy)
        total = (1 + CPU_TELLS) * spread
        bound = (evidence + PRIOR_SPREAD * PRIOR_BOUND) / (total + PRIOR_SPREAD)
        return float(min(max(bound, 0.0), 1.0))
