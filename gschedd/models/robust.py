"""gsched's own rule for what a job will cost.

It differs from the paper's rule in this: medians of logarithms, so that one run a hundred times
longer moves nothing; the latest runs weigh more, by half-lives that compete on each kind's own
past; a kind never seen is predicted from the same program, then the same owner, then all, scaled by
what was requested; run time *and* load are carried between unequal nodes, by the part of the run
that is seen to follow the node's speed; each node's true speed is learned beside its nominal one;
and every prediction has a high value, from how far earlier ones were missed.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import add
from statistics import median
from typing import Final

from msgspec import Struct, field, structs

from gschedd.models.family import WELL_KNOWN, Family, Lesson, StillFamily
from gschedd.models.history import MAX_KINDS, LruMap
from gschedd.models.measures import (
    MAX_KEPT,
    PLACES,
    WALL,
    Logs,
    Sample,
    is_on_gpu,
    requested_of,
    sample_of,
    speed_of,
    use_of,
)
from gschedd.models.records import Record
from gschedd.models.view import OWN_WAYS, PredictionTarget, SpeedsOf, View
from gschedd.plan.load import (
    Basis,
    Kind,
    NodeLoad,
    NodeRates,
    PastRuns,
    PredictedTime,
    Prediction,
    Predictor,
    Use,
)

#: Families a job belongs to, the nearest first.
LEVELS: Final = (Basis.KIND, Basis.PROGRAM, Basis.REQUEST, Basis.OWNER, Basis.ALL)
#: The high value is one that this share of runs did not exceed.
HIGH_QUANTILE: Final = 0.9
#: A family's own misses tell its spread from this many on; before, those of all families do.
ENOUGH_MISSES: Final = 10
#: A family's own misses tell how runs scatter from this many on: half of them, not nine in ten.
FEW_MISSES: Final = 5
#: The median of the absolute deviations of a normal distribution, in standard deviations.
MEDIAN_MISS: Final = 0.6745
#: Misses of all families remembered for each basis.
MAX_MISSES: Final = 128
#: How far a high value lies above the expected one when nothing was ever missed: a factor of 3.
UNKNOWN_SPREAD: Final = math.log(3)
#: Seconds between two runs of a well-known kind that are learned on a node.
LEARN_EVERY_S: Final = 1.0
#: Steps by which a node's speed is corrected: 1 / (this many + runs there, up to the second).
FIRST_STEPS: Final = 8
LAST_STEPS: Final = 100
#: One run corrects a node by this share of what it missed, at most.
MAX_MISS: Final = 0.5
MAX_CORRECTION: Final = math.log(4)


class NodeSpeeds:
    """How much faster each node is than its nominal rate, as logarithms, learned from runs.

    Only differences between nodes can be learned, so the mean over all nodes is held at 0: else
    all would drift together, and what was measured long ago would no longer compare.
    """

    def __init__(self) -> None:
        self._corrections: dict[bool, dict[str, float]] = {False: {}, True: {}}
        self._sums = {False: 0.0, True: 0.0}
        self._runs: dict[tuple[str, bool], int] = {}

    def copy(self) -> "NodeSpeeds":
        """Return what is known now."""
        other = NodeSpeeds()
        other._corrections = {on_gpu: known.copy() for on_gpu, known in self._corrections.items()}
        other._sums = self._sums.copy()
        return other

    def of(self, node: str, *, on_gpu: bool) -> float:
        """Return the correction of a node's cores or GPUs; 0 where nothing is known."""
        known = self._corrections[on_gpu]
        if node not in known:
            return 0.0
        return known[node] - self._sums[on_gpu] / len(known)

    def speed(self, sample: Sample) -> float:
        """Return the logarithm of the speed of the node on which a run was."""
        return sample.speed + self.of(sample.node, on_gpu=sample.on_gpu)

    def speeds(self, samples: Sequence[Sample]) -> list[float]:
        """Return the same for many runs."""
        cores, gpus = self._corrections[False], self._corrections[True]
        usual = self._sums[False] / len(cores) if cores else 0.0
        usual_gpu = self._sums[True] / len(gpus) if gpus else 0.0
        of_cores, of_gpus = cores.get, gpus.get
        return [
            sample.speed
            + (
                of_gpus(sample.node, usual_gpu) - usual_gpu
                if sample.on_gpu
                else of_cores(sample.node, usual) - usual
            )
            for sample in samples
        ]

    def learn(self, node: str, miss: float, *, on_gpu: bool) -> None:
        """Correct a node after a run that took e^miss times as long as was predicted."""
        runs = min(self._runs.get((node, on_gpu), 0) + 1, LAST_STEPS)
        self._runs[node, on_gpu] = runs
        step = min(max(miss, -MAX_MISS), MAX_MISS) / (FIRST_STEPS + runs) * 2
        known = self._corrections[on_gpu]
        old = known.get(node, 0.0)
        known[node] = min(max(old - step, -MAX_CORRECTION), MAX_CORRECTION)
        self._sums[on_gpu] += known[node] - old


