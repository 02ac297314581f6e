"""How long jobs run, as distributions: what was learned of their kinds, and their walltimes.

Where only the walltime is known, a job runs for any part of it with nearly equal probability, and
some reach it, as users' estimates are that inaccurate (Mu'alem & Feitelson, IEEE TPDS
12(6):529-543, 2001). What runs of other jobs tell has a part of the weight, the less the farther
they are. Once runs of the very kind have ended, each of them counts: medians and spreads of
log-normal run times are weighed by how well they explain these runs (Bayes), a few of which fail
early or straggle. So a kind is known as well as its runs tell it, and the mean, which decides how
long a long array takes, is not taken from a median. It is what has happened that refutes a
log-normal law, too: see `_unless_refuted`. A run time counts as learned once
`gschedd.plan.times.ENOUGH_RUNS` jobs of the very kind have finished.

Jobs of one kind run alike, so what is unknown of a kind is unknown of all of its jobs together: a
thousand elements of an array whose run time nobody knows do not average out. Therefore a
distribution is a list of hypotheses about the kind, each with a chance; a scenario chooses one of
them for all jobs of the kind. Jobs that run already refute the hypotheses by which they would have
ended.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, product
from statistics import NormalDist, median
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gsched.model.states import PartState
from gschedd.core.forecast.pinned import EARLY_WITHIN, LEAST_CHANCE, ROOT_2_PI, Pinned, fits
from gschedd.core.forecast.recent import RECENT
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.walltime import walltime_left_s
from gschedd.plan.load import Basis, Kind, PastRuns, Prediction
from gschedd.plan.snapshot import Snapshot
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
#: Part of the kinds that always reach their walltime, and how far beyond it they would run.
REACH_LIMIT: Final = 0.04
BEYOND: Final = 2.0
#: The same without a limit: standard deviation of the logarithm of the median.
NO_LIMIT_SPREAD: Final = math.log(10)
#: Part of the runs of a learned kind that fail early.
EARLY: Final = 0.04
#: The same part of the runs of a kind of which nothing is known: new programs fail more often.
EARLY_NEW: Final = 0.1
#: How many runs say as much about that part as is known before, and what it is at most.
EARLY_RUNS: Final = 100.0
MOST_EARLY: Final = 0.5
#: Part of them that straggle.
LATE: Final = 0.02
#: The same where past runs tell it: few of them do, so it is one of these.
LATES: Final = (0.01, 0.04)
#: How much one run of a kind that has ended refutes other medians: standard deviation of the
#: logarithm.
ONE_RUN: Final = 1.0
#: Spread of the run times of a kind, and of those of different kinds, of which it is unknown.
USUAL_SPREAD: Final = 0.4
UNUSUAL_SPREAD: Final = 1.0
#: How much of a spread is unknown after one run, by its square: so much is the mean.
SPREAD_MISS: Final = 1.1
#: Spread of the runs of a kind before any has run, and how many runs say as much about it.
FIRST_SIGMA: Final = 0.28
SIGMA_RUNS: Final = 3.0
LEAST_SIGMA: Final = 0.02
#: Steps between spreads that may be, as logarithms, up to so many runs; beyond, they are smaller.
SIGMA_STEP: Final = 0.6
SIGMA_KNOWN: Final = 4.0
SIGMA_STEPS: Final = range(-3, 4)
#: Steps between medians that may be, in standard deviations.
Z_STEP_PAST: Final = 0.5
Z_STEPS_PAST: Final = range(-6, 7)
#: The median of the absolute deviations of a normal distribution, in standard deviations.
MEDIAN_MISS: Final = 0.6745
#: By how much less a median tells than a mean of logarithms: the square root of pi / 2.
MEDIAN_MISSES: Final = 1.2533
#: The least of the uncertainty of a learned median: standard deviation of the logarithm.
LEAST_LOCATED: Final = 0.05
#: The less likely medians are the more they exceed the walltime: the part to this power.
BEYOND_LIMIT: Final = 2.0
#: With fewer runs their mean says nothing; with a larger part that runs still it is not known.
LEAST_FOR_MEAN: Final = 10.0
MOST_UNSEEN: Final = 0.1
#: Squared coefficient of variation of what few runs do not show: stragglers.
UNSEEN_VARIED: Final = 0.5
#: A mean refutes what is off by more than so many of its standard errors.
MOST_MISSED: Final = 2.5
#: Chances that are a smaller part of the greatest one count as none.
LEAST_KEPT: Final = 1e-9
LOG_KEPT: Final = math.log(LEAST_KEPT)
#: Running jobs of one kind that are looked at, spread over all ages.
MAX_AGES: Final = 32
#: How much what one kind of a user uses of its walltime tells about the user's other kinds.
OF_OWNER: Final = 0.3
MAX_KEPT: Final = 16_384

#: The chance of each hypothesis about a kind, in the order of `RunTime.hypotheses`.
Chances = tuple[float, ...]


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
        past: those runs, as they would have been on the node.
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
    past: PastRuns = ()
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
        return _first_chances(self)

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


@RECENT.keep
def _hypotheses(run: RunTime) -> tuple[Hypothesis, ...]:
    limit_s = math.inf if run.limit_s is None else max(run.limit_s, 1.0)
    median_s = limit_s if run.median_s is None else run.median_s
    early, late = (EARLY, LATE) if run.own else (0.0, 0.0)

    def known(z: float) -> float:
        return min(median_s * math.exp(run.located * z), limit_s)

    if run.past:
        found = list(_by_past(run, median_s, limit_s))
    else:
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
            part /= 1.0 - REACH_LIMIT
            return limit_s * (math.pow(part, FRACTION_POWER) if part < 1 else BEYOND)
        return median_s * math.exp(NO_LIMIT_SPREAD * _NORMAL.inv_cdf(part))

    for number in range(BY_WALLTIME):
        low_s, middle_s, high_s = (
            by_walltime(min(max((number + part) / BY_WALLTIME, 0.005), 0.999))
            for part in (0.0, 0.5, 1.0)
        )
        pinned = Pinned(
            median_s=middle_s,
            sigma=ALIKE,
            limit_s=limit_s,
            early=EARLY_NEW,
            late=LATE,
            by_walltime=True,
        )
        found.append(Hypothesis(pinned, low_s, high_s))
    if run.past:
        found += _as_they_were(run, median_s, limit_s)
    return tuple(found)


def _count(past: PastRuns) -> float:
    return max(sum(weight for _, weight in past), 1.0)


def _located(sigma: float, past: PastRuns) -> float:
    """Return how uncertain a median is: standard deviation of the logarithm."""
    return math.hypot(MEDIAN_MISSES * sigma / math.sqrt(_count(past)), LEAST_LOCATED)


def _sigmas(past: PastRuns) -> tuple[float, ...]:
    """Return spreads that runs of a kind may have: the more are known, the closer together."""
    count = _count(past)
    logs = [math.log(run_s) for run_s, _ in past]
    middle = median(logs)
    seen = max(median(abs(log - middle) for log in logs) / MEDIAN_MISS, LEAST_SIGMA)
    part = count / (count + SIGMA_RUNS)
    sigma = math.exp(part * math.log(seen) + (1 - part) * math.log(FIRST_SIGMA))
    step = min(SIGMA_STEP, SIGMA_STEP * math.sqrt(SIGMA_KNOWN / count))
    return tuple(sigma * math.exp(step * number) for number in SIGMA_STEPS)


def _by_past(run: RunTime, median_s: float, limit_s: float) -> Iterator[Hypothesis]:
    """Yield medians and spreads by what past runs of the kind took."""
    short = sum(weight for run_s, weight in run.past if run_s < EARLY_WITHIN * median_s)
    early = min((EARLY * EARLY_RUNS + short) / (EARLY_RUNS + _count(run.past)), MOST_EARLY)
    for sigma, late in product(_sigmas(run.past), LATES):
        step = _located(sigma, run.past) * Z_STEP_PAST
        for number in Z_STEPS_PAST:
            low_s, middle_s, high_s = (
                median_s * math.exp(step * each) for each in (number - 0.5, number, number + 0.5)
            )
            pinned = Pinned(median_s=middle_s, sigma=sigma, limit_s=limit_s, early=early, late=late)
            yield Hypothesis(pinned, low_s, high_s)


@RECENT.keep
def _first_chances(run: RunTime) -> Chances:
    if run.past:
        return _unless_refuted(run, _chances_by_past(run))
    weight = run.weight if run.median_s is not None else 0.0
    by_walltime = ((1.0 - weight) / BY_WALLTIME,) * BY_WALLTIME
    return tuple(weight * part for part in PARTS_BY_RUNS) + by_walltime


@RECENT.keep
def _chances_by_past(run: RunTime) -> Chances:
    """Return the posterior chances of medians and spreads, by past runs of the kind."""
    logs: list[float] = []
    spreads = len(SIGMA_STEPS) * len(LATES)
    laws = [each.middle for each in run.hypotheses()[: -len(Z_STEPS_PAST)]]
    for law, fit in zip(laws, fits(laws, run.past), strict=True):
        before = 1.0 / BY_WALLTIME
        if not law.by_walltime:
            step = Z_STEP_PAST * _located(law.sigma, run.past)
            before = step * _density(law.median_s, run.limit_s) / spreads
        logs.append(math.log(before) + fit)
    most = max(logs)
    chances = [math.exp(log - most) for log in logs]
    total = sum(chances)
    found = [chance / total if chance > LEAST_KEPT else 0.0 for chance in chances]
    left = 1.0 - run.weight
    if (
        run.runs < ENOUGH_RUNS and sum(found[-BY_WALLTIME:]) < left
    ):  # few runs may be alike by chance
        by_runs = sum(found[:-BY_WALLTIME])
        found = [chance * run.weight / by_runs for chance in found[:-BY_WALLTIME]]
        found += [left / BY_WALLTIME] * BY_WALLTIME
    return (*found, *(0.0,) * len(Z_STEPS_PAST))


def _as_they_were(run: RunTime, median_s: float, limit_s: float) -> Iterator[Hypothesis]:
    """Yield hypotheses by which runs take as long in the mean as they did, whatever their law."""
    mean_s, varied, _ = _mean_of(run.past, ())
    sigma = max(math.sqrt(math.log1p(varied)), LEAST_SIGMA)
    law = Pinned(median_s=median_s, sigma=sigma, limit_s=limit_s)
    step = Z_STEP_PAST * _miss_of(varied, run.past)
    for number in Z_STEPS_PAST:
        stretch = mean_s / law.mean_s * math.exp(step * number)
        yield Hypothesis(structs.replace(law, stretch=stretch), median_s, median_s)


def _unless_refuted(
    run: RunTime, chances: Chances, ages_s: Sequence[tuple[float, float]] = ()
) -> Chances:
    """Return the chances of hypotheses, or those of the runs as they were.

    Runs need not be log-normal: some elements of an array may do nothing, and others all. Where the
    mean of the runs refutes what is likely by that law, the mean alone counts.

    Args:
        ages_s: of jobs that run, seconds, and for how many each stands.
    """
    if _count(run.past) < LEAST_FOR_MEAN:
        return chances
    mean_s, varied, unseen = _mean_of(run.past, ages_s)
    if unseen > MOST_UNSEEN:
        return chances
    miss = _miss_of(varied, run.past)
    ordered, half = _ordered(run, chances), sum(chances) / 2
    reached = accumulate(chance for chance, _ in ordered)
    pairs = zip(reached, ordered, strict=True)
    likely = next(each[1] for total, each in pairs if total >= half * (1 - LEAST_KEPT))
    if abs(math.log(likely.middle.mean_s / mean_s)) <= MOST_MISSED * miss:
        return chances
    off = [math.log(each.middle.mean_s / mean_s) / miss for each in run.hypotheses()]
    count = len(Z_STEPS_PAST)
    return (0.0,) * (len(off) - count) + tuple(math.exp(-z * z / 2) for z in off[-count:])


def _miss_of(varied: float, past: PastRuns) -> float:
    """Return by how much the mean of runs is off: standard deviation of the logarithm."""
    return math.sqrt((varied + UNSEEN_VARIED) / _count(past))


def _mean_of(past: PastRuns, ages_s: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the mean of runs, their squared coefficient of variation, and the part yet unseen.

    Jobs that run still are longer than their ages: the mean is that of the product-limit estimate
    (Kaplan & Meier, JASA 53(282):457-481, 1958).
    """
    seen = [(run_s, weight, True) for run_s, weight in past]
    seen += [(age_s, weight, False) for age_s, weight in ages_s]
    seen.sort()
    left = sum(weight for _, weight, _ in seen)
    survival, last_s, mean_s, square = 1.0, 0.0, 0.0, 0.0
    for at_s, weight, has_ended in seen:
        mean_s += survival * (at_s - last_s)
        square += survival * (at_s**2 - last_s**2)
        if has_ended:
            survival *= max(1.0 - weight / left, 0.0)
        left = max(left - weight, weight)
        last_s = at_s
    return mean_s, max(square / mean_s**2 - 1.0, 0.0), survival


