"""How long jobs run, as distributions: what was learned of their kinds, or their walltimes alone.

A learned run time is log-normal around its median, with the 90th percentile that the predictor
gives. Where nothing was learned, a job runs for any part of its walltime with equal probability:
users' estimates are that inaccurate (Mu'alem & Feitelson, IEEE TPDS 12(6):529-543, 2001).
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Final

from msgspec import Struct

from gsched.model.states import PartState
from gschedd.core.attempts.walltime import walltime_left_s
from gschedd.core.settings import Settings
from gschedd.core.state import Job
from gschedd.plan.load import Basis, Prediction

_NORMAL: Final = NormalDist()
_HIGH_Z: Final = _NORMAL.inv_cdf(0.9)
#: By what learned spreads are multiplied: runs of one kind are more alike than the next ones are,
#: and some end early or straggle. Chosen on seeds 100 to 103 of ``prediction starts``, where 1
#: covered 71 % and 78 % (fifo, balance), 1.3 76 % and 78 %, 1.6 76 % and 79 % with too many early.
WIDENED: Final = 1.3
#: Bases of predictions that were learned from past runs.
LEARNED: Final = frozenset({Basis.KIND, Basis.PROGRAM, Basis.REQUEST, Basis.OWNER, Basis.ALL})
#: A job that has outlived this share of its distribution has left it: see `RunTime.at`.
_OUTLIVED: Final = 0.99
MAX_KEPT: Final = 16_384


class RunTime(Struct, frozen=True, kw_only=True):
    """How long one job runs from its start.

    Attributes:
        median_s: learned from past runs, seconds; None: nothing was.
        sigma: standard deviation of the logarithm.
        limit_s: the walltime, or what the site assumes, seconds; None: there is no limit.
    """

    median_s: float | None = None
    sigma: float = 0.0
    limit_s: float | None = None

    def at(self, share: float, age_s: float = 0.0) -> float | None:
        """Return the run time that a share of such jobs does not exceed, seconds; None: no end.

        Args:
            share: above 0 and below 1.
            age_s: for which the job has run already; jobs that ended before that do not count.
        """
        limit_s = math.inf if self.limit_s is None else self.limit_s
        if self.median_s is None:
            if self.limit_s is None:
                return None
            return age_s + share * max(limit_s - age_s, 0.0)
        before = self._share_at(age_s)
        if before > _OUTLIVED:  # unlike its kind: the longer it has run, the longer it goes on
            return min(age_s / (1.0 - share), max(limit_s, age_s))
        share = before + share * (1.0 - before)
        run_s = self.median_s * math.exp(self.sigma * _NORMAL.inv_cdf(share))
        return min(max(run_s, age_s), max(limit_s, age_s))

    def _share_at(self, age_s: float) -> float:
        """Return the share of such jobs that has ended by an age."""
        if age_s <= 0 or self.median_s is None:
            return 0.0
        if self.sigma <= 0:
            return 0.0 if age_s < self.median_s else 1.0
        return _NORMAL.cdf(math.log(age_s / self.median_s) / self.sigma)


def learned(said: Iterable[Prediction | None], limit_s: float | None) -> RunTime:
    """Return the run time of a job by what was predicted on its nodes; the slowest one counts.

    Args:
        said: a prediction for each node; None where there is none.
        limit_s: the job's limit, seconds; None: there is none.
    """
    slowest: Prediction | None = None
    for prediction in said:
        if prediction is None or prediction.basis not in LEARNED or not prediction.wall_s:
            return RunTime(limit_s=limit_s)
        if slowest is None or prediction.wall_s > (slowest.wall_s or 0.0):
            slowest = prediction
    if slowest is None or not slowest.wall_s:
        return RunTime(limit_s=limit_s)
    high_s = max(slowest.wall_high_s or slowest.wall_s, slowest.wall_s)
    sigma = WIDENED * math.log(high_s / slowest.wall_s) / _HIGH_Z
    return RunTime(median_s=slowest.wall_s, sigma=sigma, limit_s=limit_s)


def of_running(job: Job, settings: Settings) -> RunTime:
    """Return the run time of a job that runs, by what was predicted when it was assigned."""
    attempt = job.attempt
    assert attempt is not None, "a running job has an attempt"
    limit_s = walltime_left_s(job)
    if limit_s is None:
        limit_s = settings.default_walltime_s or None
    parts = attempt.parts.values()
    return learned((p.prediction for p in parts if p.state is not PartState.PASSIVE), limit_s)


@lru_cache(MAX_KEPT)
def _order(job: int, scenarios: int) -> tuple[int, ...]:
    def rank(scenario: int) -> bytes:
        return blake2b(f"{job} {scenario}".encode(), digest_size=8).digest()

    return tuple(sorted(range(scenarios), key=rank))


def share_of(job: int, scenario: int, scenarios: int) -> float:
    """Return which share of jobs like it one job outlives in one of some scenarios.

    Over all scenarios each job has each of that many shares once, in an order of its own: a Latin
    hypercube, which tells quantiles of few scenarios well (McKay, Beckman & Conover, Technometrics
    21(2):239-245, 1979).
    """
    return (_order(job, scenarios)[scenario] + 0.5) / scenarios
