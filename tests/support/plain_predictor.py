"""The rule of `RobustModel` as it reads: every number worked out at once, nothing kept.

The model itself puts off what may never be requested, and remembers what it has said. Tests hold it
against this.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from gschedd.models.family import (
    CPU_TELLS,
    EVERY,
    FIRST_ERRORS,
    FIRST_RUNS,
    FORGET,
    HANDICAPS,
    MAX_ERROR,
    MAX_MOMENTS,
    PRIOR_BOUND,
    PRIOR_SPREAD,
    TELL_EVERY,
    WELL_KNOWN,
)
from gschedd.models.history import MAX_KINDS, LruMap
from gschedd.models.measures import (
    LOG_FLOORS,
    Logs,
    Q,
    Sample,
    is_on_gpu,
    requested_of,
    sample_of,
    speed_of,
    use_of,
)
from gschedd.models.medians import MAX_PLACES, STEP
from gschedd.models.records import Record
from gschedd.models.robust import (
    ENOUGH_MISSES,
    HIGH_QUANTILE,
    LEVELS,
    MAX_MISSES,
    UNKNOWN_SPREAD,
    NodeSpeeds,
)
from gschedd.models.view import CUT_SHORT, DECAYS, HALF_LIVES, OWN_WAYS, WINDOW, PredictionTarget
from gschedd.plan.load import Basis, Kind, NodeLoad, Prediction, Predictor, Use

QUANTITIES = tuple(Q)
TELL_SPEED = frozenset({Q.CPU, Q.GPU, Q.WALL})
SpeedOf = Callable[[Sample], float]


def weighted_median(
    values: Sequence[float], order: Sequence[int], weights: Sequence[float]
) -> float:
    """Return the value at which half of the weight is reached, between two if exactly there.

    Args:
        values: any numbers, at least one.
        order: their places, by ascending value.
        weights: of each value, in the order of ``values``; their sum is above 0.
    """
    half = sum(weights) / 2
    nearly, beyond = half * (1 - 1e-9), half * (1 + 1e-9)
    reached = 0.0
    for place, index in enumerate(order):
        reached += weights[index]
        if reached >= nearly:
            if reached > beyond or place == len(order) - 1:
                return values[index]
            return (values[index] + values[order[place + 1]]) / 2
    if not order:
        raise ValueError("no values have no median")
    return values[order[-1]]


class PlainMedian:
    """The median of any number of values in bounded memory, to within STEP.

    Values are counted by place; a pointer stays at the median and moves by a few places with each
    value, so that adding one costs the same however many there were.
    """

    __slots__ = ("_below", "_count", "_counts", "_first", "_place")

    def __init__(self) -> None:
        self._first = 0.0
        self._counts: dict[int, int] = {}
        self._count = 0
        self._below = 0
        self._place = 0

    def add(self, value: float) -> None:
        """Add a value."""
        if not self._count:
            self._first = value
        place = round((value - self._first) / STEP)
        place = min(max(place, -MAX_PLACES), MAX_PLACES)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._count += 1
        if place < self._place:
            self._below += 1
        self._move()

    def _move(self) -> None:
        """Move the pointer to the place that holds the lower median."""
        wanted = (self._count - 1) // 2
        while self._below > wanted:
            self._place -= 1
            self._below -= self._counts.get(self._place, 0)
        while self._below + self._counts.get(self._place, 0) <= wanted:
            self._below += self._counts.get(self._place, 0)
            self._place += 1

    def value(self) -> float:
        """Return the median; 0 if nothing was added."""
        return self._first + self._place * STEP


class Moment(Struct, frozen=True, kw_only=True):
    """What a family said from some time on, by each own way, of a job on a node of speed 0."""

    at_s: float
    requested: tuple[float | None, ...]
    said: tuple[tuple[float, ...], ...]


class Lesson(Struct, frozen=True, kw_only=True):
    """What a run taught a family.

    Attributes:
        own: what the family's own ways had predicted, the best of them for each quantity.
        missed: by how much what would have been said was off; None if the run scores nothing.
    """

    own: Logs | None
    missed: Logs | None


class PlainFamily:
    """The latest runs of jobs that are alike, and how well each way has predicted them.

    Attributes:
        samples: the latest runs, oldest first.
        bound: part of the run time that scales with the node's speed: 1 for what computes all the
            time, 0 for what waits for a clock, a disk or a network.
        misses: by how much each quantity was missed lately, logarithms.
        seen: runs that were learned.
    """

    __slots__ = (
        "_errors",
        "_ever",
        "_live",
        "_moments",
        "_scored",
        "bound",
        "misses",
        "samples",
        "seen",
        "uses_request",
    )

    def __init__(self, *, uses_request: bool = False) -> None:
        self.samples: deque[Sample] = deque(maxlen=WINDOW)
        self.bound = PRIOR_BOUND
        self.uses_request = uses_request
        self.misses: tuple[deque[float], ...] = tuple(deque(maxlen=WINDOW) for _ in QUANTITIES)
        self._errors = [list(FIRST_ERRORS) for _ in Q]
        self._ever = tuple(PlainMedian() for _ in QUANTITIES)
        self._live = frozenset({Q.CPU, Q.MEMORY, Q.WALL})
        self._moments: list[Moment] = []
        self._scored = 0
        self.seen = 0

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

    def expect(self, q: Q, target: PredictionTarget, speed_of: SpeedOf) -> float:
        """Return the expected logarithm of a quantity on a node, by the best own way.

        Args:
            q: the quantity.
            target: that node and what was requested.
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
        self,
        sample: Sample,
        target: PredictionTarget,
        speed_of: SpeedOf,
        wider: Sequence[Logs] | None,
    ) -> Lesson:
        """Score what would have been predicted for a run, then add the run.

        Args:
            wider: what the own ways of wider families predict, the nearest family first; None if
                they are not asked.

        Returns:
            Nothing is scored for a run before which none had ended, nor for one cut short by a
            failure: nobody wants to predict that.
        """
        own: Logs | None = None
        missed: Logs | None = None
        moment = self._moment(sample.started_s)
        if moment is not None:
            predicted = [self._prediction_at(q, target, moment) for q in QUANTITIES]
            for q in QUANTITIES:
                predicted[q].extend(logs[q] for logs in wider or ())
            own = tuple(predicted[q][self.best_way(q, 0)] for q in QUANTITIES)
            if sample.whole:
                said = [predicted[q][self.best_way(q, len(wider or ()))] for q in QUANTITIES]
                missed = tuple(log - value for log, value in zip(sample.logs, said, strict=True))
                self._score(sample, predicted, alone=wider is None)
                for q in QUANTITIES:
                    self.misses[q].append(missed[q])
        self.samples.append(sample)
        self._add_for_ever(sample, target)
        if self.seen < WINDOW or self.seen % EVERY == 0:
            speeds = self._speeds(speed_of)
            self.bound = self._bound(speeds)
            self._remember(sample, speeds)
        self.seen += 1
        return Lesson(own=own, missed=missed)

    def _score(self, sample: Sample, predicted: Sequence[Sequence[float]], *, alone: bool) -> None:
        step = max(FORGET, 1 / (self._scored + FIRST_RUNS + 1))
        self._scored += 1
        for q in QUANTITIES:
            errors, log = self._errors[q], sample.logs[q]
            if alone and q not in self._live and log <= LOG_FLOORS[q]:
                errors[:] = [error * (1 - step) for error in errors]  # all would have said so
                continue
            for way, value in enumerate(predicted[q]):
                error = abs(log - value)
                errors[way] += step * ((error if error < MAX_ERROR else MAX_ERROR) - errors[way])  # noqa: FURB136 -- a call of min() costs twice the time

    def _add_for_ever(self, sample: Sample, target: PredictionTarget) -> None:
        self._live |= {q for q in QUANTITIES if sample.logs[q] > LOG_FLOORS[q]}
        if sample.whole or len(self.samples) == 1:
            for q in self._live:
                self._ever[q].add(sample.logs[q] - self._gain(q, target))

    def _remember(self, sample: Sample, speeds: Sequence[float]) -> None:
        """Note what is said from now on; of the older moments every second is forgotten."""
        anywhere = PredictionTarget(speed=0.0, requested=sample.requested, on_gpu=sample.on_gpu)
        weights = [self._weights(way) for way in range(len(HALF_LIVES))]
        said = tuple(self._by_all(q, anywhere, speeds, weights) for q in QUANTITIES)
        self._moments.append(Moment(at_s=sample.ended_s, requested=sample.requested, said=said))
        if len(self._moments) > MAX_MOMENTS:
            half = MAX_MOMENTS // 2
            self._moments[:half] = self._moments[:half:2]

    def _moment(self, at_s: float) -> Moment | None:
        """Return what was said at some time.

        A run is scored by what could be said when it started: runs that ended beside it often
        began beside it, too, and would make the last value look better than it is.
        """
        return next((each for each in reversed(self._moments) if each.at_s <= at_s), None)

    def _prediction_at(self, q: Q, target: PredictionTarget, moment: Moment) -> list[float]:
        shift = self._gain(q, target)
        requested, then_requested = target.requested[q], moment.requested[q]
        if self.uses_request and requested is not None and then_requested is not None:
            shift += requested - then_requested
        return [value + shift for value in moment.said[q]]

    def _by_all(
        self,
        q: Q,
        target: PredictionTarget,
        speeds: Sequence[float],
        weights: Sequence[Sequence[float]],
    ) -> tuple[float, ...]:
        """Return a quantity as each own way predicts it."""
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

    def _gain(self, q: Q, target: PredictionTarget) -> float:
        """Return by how much a quantity differs there from a node of speed 0 (a rate of 1)."""
        if q is Q.WALL:
            return -self.bound * target.speed
        if q is (Q.GPU if target.on_gpu else Q.CPU):
            return -(1 - self.bound) * target.speed
        return 0.0

    def _moved(self, q: Q, target: PredictionTarget, speeds: Sequence[float]) -> list[float]:
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
        requested = target.requested[q] if self.uses_request else None
        if requested is not None:
            for place, sample in enumerate(self.samples):
                was = sample.requested[q]
                if was is not None:
                    values[place] += requested - was
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


