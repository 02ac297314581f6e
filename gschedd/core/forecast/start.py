"""When waiting jobs will start, if nothing new comes, and how uncertain that is.

The policy itself is asked again at each end of a running job, on a copy of the queue; so a forecast
follows whatever the policy does. The queue is played forward once with every job running as long as
is planned, and then in up to `SCENARIOS` scenarios in which jobs run as long as jobs like them did
(`gschedd.core.forecast.runtimes`): the median of the starts is the expected one, and four in five
lie between its 10th and 90th percentile.

A forecast is bounded by what asking costs: where there is much to decide about, the policy is asked
at some of the ends only, which tells a start later rather than earlier, and where that would be too
few, nothing is said rather than something wrong.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, assert_never

from msgspec import Struct, structs

from gsched.model.arrays import count
from gsched.model.ids import element_number, short_job_id
from gschedd.core.forecast.context import QueueContext
from gschedd.core.forecast.recent import RECENT
from gschedd.core.forecast.runtimes import RunTime, believed, refuted
from gschedd.core.forecast.simulate import (
    Beliefs,
    Played,
    Scenario,
    TooLongError,
    play,
)
from gschedd.plan.forecast import Forecast, RunTimeEvidence, StartInterval
from gschedd.plan.load import Kind
from gschedd.plan.snapshot import Group, JobClass, OrderKey, Plan, Policy, Snapshot
from gschedd.plan.times import JobPredictions
from gschedd.plan.windows import holds_within

__all__ = ["TooLongError"]

#: How often the policy is asked at most; beyond, the forecast would cost more than it is worth.
MAX_ROUNDS: Final = 200
#: With fewer questions than this what is told would be too rough to be of use.
MIN_ROUNDS: Final = 8
#: What all questions may cost together: classes to decide about. A second or so.
MAX_COST: Final = 20_000
#: The same of all scenarios together.
SPREAD_COST: Final = 40_000
#: Numbers of scenarios, the largest that is affordable: with 5 the extremes are the percentiles.
SCENARIOS: Final = (20, 10, 5)
#: The share of starts that lie between the early and the late one.
COVERAGE: Final = 0.8
#: A training is timed on every number of GPUs that it may have, and it is planned ahead whether it
#: waits or runs: each counts as so many classes.
TRAINING_COST: Final = 10
#: Jobs before the one asked about; with more nothing is said.
MAX_AHEAD: Final = 2000
NEW_JOB: Final = 2**62  # behind every job there is
MAX_NAMED: Final = 3  # jobs that a reason names


TOO_MANY: Final = f"more than {MAX_AHEAD} jobs are ahead of it in the queue"
TOO_COSTLY: Final = "there are too many different jobs and training jobs to play the queue forward"
TOO_FAR: Final = "the queue ahead of it is too long to be played to its start"


def _stuck_words(played: Played) -> str:
    """Return why a job never starts although the queue is played to its end."""
    if not played.endless:
        return "the nodes that accept jobs now do not hold it; it waits for others to return"
    named = ", ".join(short_job_id(job) for job in sorted(played.endless)[:MAX_NAMED])
    more = len(played.endless) - MAX_NAMED
    named += f" and {more} more" if more > 0 else ""
    one = len(played.endless) == 1
    return (
        f"{'job' if one else 'jobs'} {named} {'has' if one else 'have'} no walltime and no learned "
        "run time, so nobody knows when resources become free"
    )


def _outside_words(seen: Snapshot, job_class: JobClass) -> str:
    """Return that the reservation of a job has no window for it; empty: it has, or names none."""
    name = job_class.reservation
    if not name:
        return ""
    windows = (each for each in seen.reserved if each.name == name and name in job_class.may_use)
    if any(holds_within(each, seen.now_s, job_class.walltime_s) for each in windows):
        return ""
    return f"reservation {name} has no window in which it could start and end"


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of the starts of all scenarios.

    What really comes lies between any two neighbours, or beyond all, with equal probability.
    """
    place = min(max(share * (len(values) + 1) - 1.0, 0.0), len(values) - 1.0)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    first, second = values[low], values[high]
    if first == second or not math.isfinite(first):
        return first
    return first + (second - first) * (place - low)


