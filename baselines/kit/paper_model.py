"""The balancing paper's rule for what a job will cost.

Source: Liu Hui et al., "A self-learning load balancing scheduling algorithm for GPU heterogeneous
clusters", Journal of Xi'an Shiyou University, 2015. The paper predicts load; we apply its rule to
run time, too, which it records but does not predict.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from gschedd.models.history import MAX_KINDS, LruMap
from gschedd.models.records import Record
from gschedd.plan.load import Basis, Kind, NodeLoad, NodeRates, Prediction, Predictor, Use

#: Runs of one kind remembered: what came before has been outweighed by then.
MAX_PER_KIND: Final = 32
#: Runs of all kinds together remembered.
MAX_LATEST: Final = 200
#: Of the latest runs, the part that weighs more: the paper's one fifth.
NEWEST_PART: Final = 0.2


class Runs:
    """The runs of one kind: the latest of them, and sums over all that there ever were.

    Attributes:
        count: runs there ever were.
        cpu_work, gpu_work: sums of busy cores and GPUs times their node's rate of one.
        memory_bytes, gpu_memory_bytes, wall_s: sums.
    """

    __slots__ = (
        *("count", "cpu_work", "gpu_work", "gpu_memory_bytes", "latest", "memory_bytes"),
        "wall_s",
    )

    def __init__(self, most: int) -> None:
        self.latest: deque[Record] = deque(maxlen=most)
        self.count = 0
        self.cpu_work = 0.0
        self.memory_bytes = 0.0
        self.gpu_work = 0.0
        self.gpu_memory_bytes = 0.0
        self.wall_s = 0.0

    def add(self, record: Record) -> None:
        """Add the next run."""
        self.latest.append(record)
        self.count += 1
        self.cpu_work += record.used.cpu_cores * record.rates.core_rate
        self.memory_bytes += record.used.memory_bytes
        self.gpu_work += record.used.gpus * record.rates.gpu_rate
        self.gpu_memory_bytes += record.used.gpu_memory_bytes
        self.wall_s += record.wall_s


class History:
    """All that is remembered, in the order in which the runs ended."""

    def __init__(
        self,
        *,
        max_kinds: int = MAX_KINDS,
        max_per_kind: int = MAX_PER_KIND,
        max_latest: int = MAX_LATEST,
    ) -> None:
        self._kinds: LruMap[Runs] = LruMap(partial(Runs, max_per_kind), max_kinds)
        self._latest: deque[Record] = deque(maxlen=max_latest)

    def add(self, record: Record) -> None:
        """Remember a run."""
        self._kinds.touch(record.kind.key).add(record)
        self._latest.append(record)

    def only(self, keys: Iterable[str]) -> "History":
        """Return a copy that knows some kinds, and the latest runs of all."""
        other = History()
        other._kinds = self._kinds.only(keys)
        other._latest = self._latest.copy()
        return other

    def keys(self) -> Iterable[str]:
        """Return the kinds that are remembered."""
        return iter(self._kinds)

    def runs(self, key: str) -> Runs | None:
        """Return the runs of a kind, or None if it was never seen."""
        return self._kinds.get(key)

    @property
    def latest(self) -> Sequence[Record]:
        """Return the latest runs of all kinds, oldest first."""
        return self._latest

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._kinds)


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


class PaperModel(Predictor):
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

    def detach(self, kinds: Collection[Kind], before: Predictor | None = None) -> "PaperModel":
        """Return a copy that knows some kinds, and the latest runs of all."""
        other = PaperModel(weight=self._weight)
        keys = {kind.key for kind in kinds}
        if isinstance(before, PaperModel):
            keys |= before.kinds()
        other._history = self._history.only(keys)
        return other

    def kinds(self) -> set[str]:
        """Return the keys of the kinds that it knows."""
        return set(self._history.keys())

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
