"""The balancing paper's rule for what a job will cost, and what all such rules have in common.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015. The paper predicts load; we apply its rule to
run time, too, which it records but does not predict.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from gschedd.models.history import History
from gschedd.models.records import Record
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Predictor, Use

#: Of the latest runs, the part that weighs more: the paper's one fifth.
NEWEST_PART: Final = 0.2


class Model(Predictor, Protocol):
    """A predictor that learns from every run that ends."""

    def learn(self, record: Record) -> None:
        """Take a run into account; runs come in the order in which they ended."""

    def detach(self, kinds: Collection[Kind]) -> Predictor:
        """Return what predicts the same of some kinds now, and learns nothing more."""


def convert(used: Use, origin: NodeRates, target: NodeRates) -> Use:
    """Return a use measured on one node as the paper expects it on another.

    Work per second is a property of the job, so the busy part of a node shrinks as the node's rate
    grows: ``util_b = util_a * (rate_a * cores_a) / (rate_b * cores_b)``. Bytes stay bytes.
    """
    return Use(
        cpu_cores=used.cpu_cores * origin.core_rate / target.core_rate,
        memory_bytes=used.memory_bytes,
        gpus=used.gpus * origin.gpu_rate / target.gpu_rate if target.gpus else 0.0,
        gpu_memory_bytes=used.gpu_memory_bytes if target.gpus else 0.0,
    )


def nothing_known(node: NodeLoad) -> Prediction:
    """Return the guess where no run was ever recorded: the node's load, divided by its jobs."""
    use = node.used.times(1 / node.running) if node.running else Use()
    return Prediction(use=use, high=use, basis=Basis.NODE)


class PaperModel:
    """The paper's rule, exactly.

    Args:
        latest: L, how many of the latest runs stand for a kind never seen.
        weight: w, by which the newest fifth of them counts.
    """

    def __init__(self, *, latest: int = 20, weight: float = 0.6) -> None:
        if latest < 1 or not 0 <= weight <= 1:
            raise ValueError(f"latest={latest} must be at least 1, and weight={weight} from 0 to 1")
        self._history = History(max_per_kind=1, max_latest=latest)
        self._weight = weight

    def learn(self, record: Record) -> None:
        """Take a run into account."""
        self._history.add(record)

    def detach(self, kinds: Collection[Kind]) -> "PaperModel":
        """Return a copy that knows some kinds, and the latest runs of all."""
        other = PaperModel(weight=self._weight)
        other._history = self._history.only(kind.key for kind in kinds)
        return other

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:  # noqa: ARG002 -- the paper's rule knows no age
        """Return the mean of the kind's runs; without any, a weighted mean of the latest runs."""
        runs = self._history.runs(kind.key)
        if runs is not None:
            last = runs.latest[-1]
            mean = Use(
                cpu_cores=runs.cpu_work / runs.count / last.rates.core_rate,
                memory_bytes=runs.memory_bytes / runs.count,
                gpus=runs.gpu_work / runs.count / last.rates.gpu_rate,
                gpu_memory_bytes=runs.gpu_memory_bytes / runs.count,
            )
            use = convert(mean, last.rates, node.rates)
            return _certain(use, runs.wall_s / runs.count, Basis.KIND, runs.count)
        latest = self._history.latest
        if not latest:
            return nothing_known(node)
        newest = math.ceil(NEWEST_PART * len(latest))
        cut = len(latest) - newest
        parts = [list(latest)[:cut], list(latest)[cut:]]
        new_use, new_wall_s = _means(parts[1], node.rates)
        if not parts[0]:
            return _certain(new_use, new_wall_s, Basis.ALL, 1)
        old_use, old_wall_s = _means(parts[0], node.rates)
        weight = self._weight
        use = new_use.times(weight).plus(old_use.times(1 - weight))
        wall_s = weight * new_wall_s + (1 - weight) * old_wall_s
        return _certain(use, wall_s, Basis.ALL, len(latest))


def _means(records: Sequence[Record], target: NodeRates) -> tuple[Use, float]:
    total = Use()
    for record in records:
        total = total.plus(convert(record.used, record.rates, target))
    return total.times(1 / len(records)), sum(r.wall_s for r in records) / len(records)


def _certain(use: Use, wall_s: float, basis: Basis, records: int) -> Prediction:
    """Return a prediction by a rule that knows no spread."""
    return Prediction(
        use=use, high=use, basis=basis, wall_s=wall_s, wall_high_s=wall_s, records=records
    )