def _density(median_s: float, limit_s: float | None) -> float:
    """Return the density of the logarithm of the median of a kind before any has run."""
    if limit_s is None:
        return 1.0 / (NO_LIMIT_SPREAD * ROOT_2_PI)
    part = median_s / max(limit_s, 1.0)
    part = part if part < 1 else part**-BEYOND_LIMIT
    return math.pow(part, 1 / FRACTION_POWER) / FRACTION_POWER


@RECENT.keep
def _ordered(run: RunTime, chances: Chances) -> tuple[tuple[float, Hypothesis], ...]:
    """Return the hypotheses that may be true with their chances, by the mean run time."""
    pairs = zip(chances, run.hypotheses(), strict=True)
    some = [(chance, hypothesis) for chance, hypothesis in pairs if chance > 0]
    return tuple(sorted(some, key=lambda pair: pair[1].middle.mean_s))


@RECENT.keep
def _pinned(run: RunTime, chances: Chances, share: float) -> Pinned:
    ordered = _ordered(run, chances)
    left = share * sum(chances)
    for chance, hypothesis in ordered:
        if left <= chance:
            part = left / chance
            median_s = hypothesis.low_s * math.pow(hypothesis.high_s / hypothesis.low_s, part)
            return structs.replace(hypothesis.middle, median_s=median_s)
        left -= chance
    return ordered[-1][1].middle


