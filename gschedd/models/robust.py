"""gsched's own rule for what a job will cost.

It differs from the paper's rule in this: medians of logarithms, so that one run a hundred times
longer moves nothing; the latest runs weigh more, by half-lives that compete on each kind's own
past; a kind never seen is foretold from the same program, then the same owner, then all, scaled by
what was asked for; run time *and* load are carried between unequal nodes, by the part of the run
that is seen to follow the node's speed; each node's true speed is learned beside its nominal one;
and every prediction has a high value, from how far earlier ones were missed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gschedd.models.family import OWN_WAYS, Family, Target
from gschedd.models.history import MAX_KINDS, Recent
from gschedd.models.measures import (
    QUANTITIES,
    Logs,
    Q,
    Sample,
    asked_of,
    is_on_gpu,
    sample_of,
    speed_of,
    use_of,
)
from gschedd.models.records import Record
from gschedd.plan.load import Basis, Kind, NodeLoad, Prediction, Use

#: Families a job belongs to, the nearest first.
LEVELS: Final = (Basis.KIND, Basis.PROGRAM, Basis.REQUEST, Basis.OWNER, Basis.ALL)
#: The high value is one that this share of runs did not exceed.
HIGH_QUANTILE: Final = 0.9
#: A family's own misses tell its spread from this many on; before, those of all families do.
ENOUGH_MISSES: Final = 10
#: Misses of all families remembered for each basis.
MAX_MISSES: Final = 128
#: How far a high value lies above the expected one when nothing was ever missed: a factor of 3.
UNKNOWN_SPREAD: Final = math.log(3)
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

    def of(self, node: str, *, on_gpu: bool) -> float:
        """Return the correction of a node's cores or GPUs; 0 where nothing is known."""
        known = self._corrections[on_gpu]
        if node not in known:
            return 0.0
        return known[node] - self._sums[on_gpu] / len(known)

    def learn(self, node: str, miss: float, *, on_gpu: bool) -> None:
        """Correct a node after a run that took e^miss times as long as was foretold."""
        runs = min(self._runs.get((node, on_gpu), 0) + 1, LAST_STEPS)
        self._runs[node, on_gpu] = runs
        step = min(max(miss, -MAX_MISS), MAX_MISS) / (FIRST_STEPS + runs) * 2
        known = self._corrections[on_gpu]
        old = known.get(node, 0.0)
        known[node] = min(max(old - step, -MAX_CORRECTION), MAX_CORRECTION)
        self._sums[on_gpu] += known[node] - old


class RobustModel:
    """gsched's own predictor.

    Args:
        max_kinds: kinds, programs and owners remembered, each; the longest unused is forgotten.
    """

    def __init__(self, *, max_kinds: int = MAX_KINDS) -> None:
        self._families: dict[Basis, Recent[Family]] = {
            basis: Recent(_maker(basis), max_kinds) for basis in LEVELS
        }
        self._nodes = NodeSpeeds()
        self._misses = {
            basis: tuple(deque[float](maxlen=MAX_MISSES) for _ in QUANTITIES) for basis in Basis
        }

    def learn(self, record: Record) -> None:
        """Take a run into account."""
        sample = sample_of(record)
        target = self._target(record.kind, record.node, sample.speed)
        wider: list[Logs] = []
        for basis, key in reversed(_keys(record.kind)):
            family = self._families[basis].touch(key)
            lesson = family.learn(sample, target, self._speed, wider)
            if lesson.own is not None:
                wider.insert(0, lesson.own)
            if lesson.missed is None:
                continue
            for q in QUANTITIES:
                self._misses[basis][q].append(lesson.missed[q])
            if basis is Basis.KIND:
                miss = lesson.missed[Q.WALL] * family.bound
                self._nodes.learn(record.node, miss, on_gpu=sample.on_gpu)

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:  # noqa: ARG002 -- age counts in runs
        """Return what a job of a kind will cost on a node."""
        known = self._known(kind)
        if not known:
            return _asked_for(kind, node)
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

    def _known(self, kind: Kind) -> list[tuple[Basis, Family]]:
        """Return the families of a job of which anything is known, the nearest first."""
        found = [(basis, self._families[basis].get(key)) for basis, key in _keys(kind)]
        return [(basis, family) for basis, family in found if family]

    def _expect(self, q: Q, known: Sequence[tuple[Basis, Family]], target: Target) -> float:
        way = known[0][1].best_way(q, len(known) - 1)
        family = known[max(way - OWN_WAYS + 1, 0)][1]
        return family.expect(q, target, self._speed)

    def _target(self, kind: Kind, node: str, speed: float) -> Target:
        on_gpu = is_on_gpu(kind)
        corrected = speed + self._nodes.of(node, on_gpu=on_gpu)
        return Target(speed=corrected, asked=asked_of(kind), on_gpu=on_gpu)

    def _speed(self, sample: Sample) -> float:
        return sample.speed + self._nodes.of(sample.node, on_gpu=sample.on_gpu)

    def _margin(self, basis: Basis, family: Family, q: Q) -> float:
        """Return by how much a high value lies above the expected one, as a logarithm."""
        misses = family.misses[q]
        if len(misses) < ENOUGH_MISSES:
            misses = self._misses[basis][q]
        if len(misses) < ENOUGH_MISSES:
            return UNKNOWN_SPREAD
        place = math.ceil((len(misses) + 1) * HIGH_QUANTILE) - 1
        return max(sorted(misses)[min(place, len(misses) - 1)], 0.0)


def _asked_for(kind: Kind, node: NodeLoad) -> Prediction:
    """Return what a job asks for, as nothing else is known.

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
    return Prediction(use=use, high=use, basis=Basis.ASKED)


def _maker(basis: Basis) -> Callable[[], Family]:
    """Return what makes a family; beyond one kind, what was asked for tells the sizes apart."""
    return lambda: Family(use_asked=basis is not Basis.KIND)


def _keys(kind: Kind) -> list[tuple[Basis, str]]:
    """Return the families that a job belongs to, the nearest first."""
    asked = f"{kind.cpus}:{kind.gpus}:{kind.memory_bytes}:{kind.walltime_s}"
    return [
        (Basis.KIND, kind.key),
        (Basis.PROGRAM, kind.program),
        (Basis.REQUEST, f"{kind.owner_uid}:{asked}"),
        (Basis.OWNER, str(kind.owner_uid)),
        (Basis.ALL, ""),
    ]