class _Pace:
    """How often a kind has taught something on a node, and when it did last."""

    __slots__ = ("_count", "_last_s")

    def __init__(self) -> None:
        self._count = 0
        self._last_s = -math.inf

    def has_just_taught(self, ended_s: float) -> bool:
        """Return whether a run that ended then comes too soon; else it counts as the last one."""
        if self._count >= WELL_KNOWN and abs(ended_s - self._last_s) < LEARN_EVERY_S:
            return True
        self._count += 1
        self._last_s = ended_s
        return False


class _Predictor:
    """What predicts by families that are known, whether they go on learning or not.

    Args:
        nodes: speeds of nodes.
        misses: by how much runs were missed lately, by what their predictions stood on.
        places: the quantities that are learned.
    """

    def __init__(
        self,
        nodes: NodeSpeeds,
        misses: Mapping[Basis, Sequence[Logs]],
        places: tuple[int, ...] = PLACES,
    ) -> None:
        self._nodes = nodes
        self._places = places
        self._misses = misses
        self._estimates: dict[Kind, _Estimate] = {}  # since the last run was learned

    def _family(self, basis: Basis, key: str) -> Family | StillFamily | None:
        """Return a family, or None if it is unknown."""
        raise NotImplementedError

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:  # noqa: ARG002 -- age counts in runs
        """Return what a job of a kind will cost on a node."""
        known = self._known_of(kind)
        if known.nearest is None:
            return _requested_use(kind, node)
        speed = self._speed(known, node)
        if self._places == PLACES:
            return known.on(speed, node.rates)
        return known.lasting(speed, _requested_use(kind, node))

    def run_time(self, kind: Kind, node: NodeLoad, now_s: float) -> PredictedTime:  # noqa: ARG002 -- as above
        """Return how long a job of a kind will run on a node: a part of what `predict` returns."""
        known = self._known_of(kind)
        if known.nearest is None:
            return PredictedTime(basis=Basis.REQUESTED)
        return known.run_time(self._speed(known, node))

    def _speed(self, known: "_Estimate", node: NodeLoad) -> float:
        """Return the logarithm of the speed of what a job is bound to on a node."""
        on_gpu = known.on_gpu
        return speed_of(node.rates, on_gpu=on_gpu) + self._nodes.of(node.name, on_gpu=on_gpu)

    def spread(self, kind: Kind) -> float | None:
        """Return by how much run times of a kind are missed: standard deviation of the logarithm.

        Runs that fail early or straggle hardly count. None: too few runs are known.
        """
        known = self._known_of(kind)
        if not known.has_spread:
            known.has_spread = True
            if known.nearest is not None:
                known.spread = self._spread(known.basis, known.nearest)
        return known.spread

    def runs(self, kind: Kind, node: NodeLoad) -> PastRuns:
        """Return the latest runs of the very kind as they would have been on a node."""
        known = self._known_of(kind)
        if known.nearest is None or known.basis is not Basis.KIND:
            return ()
        if known.own is None:
            known.own = known.nearest.view(self._nodes.speeds, kept=True)
        return known.own.runs(
            known.target(self._speed(known, node)), known.nearest.best_way(WALL, 0)
        )

    def _known_of(self, kind: Kind) -> "_Estimate":
        predicted = self._estimates.get(kind)
        if predicted is None:
            predicted = self._estimates[kind] = self._predict(kind)
        return predicted

    def _predict(self, kind: Kind) -> "_Estimate":
        """Return what is known of a kind, whatever the node."""
        on_gpu, requested = is_on_gpu(kind), requested_of(kind)
        found = [(basis, self._family(basis, key)) for basis, key in _keys(kind)]
        known = [(basis, family) for basis, family in found if family]
        if not known:
            return _Estimate(requested=requested, on_gpu=on_gpu)
        basis, nearest = known[0]
        misses = nearest.misses
        return _Estimate(
            requested=requested,
            on_gpu=on_gpu,
            basis=basis,
            families=tuple([family for _, family in known]),
            records=len(nearest),
            missed=self._misses[basis] if len(misses) < ENOUGH_MISSES else misses,
            speeds_of=self._nodes.speeds,
        )

    def _spread(self, basis: Basis, family: Family | StillFamily) -> float | None:
        """Return by how much run times of a family are missed."""
        misses = family.misses
        if len(misses) < FEW_MISSES:
            misses = self._misses[basis]
        if len(misses) < FEW_MISSES:
            return None
        return median([abs(each[WALL]) for each in misses]) / MEDIAN_MISS


