"""How long jobs run, as distributions: what was learned of their kinds, and their walltimes.

A run time counts as learned once `gschedd.plan.times.ENOUGH_RUNS` jobs of the very kind have
finished. Before, what few runs of the kind or runs of other jobs tell has a part of the weight,
the less the farther they are, and the walltime has the rest: a job runs for any part of it with
nearly equal probability, as users' estimates are that inaccurate (Mu'alem & Feitelson, IEEE TPDS
12(6):529-543, 2001).

Jobs of one kind run alike, so what is unknown of a kind is unknown of all of its jobs together: a
thousand elements of an array whose run time nobody knows do not average out. Therefore a
distribution is a list of hypotheses about the kind, each with a chance; a scenario chooses one of
them for all jobs of the kind. Jobs that run already refute the hypotheses by which they would have
ended. Learned run times are log-normal around their median, with the 90th percentile that the
predictor gives.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gsched.model.states import PartState
from gschedd.core.attempts.walltime import walltime_left_s
from gschedd.core.settings import Settings
from gschedd.core.state import Job
from gschedd.models.kinds import kind_of
from gschedd.plan.load import Basis, Kind, Prediction
from gschedd.plan.times import ENOUGH_RUNS, JobPredictions

_NORMAL: Final = NormalDist()
#: By what learned spreads are multiplied: runs of one kind are more alike than the next ones are.
WIDENED: Final = 1.3
#: How many runs of each basis have the same weight as the walltime, and the weight that its runs
#: never exceed.
TRUST: Final[Mapping[Basis, tuple[float, float]]] = {
    Basis.KIND: (0.3, 0.98),
    Basis.PROGRAM: (1.0, 0.8),
    Basis.REQUEST: (3.0, 0.8),
    Basis.OWNER: (5.0, 0.7),
    Basis.ALL: (10.0, 0.7),
}
#: Standard deviation of the logarithm of the run times of a kind where only other jobs tell it.
ALIKE: Final = 0.3
#: The same for the only job of a kind: the part of its walltime that it uses says all.
OF_ONE: Final = 0.01
#: Hypotheses about the median of a kind: by what was learned, and by the walltime.
Z_STEP: Final = 0.4
Z_BY_RUNS: Final = tuple(Z_STEP * number for number in range(-8, 9))
PARTS_BY_RUNS: Final = tuple(
    _NORMAL.cdf(z + Z_STEP / 2) - _NORMAL.cdf(z - Z_STEP / 2) for z in Z_BY_RUNS
)
BY_WALLTIME: Final = 20
#: The part of its walltime that a kind uses is a uniform number to this power.
FRACTION_POWER: Final = 1.15
#: The same without a limit: standard deviation of the logarithm of the median.
NO_LIMIT_SPREAD: Final = math.log(10)
#: Part of the runs of a learned kind that fail early, and within which part of the run time.
EARLY: Final = 0.04
EARLY_WITHIN: Final = 0.3
#: Part of them that straggle, and how many times as long they run at most.
LATE: Final = 0.02
LATE_WITHIN: Final = 20.0
#: How much one run of a kind that has ended refutes other medians: standard deviation of the
#: logarithm.
ONE_RUN: Final = 1.0
#: Spread of the run times of a kind, and of those of different kinds, of which it is unknown.
USUAL_SPREAD: Final = 0.4
UNUSUAL_SPREAD: Final = 1.0
#: How much of a spread is unknown after one run, by its square: so much is the mean.
SPREAD_MISS: Final = 1.1
#: The least of the uncertainty of a learned median: standard deviation of the logarithm.
LEAST_LOCATED: Final = 0.08
#: Running jobs of one kind that are looked at, spread over all ages.
MAX_AGES: Final = 32
#: What hypotheses that all running jobs refute keep: one of them may still be true.
LEAST_CHANCE: Final = 1e-12
#: How much what one kind of a user uses of its walltime tells about the user's other kinds.
OF_OWNER: Final = 0.3
MAX_KEPT: Final = 16_384
_MOST: Final = 1.0 - 1e-12

#: The chance of each hypothesis about a kind, in the order of `RunTime.hypotheses`.
Chances = tuple[float, ...]


class Pinned(Struct, frozen=True, kw_only=True):
    """One hypothesis: how long jobs of a kind run if its median is known.

    Attributes:
        sigma: standard deviation of the logarithm.
        early, late: parts of the runs that fail early, and that straggle.
        limit_s: what ends them, seconds; infinite where nothing does.
        by_walltime: only the walltime tells it.
    """

    median_s: float
    sigma: float
    limit_s: float
    early: float = 0.0
    late: float = 0.0
    by_walltime: bool = False

    def survival(self, age_s: float) -> float:
        """Return the part of the runs that are longer than an age; at the limit all end."""
        if age_s <= 0:
            return 1.0
        if age_s >= self.limit_s:
            return 0.0
        return sum(self._left(age_s))

    def _left(self, age_s: float) -> tuple[float, float, float]:
        """Return the parts of the runs that last longer: early failures, others, stragglers."""
        usual = 1.0 - self.early - self.late
        if age_s <= 0:
            return self.early, usual, self.late
        early = self.early * max(1.0 - age_s / (EARLY_WITHIN * self.median_s), 0.0)
        usual *= 1.0 - _NORMAL.cdf(math.log(age_s / self.median_s) / self.sigma)
        late = self.late
        if age_s > self.median_s:
            late *= max(1.0 - math.log(age_s / self.median_s) / self._reach, 0.0)
        return early, usual, late

    @property
    def _reach(self) -> float:
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
        early, usual, late = self._left(age_s)
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
            run_s = self.median_s * math.exp(self.sigma * _NORMAL.inv_cdf(min(part, _MOST)))
        else:
            from_s = max(age_s, self.median_s)
            reach = self._reach - math.log(from_s / self.median_s)
            run_s = from_s * math.exp(reach * min((place - usual) / late, 1.0))
        return min(max(run_s, age_s), self.limit_s)

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of the run times, seconds."""
        return _moments(self)