class PlainModel(Predictor):
    """What `RobustModel` is, plainly.

    Args:
        max_kinds: kinds, programs and owners remembered, each; the longest unused is forgotten.
    """

    def __init__(self, *, max_kinds: int = MAX_KINDS) -> None:
        self._families: dict[Basis, LruMap[PlainFamily]] = {
            basis: LruMap(_maker(basis), max_kinds) for basis in LEVELS
        }
        self._nodes = NodeSpeeds()
        self._misses = {
            basis: tuple(deque[float](maxlen=MAX_MISSES) for _ in QUANTITIES) for basis in Basis
        }

    def learn(self, record: Record) -> None:
        """Take a run into account."""
        sample = sample_of(record, requested_of(record.kind))
        target = self._target(record.kind, record.node, sample.speed)
        wider: list[Logs] = []
        keys = _keys(record.kind)
        seen = self._families[Basis.KIND].touch(record.kind.key).seen
        alone = seen >= WELL_KNOWN and seen % TELL_EVERY != 0
        for basis, key in reversed(keys[:1] if alone else keys):
            family = self._families[basis].touch(key)
            lesson = family.learn(sample, target, self._speed, None if alone else wider)
            if lesson.own is not None:
                wider.insert(0, lesson.own)
            if lesson.missed is None:
                continue
            for q in QUANTITIES:
                self._misses[basis][q].append(lesson.missed[q])
            if basis is Basis.KIND:
                miss = lesson.missed[Q.WALL] * family.bound
                self._nodes.learn(record.node, miss, on_gpu=sample.on_gpu)

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Return what a job of a kind will cost on a node."""
        known = self._known(kind)
        if not known:
            return _requested_use(kind, node)
        basis, family = known[0]
        speed = speed_of(node.rates, on_gpu=is_on_gpu(kind))
        target = self._target(kind, node.name, speed)
        expected = tuple(self._expect(q, known, target) for q in QUANTITIES)
        high = tuple(expected[q] + self._margin(basis, family, q) for q in QUANTITIES)
        return Prediction(
            use=use_of(expected, node.rates),
            high=use_of(high, node.rates),
            basis=basis,
            wall_s=math.exp(expected[Q.WALL]),
            wall_high_s=math.exp(high[Q.WALL]),
            records=len(family),
        )

    def _known(self, kind: Kind) -> list[tuple[Basis, PlainFamily]]:
        """Return the families of a job of which anything is known, the nearest first."""
        found = [(basis, self._families[basis].get(key)) for basis, key in _keys(kind)]
        return [(basis, family) for basis, family in found if family]

    def _expect(
        self, q: Q, known: Sequence[tuple[Basis, PlainFamily]], target: PredictionTarget
    ) -> float:
        way = known[0][1].best_way(q, len(known) - 1)
        family = known[max(way - OWN_WAYS + 1, 0)][1]
        return family.expect(q, target, self._speed)

    def _target(self, kind: Kind, node: str, speed: float) -> PredictionTarget:
        on_gpu = is_on_gpu(kind)
        corrected = speed + self._nodes.of(node, on_gpu=on_gpu)
        return PredictionTarget(speed=corrected, requested=requested_of(kind), on_gpu=on_gpu)

    def _speed(self, sample: Sample) -> float:
        return sample.speed + self._nodes.of(sample.node, on_gpu=sample.on_gpu)

    def _margin(self, basis: Basis, family: PlainFamily, q: Q) -> float:
        """Return by how much a high value lies above the expected one, as a logarithm."""
        misses = family.misses[q]
        if len(misses) < ENOUGH_MISSES:
            misses = self._misses[basis][q]
        if len(misses) < ENOUGH_MISSES:
            return UNKNOWN_SPREAD
        place = math.ceil((len(misses) + 1) * HIGH_QUANTILE) - 1
        return max(sorted(misses)[min(place, len(misses) - 1)], 0.0)


def _requested_use(kind: Kind, node: NodeLoad) -> Prediction:
    """Return what a job requests, as nothing else is known.

    The paper's guess, the node's load divided by its jobs, is nothing on an idle node, so that a
    whole burst would go there.
    """
    rates = node.rates
    gpus = min(kind.gpus, rates.gpus)
    use = Use(
        cpu_cores=min(max(kind.cpus, 1), rates.cores),
        memory_bytes=kind.memory_bytes,
        gpus=gpus,
        gpu_memory_bytes=gpus * rates.gpu_memory_bytes / rates.gpus if rates.gpus else 0.0,
    )
    return Prediction(use=use, high=use, basis=Basis.REQUESTED)


def _maker(basis: Basis) -> Callable[[], PlainFamily]:
    """Return what makes a family; beyond one kind, what was requested tells the sizes apart."""
    return lambda: PlainFamily(uses_request=basis is not Basis.KIND)


def _keys(kind: Kind) -> list[tuple[Basis, str]]:
    """Return the families that a job belongs to, the nearest first."""
    requested = f"{kind.cpus}:{kind.gpus}:{kind.memory_bytes}:{kind.walltime_s}"
    return [
        (Basis.KIND, kind.key),
        (Basis.PROGRAM, kind.program),
        (Basis.REQUEST, f"{kind.owner_uid}:{requested}"),
        (Basis.OWNER, str(kind.owner_uid)),
        (Basis.ALL, ""),
    ]