class RobustModel(_Predictor):
    """gsched's own predictor.

    Args:
        max_kinds: kinds, programs and owners remembered, each; the longest unused is forgotten.
        run_times_only: nothing but run times is learned. These are as with all, and jobs are
            predicted to use what they request.
    """

    def __init__(self, *, max_kinds: int = MAX_KINDS, run_times_only: bool = False) -> None:
        places = (WALL,) if run_times_only else PLACES
        self._families: dict[Basis, LruMap[Family]] = {
            basis: LruMap(_maker(basis, places), max_kinds) for basis in LEVELS
        }
        self._paces: LruMap[_Pace] = LruMap(_Pace, max_kinds)
        self._missed = {basis: deque[Logs](maxlen=MAX_MISSES) for basis in Basis}
        super().__init__(NodeSpeeds(), self._missed, places)

    def _family(self, basis: Basis, key: str) -> Family | None:
        return self._families[basis].get(key)

    def learn(self, record: Record) -> None:
        """Take a run into account, unless it would teach nothing.

        A kind whose jobs end many times a second on a node is learned once a second there when it
        is well known: its latest runs are all of the last moment anyway, and to learn of each costs
        more than to run it.
        """
        kind = record.kind
        pace = self._paces.touch(f"{kind.key} {record.node}")
        if pace.has_just_taught(record.ended_s):
            return
        self._estimates.clear()
        requested = requested_of(kind)
        sample = sample_of(record, requested)
        target = PredictionTarget(
            speed=self._nodes.speed(sample), requested=requested, on_gpu=sample.on_gpu
        )
        own = self._families[Basis.KIND].touch(kind.key)
        if own.tells_others:
            self._learn_in_all(record, sample, target)
        else:
            lesson = own.learn(sample, target, self._nodes.speeds, None)
            self._take(lesson, Basis.KIND, own, record.node, on_gpu=sample.on_gpu)

    def _learn_in_all(self, record: Record, sample: Sample, target: PredictionTarget) -> None:
        """Teach all families of a job, the widest first."""
        wider: list[Logs] = []
        for basis, key in reversed(_keys(record.kind)):
            family = self._families[basis].touch(key)
            lesson = family.learn(sample, target, self._nodes.speeds, wider)
            self._take(lesson, basis, family, record.node, on_gpu=sample.on_gpu)
            if lesson.own is not None:
                wider.insert(0, lesson.own)

    def _take(
        self, lesson: Lesson, basis: Basis, family: Family, node: str, *, on_gpu: bool
    ) -> None:
        """Note by how much a run was missed, and what that says of its node."""
        if lesson.missed is None:
            return
        self._missed[basis].append(lesson.missed)
        if basis is Basis.KIND:
            self._nodes.learn(node, lesson.missed[WALL] * family.bound, on_gpu=on_gpu)

    def detach(self, kinds: Collection[Kind], before: Predictor | None = None) -> "RobustSnapshot":
        """Return what is known of some kinds now: of many kinds the families are few."""
        families: dict[Basis, dict[str, StillFamily]] = (
            before.families if isinstance(before, RobustSnapshot) else {each: {} for each in LEVELS}
        )
        levels = [(self._families[basis], families[basis]) for basis in LEVELS]
        for kind in kinds:
            for (_, key), (known, found) in zip(_keys(kind), levels, strict=True):
                if key not in found and (family := known.get(key)) is not None:
                    found[key] = family.still(self._nodes.speeds)
        return RobustSnapshot(
            families=families,
            nodes=self._nodes.copy(),
            misses={basis: tuple(missed) for basis, missed in self._missed.items()},
            places=self._places,
        )