@lru_cache(1024)
def _moments(pinned: Pinned) -> tuple[float, float]:
    values = [pinned.at((number + 0.5) / 50) for number in range(50)]
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


class RunTime(Struct, frozen=True, kw_only=True, cache_hash=True):
    """How long jobs of one kind run from their start on one node, as far as that is known.

    Attributes:
        kind: names the kind: its jobs run alike.
        owner: whose jobs they are.
        median_s: by past runs, seconds; None: nothing was learned.
        sigma: standard deviation of the logarithm of the run times of a kind.
        located: the same of the kind's median.
        weight: of the past runs, beside the walltime.
        runs: past runs that tell it.
        own: those are runs of the very kind.
        limit_s: the walltime, or what the site assumes, seconds; None: there is no limit.
    """

    kind: str = ""
    owner: int = -1
    median_s: float | None = None
    sigma: float = ALIKE
    located: float = 0.0
    weight: float = 0.0
    runs: int = 0
    own: bool = False
    limit_s: float | None = None

    @property
    def is_learned(self) -> bool:
        """Return whether enough runs of the kind have told it."""
        return self.own and self.runs >= ENOUGH_RUNS

    @property
    def is_unknown(self) -> bool:
        """Return whether nothing at all is known, so that its jobs have no end."""
        return self.median_s is None and self.limit_s is None

    def hypotheses(self) -> tuple["Hypothesis", ...]:
        """Return what the kind may be: the same number on all nodes, in the same order."""
        return _hypotheses(self)

    def first_chances(self) -> Chances:
        """Return the chance of each before anything runs."""
        weight = self.weight if self.median_s is not None else 0.0
        by_runs = tuple(weight * part for part in PARTS_BY_RUNS)
        return by_runs + ((1.0 - weight) / BY_WALLTIME,) * BY_WALLTIME

    def pinned(self, share: float, chances: Chances = ()) -> Pinned:
        """Return how long jobs run in the case that a share stands for: the larger, the longer.

        Args:
            share: above 0 and below 1.
            chances: of the hypotheses; none: before anything runs.
        """
        return _pinned(self, chances or self.first_chances(), share)


