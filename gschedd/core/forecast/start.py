"""When a waiting job will start, if nothing new comes and every job runs as long as is planned.

The policy itself is asked again at each end of a running job, on a copy of the queue; so a forecast
follows whatever the policy does. It is bounded by what asking costs: where there is much to decide
about, the policy is asked at some of the ends only, which tells a start later rather than earlier,
and where that would be too few, nothing is said rather than something wrong.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, assert_never

from msgspec import Struct, structs

from gsched.model.job import JobSpec
from gsched.model.states import JobState
from gschedd.core.cycle.run import snapshot
from gschedd.core.settings import Settings
from gschedd.core.state import Job, State
from gschedd.models.kinds import kind_of
from gschedd.plan.load import Kind, Predictor
from gschedd.plan.snapshot import (
    Group,
    JobClass,
    OrderKey,
    Plan,
    Policy,
    RunningJob,
    Snapshot,
    Start,
)
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.times import JobPredictions

#: How often the policy is asked at most; beyond, the forecast would cost more than it is worth.
MAX_ASKED: Final = 200
#: With fewer questions than this what is told would be too rough to be of use.
LEAST_ASKED: Final = 8
#: What all questions may cost together: classes to decide about. A second or so.
MAX_COST: Final = 20_000
#: A training is timed on every number of GPUs that it may have, and it is planned ahead whether it
#: waits or runs: each counts as so many classes.
TRAINING_COST: Final = 10
#: Jobs before the one asked about; with more nothing is said.
MAX_AHEAD: Final = 2000
NEW_JOB: Final = 2**62  # behind every job there is


class TooLongError(Exception):
    """There is no time to ask the policy as often as a forecast needs."""


def predict_start(
    seen: Snapshot,
    policy: Policy,
    *,
    job: int,
    key: OrderKey,
    may_go_on: Callable[[], bool] = lambda: True,
) -> float | None:
    """Return by when ``job`` starts, seconds since the epoch; None if that is unknown.

    Args:
        seen: the present; jobs behind ``key`` are left out, as backfilling them delays nobody.
        key: the job's place in the order.
        may_go_on: whether there is time to ask the policy again.

    Raises:
        TooLongError: there is not.
    """
    groups = {group.job_class: list(group.order) for group in _before(seen, key)}
    if sum(map(len, groups.values())) > MAX_AHEAD:
        return None
    spaces = Spaces(seen.nodes)
    running = {each.job: each for each in seen.running}
    predictions = JobPredictions(seen)
    now_s = seen.now_s
    asks = _affordable(seen, groups)
    for left in range(asks, 0, -1):
        starts = policy(_moment(seen, now_s, spaces, groups, running)).starts
        for start in starts:
            if start.job == job:
                return now_s
            spaces.take(start.allocation)
            running[start.job] = _started(start, predictions, now_s)
            _remove(groups, start.job_class, start.job)
        ends_s = [each.end_s for each in running.values() if each.end_s is not None]
        if not ends_s:
            return None
        if not may_go_on():
            raise TooLongError
        # half of the questions for what is near, the others for all that is left
        together = 1 if left > asks / 2 else math.ceil(len(ends_s) / max(left - 1, 1))
        now_s = max(now_s, heapq.nsmallest(together, ends_s)[-1])
        for each in [r for r in running.values() if r.end_s is not None and r.end_s <= now_s]:
            spaces.give(each.allocation)
            del running[each.job]
    return None


def _affordable(seen: Snapshot, groups: Mapping[JobClass, list[OrderKey]]) -> int:
    """Return how often the policy may be asked; 0 where that would be too few times."""
    trainings = {job_class.training for job_class in groups if job_class.training} & set(
        seen.profiles
    )
    cost = len(groups)
    if trainings:
        cost += (TRAINING_COST - 1) * len(trainings)
        cost += TRAINING_COST * sum(each.job in seen.profiles for each in seen.running)
    asks = min(MAX_ASKED, MAX_COST // max(cost, 1))
    return asks if asks >= LEAST_ASKED else 0


class AskStart(Struct, frozen=True, kw_only=True):
    """By when does a waiting job start? ``key`` is its place in the order, ``seen`` detached."""

    seen: Snapshot
    job: int
    key: OrderKey
    number: int = 0


class AskAll(Struct, frozen=True, kw_only=True):
    """What does the policy plan for all jobs?"""

    seen: Snapshot
    number: int = 0


class Told(Struct, frozen=True, kw_only=True):
    """The answer to one of both.

    Attributes:
        start_s: by when the job starts, seconds since the epoch; None: unknown.
        too_long: there was no time to work that out.
        plan: for all jobs.
    """

    number: int = 0
    start_s: float | None = None
    too_long: bool = False
    plan: Plan | None = None


ForecastQuestion = AskStart | AskAll


def told(
    question: ForecastQuestion, policy: Policy, may_go_on: Callable[[], bool] = lambda: True
) -> Told:
    """Return the answer; whatever the policy raises is raised.

    Args:
        may_go_on: whether there is time to ask the policy again.
    """
    match question:
        case AskStart(seen=seen, job=job, key=key):
            try:
                start_s = predict_start(seen, policy, job=job, key=key, may_go_on=may_go_on)
            except TooLongError:
                return Told(number=question.number, too_long=True)
            return Told(number=question.number, start_s=start_s)
        case AskAll():
            return Told(number=question.number, plan=policy(question.seen))
        case _:
            assert_never(question)


def start_question(seen: Snapshot, job: int, key: OrderKey) -> AskStart | None:
    """Return what to ask for the start of a job elsewhere; None: that is unknown.

    Args:
        seen: the present.
        key: the job's place in the order; of those behind it nothing is sent.
    """
    groups = _before(seen, key)
    if sum(len(group.order) for group in groups) > MAX_AHEAD:
        return None
    return AskStart(seen=structs.replace(seen, groups=groups).detach(), job=job, key=key)


def _before(seen: Snapshot, key: OrderKey) -> list[Group]:
    """Return those that wait before a job, and the job; of more than can be looked at some."""
    return [
        Group(
            job_class=group.job_class,
            order=[each for each in group.order[: MAX_AHEAD + 1] if each <= key],
        )
        for group in seen.groups
        if group.order[0] <= key
    ]


def with_submission(
    state: State,
    settings: Settings,
    *,
    spec: JobSpec,
    now_s: float,
    predictor: Predictor | None = None,
) -> tuple[Snapshot, OrderKey] | None:
    """Return the present with one more job, `NEW_JOB`, and its place; None: it would not start."""
    queue = settings.queues.get(spec.queue)
    if queue is None or not queue.started or spec.holds or spec.start_after_s > now_s:
        return None
    job = Job(id=NEW_JOB, spec=spec, state=JobState.QUEUED, submitted_s=now_s, eligible_s=now_s)
    key, job_class = state.order_key(job), state.class_of(job)
    seen = snapshot(state, settings, now_s, predictor)
    orders = {group.job_class: list(group.order) for group in seen.groups}
    orders[job_class] = sorted([*orders.get(job_class, []), key])
    groups = [Group(job_class=each, order=order) for each, order in orders.items()]
    kinds = _OneMore(seen.kinds, kind_of(spec))
    return structs.replace(seen, groups=groups, kinds=kinds), key


class _OneMore(Mapping[int, Kind]):
    """The kinds of all jobs, and of one that was not submitted."""

    def __init__(self, kinds: Mapping[int, Kind], new: Kind) -> None:
        self._kinds = kinds
        self._new = new

    def __getitem__(self, job: int) -> Kind:
        return self._new if job == NEW_JOB else self._kinds[job]

    def __iter__(self) -> Iterator[int]:
        yield from self._kinds
        yield NEW_JOB

    def __len__(self) -> int:
        return len(self._kinds) + 1


def _moment(
    seen: Snapshot,
    now_s: float,
    spaces: Spaces,
    groups: Mapping[JobClass, list[OrderKey]],
    running: Mapping[int, RunningJob],
) -> Snapshot:
    """Return the present moved to ``now_s``; loads and predictions stay what they are."""
    nodes: dict[str, FreeNode] = {space.name: space for space in spaces}
    return structs.replace(
        seen,
        now_s=now_s,
        nodes=nodes,
        groups=[
            Group(job_class=job_class, order=order) for job_class, order in groups.items() if order
        ],
        running=list(running.values()),
    )


def _started(start: Start, predictions: JobPredictions, now_s: float) -> RunningJob:
    run_time_s = predictions.run_time_s(start.job, start.job_class, start.allocation)
    end_s = None if run_time_s is None else now_s + run_time_s
    return RunningJob(job=start.job, allocation=start.allocation, started_s=now_s, end_s=end_s)


def _remove(groups: dict[JobClass, list[OrderKey]], job_class: JobClass, job: int) -> None:
    groups[job_class] = [key for key in groups[job_class] if key[1] != job]
