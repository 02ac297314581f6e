"""How fast GPU types are compared with each other, as kinds of jobs have shown that ran on several.

So a type on which a job was never measured gets a value before the job has run there.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Final

from gschedd.models.goodput.lines import on_line
from gschedd.models.history import LruMap

#: Kinds that are remembered, and batch sizes of each on each type.
MAX_KINDS: Final = 256
MAX_SIZES: Final = 64
#: Of the ratios that kinds have shown this quantile counts: a type is rather tried than left out.
QUANTILE: Final = 0.75


class _Kind:
    """Times of a step on one GPU, seconds: by type, by samples of the step.

    Attributes:
        profiled: types of which they are times of a profile.
        ratios: how many times as fast the first type of each pair is; None: it was not compared.
    """

    __slots__ = ("profiled", "ratios", "steps_s")

    def __init__(self) -> None:
        self.steps_s: dict[str, dict[int, float]] = {}
        self.profiled: set[str] = set()
        self.ratios: dict[tuple[str, str], float | None] = {}

    def ratio(self, gpu_type: str, other: str) -> float | None:
        """Return how many times as fast a type is as another one; None: it did not run on both."""
        key = (gpu_type, other)
        if key not in self.ratios:
            here, there = self.steps_s.get(gpu_type), self.steps_s.get(other)
            self.ratios[key] = None if here is None or there is None else _compared(here, there)
        return self.ratios[key]


class TypeSpeeds:
    """Ratios of the speeds of GPU types, from the steps of kinds on one GPU of each; bounded."""

    def __init__(self) -> None:
        self._kinds: LruMap[_Kind] = LruMap(_Kind, MAX_KINDS)
        self._ratios: dict[tuple[str, str], float | None] = {}
        self.types: frozenset[str] = frozenset()

    def learn(
        self, kind: str, gpu_type: str, samples: int, step_s: float, *, profiled: bool = False
    ) -> None:
        """Take a step on one GPU into account; of a type that was profiled, profiles only.

        Args:
            samples: of the step (count).
            step_s: its time, seconds, more than 0.
            profiled: it is of a profile.
        """
        of_kind = self._kinds.touch(kind)
        of_kind.ratios.clear()
        if profiled and gpu_type not in of_kind.profiled:
            of_kind.profiled.add(gpu_type)
            of_kind.steps_s[gpu_type] = {}
        elif gpu_type in of_kind.profiled and not profiled:
            return
        sizes = of_kind.steps_s.setdefault(gpu_type, {})
        if samples in sizes or len(sizes) < MAX_SIZES:
            sizes[samples] = step_s
        self.types |= {gpu_type}
        self._ratios.clear()

    def ratio(self, gpu_type: str, other: str) -> float | None:
        """Return how many times as fast a type is as another one; None: no kind ran on both."""
        key = (gpu_type, other)
        if key not in self._ratios:
            self._ratios[key] = self._ratio(gpu_type, other)
        return self._ratios[key]

    def _ratio(self, gpu_type: str, other: str) -> float | None:
        found = [kind.ratio(gpu_type, other) for kind in self._kinds.values()]
        known = [ratio for ratio in found if ratio is not None]
        return _quantile(known) if known else None


def _compared(here: Mapping[int, float], there: Mapping[int, float]) -> float | None:
    """Return the median over the sizes that lie in the range of both; None: there is none."""
    first, last = max(min(here), min(there)), min(max(here), max(there))
    sizes = sorted({size for size in (*here, *there) if first <= size <= last})
    return median(on_line(there, size) / on_line(here, size) for size in sizes) if sizes else None


def _quantile(ratios: Sequence[float]) -> float:
    """Return the quantile `QUANTILE` of ratios, between two of them on a logarithmic scale."""
    logs = sorted(map(log, ratios))
    place = QUANTILE * (len(logs) - 1)
    low = int(place)
    high = min(low + 1, len(logs) - 1)
    return exp(logs[low] + (place - low) * (logs[high] - logs[low]))