class _Estimate(Struct, kw_only=True):
    """What is known of a kind until the next run is learned; most of it when it is asked for.

    Attributes:
        families: that are known, the nearest first, where ``basis`` says which one that is.
        records: how many runs that one has.
        missed: by how much runs were missed, which tells how far high values lie above the
            expected ones.
        speeds_of: gives speeds of nodes.
        ways: which view to believe of a quantity, and by which way, as far as it was asked for.
        views: of the families that are believed.
        margins: by how much high values lie above the expected ones, logarithms.
        spread: by how much run times are missed, a standard deviation; None: unknown.
        has_spread: that was asked for.
        own: what the nearest family is, with the runs that stand for all.
        predictions: what was predicted already, by the logarithm of a node's speed, and its rates.
        run_times: the same of run times alone.
    """

    requested: tuple[float | None, ...]
    on_gpu: bool
    basis: Basis = Basis.REQUESTED
    families: tuple[Family | StillFamily, ...] = ()
    records: int = 0
    missed: Sequence[Logs] = ()
    speeds_of: SpeedsOf | None = None
    ways: list[tuple[View, int] | None] = field(default_factory=lambda: [None] * len(PLACES))
    views: dict[Family | StillFamily, View] = field(default_factory=dict)
    margins: dict[int, float] = field(default_factory=dict)
    spread: float | None = None
    has_spread: bool = False
    own: View | None = None
    predictions: dict[tuple[float, NodeRates], Prediction] = field(default_factory=dict)
    run_times: dict[float, PredictedTime] = field(default_factory=dict)

    @property
    def nearest(self) -> Family | StillFamily | None:
        """Return the nearest family; None: nothing is known."""
        return self.families[0] if self.families else None

    def target(self, speed: float) -> PredictionTarget:
        """Return what is asked for on a node, by the logarithm of its speed."""
        return PredictionTarget(speed=speed, requested=self.requested, on_gpu=self.on_gpu)

    def on(self, speed: float, rates: NodeRates) -> Prediction:
        """Return what a job of the kind will cost on a node."""
        found = self.predictions.get((speed, rates))
        if found is None:
            found = self.predictions[speed, rates] = self._on(speed, rates)
        return found

    def run_time(self, speed: float) -> PredictedTime:
        """Return how long a job of the kind will run on a node."""
        found = self.run_times.get(speed)
        if found is None:
            high_s = math.exp(self._expect(WALL, self.target(speed)) + self._margin(WALL))
            found = self.run_times[speed] = PredictedTime(
                basis=self.basis, wall_high_s=high_s, records=self.records
            )
        return found

    def lasting(self, speed: float, requested: Prediction) -> Prediction:
        """Return a prediction with a run time, where nothing else was learned."""
        expected = self._expect(WALL, self.target(speed))
        return structs.replace(
            requested,
            basis=self.basis,
            wall_s=math.exp(expected),
            wall_high_s=math.exp(expected + self._margin(WALL)),
            records=self.records,
        )

    def _expect(self, q: int, target: PredictionTarget) -> float:
        view, way = self._way(q)
        return view.expect(q, target, way)

    def _way(self, q: int) -> tuple[View, int]:
        """Return which view to believe of a quantity, and by which way."""
        found = self.ways[q]
        if found is None:
            families = self.families
            best = families[0].best_way(q, len(families) - 1)
            family = families[max(best - OWN_WAYS + 1, 0)]
            way = best if family is families[0] else family.best_way(q, 0)
            view = self.views.get(family)
            if view is None:
                assert self.speeds_of is not None, "something is known"
                view = self.views[family] = family.view(self.speeds_of)
            found = self.ways[q] = (view, way)
        return found

    def _margin(self, q: int) -> float:
        """Return by how much the high value of a quantity lies above the expected one."""
        found = self.margins.get(q)
        if found is None:
            found = self.margins[q] = _margin([each[q] for each in self.missed])
        return found

    def _on(self, speed: float, rates: NodeRates) -> Prediction:
        target = self.target(speed)
        expected = tuple([self._expect(q, target) for q in PLACES])
        high = tuple(map(add, expected, map(self._margin, PLACES)))
        return Prediction(
            use=use_of(expected, rates),
            high=use_of(high, rates),
            basis=self.basis,
            wall_s=math.exp(expected[WALL]),
            wall_high_s=math.exp(high[WALL]),
            records=self.records,
        )