class _StartQuery:
    """A question while it is being answered; lives only inside `answer_to`."""

    def __init__(self, question: "AskStart", policy: Policy, may_go_on: Callable[[], bool]) -> None:
        if question.cast.queries:
            cast = question.cast.with_runs(question.seen)
            question = structs.replace(question, cast=cast)
        self._question = question
        self._policy = policy
        self._may_go_on = may_go_on
        groups = groups_before(question.seen, question.key)
        self._are_too_many = groups is None
        self._groups = groups or []
        self._jobs = (question.job, *question.others)
        self._cost = _cost(question, self._groups)
        self._beliefs = Beliefs()
        self._rounds = 0

    def planned(self) -> dict[int, Forecast]:
        """Return by when jobs start as planned, or why that is unknown.

        Raises:
            TooLongError: there was no time to ask the policy so often.
        """
        if self._are_too_many:
            return dict.fromkeys(self._jobs, Forecast(start_unknown=TOO_MANY))
        asks = _affordable(self._cost, MAX_COST)
        if not asks:
            return dict.fromkeys(self._jobs, Forecast(start_unknown=TOO_COSTLY))
        played = self._play(Scenario(), asks)
        self._rounds = max(played.rounds, 1)
        missing = Forecast(start_unknown=TOO_FAR, not_before_s=played.until_s)
        if played.stuck:
            missing = Forecast(start_unknown=_stuck_words(played))
        found = dict.fromkeys(self._jobs, missing)
        for group in self._groups if played.stuck else ():
            outside = _outside_words(self._question.seen, group.job_class)
            if outside:
                found |= {
                    job: Forecast(start_unknown=outside) for _, job in group.order if job in found
                }
        starts_s = played.starts_s
        return found | {job: Forecast(start_s=starts_s[job]) for job in found if job in starts_s}

    def spreads(self) -> dict[int, StartInterval]:
        """Return when jobs start over scenarios, as far as that is known."""
        self._beliefs = _beliefs(self._question, self._groups)
        each = self._rounds * self._cost
        scenarios = next((n for n in SCENARIOS if n * each <= SPREAD_COST), SCENARIOS[-1])
        asks = _affordable(self._cost * scenarios, SPREAD_COST) if self._rounds else 0
        if not asks:
            return {}
        played: list[Played] = []
        try:
            played.extend(  # one by one: what was played in time counts
                self._play(Scenario(number=number, of=scenarios), asks)
                for number in range(scenarios)
            )
        except TooLongError:
            if len(played) < SCENARIOS[-1]:
                return {}
        known = _knowledge(self._question, self._groups)
        found = {
            job: _summary(job, played, known.get(job, RunTimeEvidence())) for job in self._jobs
        }
        return {job: spread for job, spread in found.items() if spread is not None}

    def _play(self, scenario: Scenario, asks: int) -> Played:
        return play(
            self._question.seen,
            self._policy,
            self._jobs,
            groups=self._groups,
            cast=self._question.cast,
            beliefs=self._beliefs,
            scenario=scenario,
            asks=asks,
            may_go_on=self._may_go_on,
        )


def _summary(job: int, played: Sequence[Played], known: RunTimeEvidence) -> StartInterval | None:
    """Return when a job starts over scenarios; None: later than was played in nearly all."""
    starts_s = sorted(each.starts_s.get(job, math.inf) for each in played)
    if not math.isfinite(starts_s[0]):
        return None
    early_s, expected_s, late_s = (
        quantile(starts_s, share) for share in ((1 - COVERAGE) / 2, 0.5, (1 + COVERAGE) / 2)
    )
    if not math.isfinite(early_s):
        return None
    until_s = min((each.until_s for each in played if job not in each.starts_s), default=math.inf)
    return StartInterval(
        early_s=early_s,
        expected_s=expected_s if math.isfinite(expected_s) else None,
        late_s=late_s if math.isfinite(late_s) else None,
        not_before_s=until_s if math.isfinite(until_s) else None,
        scenarios=len(played),
        known=known,
    )


class _Tally:
    """Counts on what run times stand."""

    def __init__(self) -> None:
        self._counted = self._learned = self._blended = 0
        self._runs: dict[str, int] = {}
        self._other_runs = 0

    def add(self, run: RunTime, jobs: int = 1) -> None:
        self._counted += jobs
        if run.is_learned:
            self._learned += jobs
            self._runs[run.kind] = run.runs
        elif run.median_s is not None:
            self._blended += jobs
            self._other_runs = max(self._other_runs, run.runs)

    def known(self) -> RunTimeEvidence:
        return RunTimeEvidence(
            counted=self._counted,
            learned=self._learned,
            blended=self._blended,
            runs=sum(self._runs.values()),
            other_runs=self._other_runs,
        )


def _waiting_runs(
    question: "AskStart", groups: Sequence[Group]
) -> list[tuple[OrderKey, int, RunTime]]:
    """Return what is known of jobs that wait, in their order: place, how many, run time.

    A run time is that on some node; elements that are no jobs yet count at the place of the first.
    """
    seen, cast = question.seen, question.cast
    predictions = JobPredictions(seen)
    nodes = list(seen.loads)[:1]
    runs: dict[tuple[Kind | None, float | None], RunTime] = {}

    def run_of(job: int, walltime_s: float | None) -> RunTime:
        kind = seen.kinds.get(job)
        limit_s = walltime_s or seen.default_walltime_s
        if (kind, limit_s) not in runs:
            runs[kind, limit_s] = believed(
                job, nodes, predictions=predictions, limit_s=limit_s, kind=kind
            )
        return runs[kind, limit_s]

    found = [
        (key, 1, run_of(key[1], group.job_class.walltime_s))
        for group in groups
        for key in group.order
    ]
    found += [(each.key, 1, run_of(each.job, each.job_class.walltime_s)) for each in cast.coming]
    for each in cast.unmade:
        key = (each.place, element_number(each.array, each.left[0].first))
        found.append((key, count(each.left), run_of(each.array, each.job_class.walltime_s)))
    found.sort(key=lambda each: each[0])
    return found