def believed(
    job: int,
    nodes: Collection[str],
    *,
    predictions: JobPredictions,
    limit_s: float | None,
    kind: Kind | None,
) -> RunTime:
    """Return the run time of a job by what is predicted on its nodes; the slowest one counts.

    Args:
        job: its number.
        nodes: none where it is unknown on which it runs: then nothing was learned.
        predictions: at one moment.
        limit_s: the job's limit, seconds; None: there is none.
        kind: of the job; None: unknown.
    """
    key, owner = ("", -1) if kind is None else (kind.key, kind.owner_uid)
    unknown = RunTime(kind=key, owner=owner, limit_s=limit_s)
    found: list[tuple[float, str, Prediction]] = []
    for node in nodes:
        prediction = predictions.prediction(job, node)
        if prediction is None or prediction.basis not in TRUST or not prediction.wall_s:
            return unknown
        found.append((prediction.wall_s, node, prediction))
    if not found:
        return unknown
    median_s, slowest, prediction = max(found, key=lambda each: each[0])
    runs = prediction.records
    own = prediction.basis is Basis.KIND
    spread = predictions.spread(job)
    if spread is None:
        spread = USUAL_SPREAD if own else UNUSUAL_SPREAD
    spread *= WIDENED
    located = spread
    if own:  # of the median, and of how far the mean is from it
        located = math.hypot(spread, SPREAD_MISS * spread**2) / math.sqrt(max(runs, 1))
        located = math.hypot(located, LEAST_LOCATED)
    half, most = TRUST[prediction.basis]
    return RunTime(
        kind=key,
        owner=owner,
        median_s=median_s,
        sigma=spread if own else ALIKE,
        located=located,
        weight=most * runs / (runs + half),
        runs=runs,
        own=own,
        past=predictions.runs(job, slowest) if own else (),
        limit_s=limit_s,
    )