class Hypothesis(NamedTuple):
    """The median of a kind lies within a range."""

    middle: Pinned
    low_s: float
    high_s: float


@lru_cache(4096)
def _hypotheses(run: RunTime) -> tuple[Hypothesis, ...]:
    limit_s = math.inf if run.limit_s is None else max(run.limit_s, 1.0)
    median_s = limit_s if run.median_s is None else run.median_s
    early, late = (EARLY, LATE) if run.own else (0.0, 0.0)

    def known(z: float) -> float:
        return min(median_s * math.exp(run.located * z), limit_s)

    found = [
        Hypothesis(
            Pinned(
                median_s=known(z),
                sigma=max(run.sigma, 0.01),
                limit_s=limit_s,
                early=early,
                late=late,
            ),
            known(z - Z_STEP / 2),
            known(z + Z_STEP / 2),
        )
        for z in Z_BY_RUNS
    ]

    def by_walltime(part: float) -> float:
        if run.limit_s is not None:
            return limit_s * math.pow(part, FRACTION_POWER)
        return median_s * math.exp(NO_LIMIT_SPREAD * _NORMAL.inv_cdf(part))

    for number in range(BY_WALLTIME):
        low_s, middle_s, high_s = (
            by_walltime(min(max((number + part) / BY_WALLTIME, 0.005), 0.999))
            for part in (0.0, 0.5, 1.0)
        )
        pinned = Pinned(median_s=middle_s, sigma=ALIKE, limit_s=limit_s, by_walltime=True)
        found.append(Hypothesis(pinned, low_s, high_s))
    return tuple(found)


@lru_cache(MAX_KEPT)
def _pinned(run: RunTime, chances: Chances, share: float) -> Pinned:
    pairs = zip(run.hypotheses(), chances, strict=True)
    ordered = sorted(pairs, key=lambda pair: pair[0].middle.median_s)
    left = share * sum(chances)
    for hypothesis, chance in ordered:
        if left <= chance and chance > 0:
            part = left / chance
            median_s = hypothesis.low_s * math.pow(hypothesis.high_s / hypothesis.low_s, part)
            return structs.replace(hypothesis.middle, median_s=median_s)
        left -= chance
    return ordered[-1][0].middle


def believed(
    said: Iterable[Prediction | None],
    limit_s: float | None,
    kind: Kind | None,
    spread: float | None = None,
) -> RunTime:
    """Return the run time of a job by what was predicted on its nodes; the slowest one counts.

    Args:
        said: a prediction for each node; None where there is none.
        limit_s: the job's limit, seconds; None: there is none.
        kind: of the job; None: unknown.
        spread: standard deviation of the logarithm of the run times by which that was missed
            before; None: unknown.
    """
    key, owner = ("", -1) if kind is None else (kind.key, kind.owner_uid)
    unknown = RunTime(kind=key, owner=owner, limit_s=limit_s)
    slowest: Prediction | None = None
    for prediction in said:
        if prediction is None or prediction.basis not in TRUST or not prediction.wall_s:
            return unknown
        if slowest is None or prediction.wall_s > (slowest.wall_s or 0.0):
            slowest = prediction
    if slowest is None or not slowest.wall_s:
        return unknown
    runs = slowest.records
    own = slowest.basis is Basis.KIND
    if spread is None:
        spread = USUAL_SPREAD if own else UNUSUAL_SPREAD
    spread *= WIDENED
    located = spread
    if own:  # of the median, and of how far the mean is from it
        located = math.hypot(spread, SPREAD_MISS * spread**2) / math.sqrt(max(runs, 1))
        located = math.hypot(located, LEAST_LOCATED)
    half, most = TRUST[slowest.basis]
    return RunTime(
        kind=key,
        owner=owner,
        median_s=slowest.wall_s,
        sigma=spread if own else ALIKE,
        located=located,
        weight=most * runs / (runs + half),
        runs=runs,
        own=own,
        limit_s=limit_s,
    )