class RobustSnapshot(_Predictor):
    """What a `RobustModel` knew of some kinds at one moment.

    Args:
        families: to which the kinds belong, by the key in each level, as far as they were known.
        nodes: speeds of nodes.
        misses, places: as of the model.
    """

    def __init__(
        self,
        *,
        families: dict[Basis, dict[str, StillFamily]],
        nodes: NodeSpeeds,
        misses: Mapping[Basis, Sequence[Logs]],
        places: tuple[int, ...],
    ) -> None:
        super().__init__(nodes, misses, places)
        self.families = families

    def _family(self, basis: Basis, key: str) -> StillFamily | None:
        return self.families[basis].get(key)


def _margin(misses: list[float]) -> float:
    """Return by how much a high value lies above the expected one, a logarithm."""
    if len(misses) < ENOUGH_MISSES:
        return UNKNOWN_SPREAD
    place = min(math.ceil((len(misses) + 1) * HIGH_QUANTILE), len(misses)) - 1
    return max(sorted(misses)[place], 0.0)


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


def _maker(basis: Basis, places: tuple[int, ...]) -> Callable[[], Family]:
    """Return what makes a family; beyond one kind, what was requested tells the sizes apart."""
    wider = len(LEVELS) - 1 - LEVELS.index(basis)
    return lambda: Family(uses_request=basis is not Basis.KIND, wider=wider, places=places)


@lru_cache(MAX_KEPT)
def _keys(kind: Kind) -> tuple[tuple[Basis, str], ...]:
    """Return the families that a job belongs to, the nearest first."""
    requested = f"{kind.cpus}:{kind.gpus}:{kind.memory_bytes}:{kind.walltime_s}"
    return (
        (Basis.KIND, kind.key),
        (Basis.PROGRAM, kind.program),
        (Basis.REQUEST, f"{kind.owner_uid}:{requested}"),
        (Basis.OWNER, str(kind.owner_uid)),
        (Basis.ALL, ""),
    )