class RunTimeQuery(Struct, frozen=True, array_like=True):
    """What the run time of a running job is worked out from.

    Attributes:
        kind: its place among the kinds of all queries.
        limit_s: its walltime, or what the site assumes, seconds; None: there is no limit.
        nodes: on which it works.
    """

    job: int
    kind: int
    limit_s: float | None
    nodes: tuple[str, ...]


def query_of(job: Job, kind: int, settings: Settings) -> RunTimeQuery:
    """Return what is to be asked for the run time of a job that runs."""
    limit_s = walltime_left_s(job)
    if limit_s is None:
        limit_s = settings.config.head.default_walltime_s or None
    parts = job.current_attempt.parts
    nodes = tuple([name for name, p in parts.items() if p.state is not PartState.PASSIVE])
    return RunTimeQuery(job.id, kind, limit_s, nodes)


def run_times(
    queries: Iterable[RunTimeQuery], kinds: Sequence[Kind], seen: Snapshot
) -> dict[int, RunTime]:
    """Return the run times of running jobs, by what is known now."""
    known: dict[int, Kind] = {}
    predictions = JobPredictions(structs.replace(seen, kinds=known))
    found: dict[tuple[int, tuple[str, ...], float | None], RunTime] = {}
    runs: dict[int, RunTime] = {}
    for each in queries:
        like = (each.kind, each.nodes, each.limit_s)
        run = found.get(like)
        if run is None:
            kind = known[each.job] = kinds[each.kind]
            run = found[like] = believed(
                *(each.job, each.nodes),
                predictions=predictions,
                limit_s=each.limit_s,
                kind=kind,
            )
        runs[each.job] = run
    return runs


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
    chances = list(_chances_by_past(first) if first.past else first.first_chances())
    if first.past:  # what counts for less of those that ended, does so of those that run
        step *= min(_count(first.past) / len(first.past), 1.0)
    if first.own and first.median_s and not first.past:
        for place, (hypothesis, _, _) in enumerate(first.hypotheses()):
            if hypothesis.by_walltime:
                off = math.log(hypothesis.median_s / first.median_s) / ONE_RUN
                chances[place] *= math.exp(-first.runs * off * off / 2)
    logs = [math.log(chance) if chance > 0 else -math.inf for chance in chances]
    for age_s, run in looked:
        for place, (hypothesis, _, _) in enumerate(run.hypotheses()):
            if math.isfinite(logs[place]):
                left = hypothesis.survival(age_s)
                logs[place] += step * math.log(left) if left > LEAST_CHANCE else -math.inf
    most = max(logs)
    if not math.isfinite(most):  # all are refuted: the longest one is the least wrong
        last = looked[-1][1]
        medians_s = [each.middle.median_s for each in last.hypotheses()]
        return tuple(float(median_s == max(medians_s)) for median_s in medians_s)
    found = tuple(math.exp(log - most) if log - most > LOG_KEPT else 0.0 for log in logs)
    if not first.past:
        return found
    return _unless_refuted(first, found, [(age_s, step) for age_s, _ in looked])


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