def of_running(job: Job, settings: Settings, predictions: JobPredictions) -> RunTime:
    """Return the run time of a job that runs, by what is known now."""
    attempt = job.attempt
    assert attempt is not None, "a running job has an attempt"
    limit_s = walltime_left_s(job)
    if limit_s is None:
        limit_s = settings.default_walltime_s or None
    nodes = (name for name, p in attempt.parts.items() if p.state is not PartState.PASSIVE)
    said = (predictions.prediction(job.id, node) for node in nodes)
    return believed(said, limit_s, kind_of(job.spec), predictions.spread(job.id))


def refuted(running: Iterable[tuple[RunTime, float]]) -> dict[str, Chances]:
    """Return the chances of the hypotheses about each kind of which jobs run, by kind.

    Args:
        running: the run time of each, and for how long it has run, seconds.
    """
    ages: dict[str, list[tuple[float, RunTime]]] = defaultdict(list)
    for run, age_s in running:
        if not run.is_unknown:
            ages[run.kind].append((age_s, run))
    return {kind: _chances(each) for kind, each in ages.items()}


def _chances(ages: list[tuple[float, RunTime]]) -> Chances:
    ages.sort(key=lambda each: each[0])
    step = max(len(ages) / MAX_AGES, 1.0)
    looked = [ages[int(number * step)] for number in range(min(len(ages), MAX_AGES))]
    first = looked[0][1]
    chances = list(first.first_chances())
    if first.own and first.median_s:
        for place, (hypothesis, _, _) in enumerate(first.hypotheses()):
            if hypothesis.by_walltime:
                off = math.log(hypothesis.median_s / first.median_s) / ONE_RUN
                chances[place] *= math.exp(-first.runs * off * off / 2)
    for age_s, run in looked:
        for place, (hypothesis, _, _) in enumerate(run.hypotheses()):
            if chances[place] > 0:
                chances[place] *= hypothesis.survival(age_s) ** step
    if sum(chances) <= LEAST_CHANCE:  # all are refuted: the longest one is the least wrong
        last = looked[-1][1]
        medians_s = [each.middle.median_s for each in last.hypotheses()]
        return tuple(float(median_s == max(medians_s)) for median_s in medians_s)
    return tuple(chances)


# --- shares ---


@lru_cache(MAX_KEPT)
def _order(name: str, scenarios: int) -> tuple[int, ...]:
    def rank(scenario: int) -> bytes:
        return blake2b(f"{name} {scenario}".encode(), digest_size=8).digest()

    return tuple(sorted(range(scenarios), key=rank))


def share_of(job: int | str, scenario: int, scenarios: int) -> float:
    """Return which share of jobs like it one job outlives in one of some scenarios.

    Over all scenarios each job has each of that many shares once, in an order of its own: a Latin
    hypercube, which tells quantiles of few scenarios well (McKay, Beckman & Conover, Technometrics
    21(2):239-245, 1979).
    """
    return (_order(str(job), scenarios)[scenario] + 0.5) / scenarios


def kind_share(run: RunTime, scenario: int, scenarios: int, owners: Collection[int]) -> float:
    """Return the same of a kind.

    Args:
        owners: those of several kinds, which have something in common where nothing is learned.
    """
    share = share_of(f"kind {run.kind}", scenario, scenarios)
    if run.is_learned or run.owner not in owners:
        return share
    common = share_of(f"owner {run.owner}", scenario, scenarios)
    z = math.sqrt(OF_OWNER) * _NORMAL.inv_cdf(common)
    z += math.sqrt(1.0 - OF_OWNER) * _NORMAL.inv_cdf(share)
    return _NORMAL.cdf(z)
