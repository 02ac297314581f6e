"""How long jobs of a kind run if its median and its spread are known: one hypothesis about it."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from msgspec import Struct

from gschedd.plan.load import PastRuns

_NORMAL: Final = NormalDist()
ROOT_2_PI: Final = math.sqrt(2 * math.pi)
#: Early failures end within this part of the run time.
EARLY_WITHIN: Final = 0.3
#: Stragglers run at most so many times as long.
LATE_WITHIN: Final = 20.0
#: Runs that take this part of their walltime, or more, have reached it.
AT_LIMIT: Final = 0.999
#: What hypotheses that all running jobs refute keep: one of them may still be true.
LEAST_CHANCE: Final = 1e-12
#: Logarithm of the largest factor of a mean beside a median.
MOST_LOG: Final = 50.0
_LEAST: Final = 1e-12
_MOST: Final = 1.0 - _LEAST


class Pinned(Struct, frozen=True, kw_only=True):
    """One hypothesis: how long jobs of a kind run if its median is known.

    Attributes:
        sigma: standard deviation of the logarithm.
        early, late: parts of the runs that fail early, and that straggle.
        limit_s: what ends them, seconds; infinite where nothing does.
        by_walltime: only the walltime tells it.
        stretch: by this the mean differs from that of the law.
    """

    median_s: float
    sigma: float
    limit_s: float
    early: float = 0.0
    late: float = 0.0
    by_walltime: bool = False
    stretch: float = 1.0

    def survival(self, age_s: float) -> float:
        """Return the part of the runs that are longer than an age; at the limit all end."""
        if age_s <= 0:
            return 1.0
        if age_s >= self.limit_s:
            return 0.0
        return sum(self.left(age_s))

    def left(self, age_s: float) -> tuple[float, float, float]:
        """Return the parts of the runs that last longer: early failures, others, stragglers."""
        usual = 1.0 - self.early - self.late
        if age_s <= 0:
            return self.early, usual, self.late
        early = self.early * max(1.0 - age_s / (EARLY_WITHIN * self.median_s), 0.0)
        usual *= 1.0 - _NORMAL.cdf(math.log(age_s / self.median_s) / self.sigma)
        late = self.late
        if age_s > self.median_s:
            late *= max(1.0 - math.log(age_s / self.median_s) / self.reach, 0.0)
        return early, usual, late

    @property
    def reach(self) -> float:
        """Return how far stragglers reach beyond the median, a logarithm."""
        return max(math.log(min(self.limit_s / self.median_s, LATE_WITHIN)), 1e-3)

    def at(self, share: float, age_s: float = 0.0) -> float:
        """Return the run time of the job that a share stands for, seconds.

        Args:
            share: above 0 and below 1.
            age_s: for which it has run already.
        """
        if age_s >= self.limit_s:
            return age_s
        early, usual, late = self.left(age_s)
        place = share * (early + usual + late)
        if early + usual + late < LEAST_CHANCE:  # the longer it has run, the longer it goes on
            return min(age_s / (1.0 - share), self.limit_s)
        if place < early:
            return age_s + (EARLY_WITHIN * self.median_s - age_s) * place / early
        place -= early
        if place < usual:
            before = 0.0
            if age_s > 0:
                before = _NORMAL.cdf(math.log(age_s / self.median_s) / self.sigma)
            part = before + (1.0 - before) * place / usual
            run_s = self.median_s * math.exp(
                self.sigma * _NORMAL.inv_cdf(min(max(part, _LEAST), _MOST))
            )
        else:
            from_s = max(age_s, self.median_s)
            reach = self.reach - math.log(from_s / self.median_s)
            run_s = from_s * math.exp(reach * min((place - usual) / late, 1.0))
        return min(max(run_s, age_s), self.limit_s)

    @property
    def mean_s(self) -> float:
        """Return the mean of the run times, seconds."""
        mean_s = math.exp(math.log(self.median_s) + min(self.sigma**2 / 2, MOST_LOG))
        if math.isfinite(self.limit_s):
            reach = math.log(self.limit_s / self.median_s) / self.sigma
            mean_s *= _NORMAL.cdf(reach - self.sigma)
            mean_s += self.limit_s * (1.0 - _NORMAL.cdf(reach))
        late_s = self.median_s * math.expm1(self.reach) / self.reach
        early_s = EARLY_WITHIN * self.median_s / 2
        usual = 1.0 - self.early - self.late
        mean_s = self.early * early_s + usual * mean_s + self.late * late_s
        return min(self.stretch * mean_s, self.limit_s)

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of the run times, seconds."""
        return _moments(self)


@lru_cache(1024)
def _moments(pinned: Pinned) -> tuple[float, float]:
    values = [pinned.at((number + 0.5) / 50) for number in range(50)]
    mean_s = pinned.mean_s  # few of the values are stragglers: they do not tell it well
    return mean_s, math.sqrt(sum((value - mean_s) ** 2 for value in values) / len(values))


def fits(laws: Sequence[Pinned], past: PastRuns) -> list[float]:
    """Return how well each of some laws of one kind explains past runs: logarithms.

    Densities are over the logarithm of the run time; at the limit it is the part that reaches it.
    """
    import numpy as np  # late: most of what imports this asks for no forecast

    runs_s = np.array([run_s for run_s, _ in past])
    weights = np.array([weight for _, weight in past])
    rows = [
        (law.median_s, law.sigma, law.early, law.late, law.reach, sum(law.left(law.limit_s)))
        for law in laws
    ]
    median_s, sigma, early, late, reach, at_limit = (column[:, None] for column in np.array(rows).T)
    off = np.log(runs_s / median_s)
    density = (1.0 - early - late) * np.exp(-((off / sigma) ** 2) / 2) / (sigma * ROOT_2_PI)
    short = runs_s < EARLY_WITHIN * median_s
    density += np.where(short, early * runs_s / (EARLY_WITHIN * median_s), 0.0)
    density += np.where((off > 0) & (off < reach), late / reach, 0.0)
    has_ended = runs_s < laws[0].limit_s * AT_LIMIT
    density = np.where(has_ended, density, at_limit)
    found = (weights * np.log(np.maximum(density, LEAST_CHANCE))).sum(axis=1)
    return [float(each) for each in found]