def _knowledge(question: "AskStart", groups: Sequence[Group]) -> dict[int, RunTimeEvidence]:
    """Return by job on what the run times of those that run or are ahead stand."""
    tally = _Tally()
    for run in question.cast.runs.values():
        tally.add(run)
    in_question = {question.job, *question.others}
    found: dict[int, RunTimeEvidence] = {}
    for (_, job), jobs, run in _waiting_runs(question, groups):
        if job in in_question:
            found[job] = tally.known()
        tally.add(run, jobs)
    return {job: found.get(job, tally.known()) for job in in_question}


def _beliefs(question: "AskStart", groups: Sequence[Group]) -> Beliefs:
    """Return what all scenarios share."""
    seen, runs = question.seen, question.cast.runs
    running = [
        (runs[each.job], max(seen.now_s - each.started_s, 0.0))
        for each in seen.running
        if each.job in runs and each.job not in seen.profiles
    ]
    known = [(run, 1) for run, _ in running]
    known += [
        (run, jobs)
        for (_, job), jobs, run in _waiting_runs(question, groups)
        if job != question.job or question.others  # how long it runs itself does not matter
    ]
    kinds: dict[int, Counter[str]] = defaultdict(Counter)
    for run, jobs in known:
        if not run.is_learned:
            kinds[run.owner][run.kind] += jobs
    chances = refuted(running)
    for run, _ in known:  # of a kind that does not run, too: once, not again for each node
        if run.past and run.kind not in chances:
            chances[run.kind] = run.first_chances()
    return Beliefs(
        chances=chances,
        owners=frozenset(owner for owner, each in kinds.items() if len(each) > 1),
        alone=frozenset(kind for each in kinds.values() for kind, jobs in each.items() if jobs < 2),
    )


def _cost(question: "AskStart", groups: Sequence[Group]) -> int:
    """Return what one question to the policy costs, in classes to decide about."""
    seen = question.seen
    classes = {group.job_class for group in groups}
    classes |= {each.job_class for each in question.cast.coming}
    classes |= {each.job_class for each in question.cast.unmade}
    training_jobs = {each.training for each in classes if each.training} & set(seen.profiles)
    cost = len(classes)
    if training_jobs:
        cost += (TRAINING_COST - 1) * len(training_jobs)
        cost += TRAINING_COST * sum(each.job in seen.profiles for each in seen.running)
    return max(cost, 1)


def _affordable(cost: int, limit: int) -> int:
    """Return how often the policy may be asked; 0 where that would be too few times."""
    asks = min(MAX_ROUNDS, limit // cost)
    return asks if asks >= MIN_ROUNDS else 0


class AskStart(Struct, frozen=True, kw_only=True):
    """When does a waiting job start? ``key`` is its place in the order, ``seen`` detached.

    Attributes:
        cast: what is known beside ``seen``.
        spread: how uncertain that is, is to be told, too.
        others: jobs at or before ``key`` of which the same is asked.
    """

    seen: Snapshot
    job: int
    key: OrderKey
    number: int = 0
    cast: QueueContext = QueueContext()
    spread: bool = False
    others: tuple[int, ...] = ()


class AskAll(Struct, frozen=True, kw_only=True):
    """What does the policy plan for all jobs?"""

    seen: Snapshot
    number: int = 0


class ForecastAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one of both.

    Attributes:
        starts: of the jobs in question, by job.
        too_long: there was no time to work that out.
        plan: for all jobs.
    """

    number: int = 0
    starts: Mapping[int, Forecast] = {}
    too_long: bool = False
    plan: Plan | None = None


ForecastQuestion = AskStart | AskAll


def answer_to(
    question: ForecastQuestion, policy: Policy, may_go_on: Callable[[], bool] = lambda: True
) -> ForecastAnswer:
    """Return the answer; whatever the policy raises is raised.

    Args:
        may_go_on: whether there is time to ask the policy again.
    """
    match question:
        case AskStart():
            query = _StartQuery(question, policy, may_go_on)
            try:
                starts = query.planned()
            except TooLongError:
                return ForecastAnswer(number=question.number, too_long=True)
            spreads = query.spreads() if question.spread else {}
            starts |= {
                job: structs.replace(starts[job], interval=spread)
                for job, spread in spreads.items()
            }
            RECENT.question_answered()
            return ForecastAnswer(number=question.number, starts=starts)
        case AskAll():
            return ForecastAnswer(number=question.number, plan=policy(question.seen))
        case _:
            assert_never(question)


def groups_before(seen: Snapshot, key: OrderKey) -> list[Group] | None:
    """Return those that wait before a job, and the job; None: they are more than can be looked at.

    A queue of a million jobs costs no more than a short one.
    """
    found: list[Group] = []
    left = MAX_AHEAD
    for group in seen.groups:
        if group.order[0] > key:
            continue
        order = group.order[: left + 1]
        order = order[: bisect_right(order, key)]
        left -= len(order)
        if left < 0:
            return None
        found.append(Group(job_class=group.job_class, order=order))
    return found
