"""The queue played forward: the policy is asked at each end of a running job, on a copy of it.

One play is one scenario: it says how long each job runs. What is not in the queue yet, but will be
(a job with a start time, with dependencies, an element of an array), comes when it may.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.model.ids import array_of
from gsched.model.resources import Allocation
from gschedd.core.forecast.runtimes import RunTime, learned, share_of
from gschedd.core.forecast.trainings import Course, course_of
from gschedd.plan.snapshot import Group, JobClass, OrderKey, Policy, RunningJob, Snapshot, Start
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.times import JobPredictions, planned_end_s

#: A round of a policy that asks to be asked again is at least this long, seconds.
LEAST_STEP_S: Final = 1e-3


class TooLongError(Exception):
    """There is no time to ask the policy as often as a forecast needs."""


class Coming(Struct, frozen=True, kw_only=True):
    """A job that is not in the queue yet.

    Attributes:
        at_s: it comes no earlier, seconds since the epoch.
        ends, starts: jobs that must have ended, or started, before.
    """

    job: int
    job_class: JobClass
    key: OrderKey
    at_s: float = 0.0
    ends: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


class Cast(Struct, frozen=True, kw_only=True):
    """What is known beside a snapshot of the jobs in it.

    Attributes:
        runs: how long running jobs run, by job.
        coming: jobs that are not in the queue yet, in its order.
        slots: how many elements of an array may be unfinished jobs at once, by array.
        elements: how many are, of each array that is not over.
    """

    runs: Mapping[int, RunTime] = {}
    coming: tuple[Coming, ...] = ()
    slots: Mapping[int, int] = {}
    elements: Mapping[int, int] = {}


class Scenario(Struct, frozen=True, kw_only=True):
    """How long jobs run: as in the ``number``-th of ``of`` scenarios; of 0: as they are planned."""

    number: int = 0
    of: int = 0


class Played(Struct, frozen=True, kw_only=True):
    """What came of a scenario.

    Attributes:
        starts_s: when the jobs in question start, seconds since the epoch, by job.
        until_s: how far it was played.
        asked: how often the policy was asked.
        stuck: nothing more would happen, however long it was played on.
        endless: running jobs without an end, where it was stuck.
    """

    starts_s: Mapping[int, float]
    until_s: float
    asked: int
    stuck: bool = False
    endless: tuple[int, ...] = ()


class _Runs(Struct, kw_only=True):
    """A running job: ``end_s`` is when it really ends, ``limit_s`` what the policy counts with."""

    seen: RunningJob
    end_s: float | None
    limit_s: float | None
    course: Course | None = None


def play(  # noqa: PLR0913 -- what a play is made of
    seen: Snapshot,
    policy: Policy,
    jobs: Collection[int],
    *,
    groups: Iterable[Group],
    cast: Cast,
    scenario: Scenario,
    asks: int,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Played:
    """Return when jobs start in one scenario.

    Args:
        seen: the present.
        jobs: in question; it is played until all have started.
        groups: the queue, as far as it is looked at.
        asks: the policy is asked so often at most.
        may_go_on: whether there is time to ask it again.

    Raises:
        TooLongError: there is not.
    """
    return _Play(seen, policy, groups, cast, scenario).run(frozenset(jobs), asks, may_go_on)


class _Play:
    """One scenario while it is played; lives only inside `play`."""

    def __init__(
        self,
        seen: Snapshot,
        policy: Policy,
        groups: Iterable[Group],
        cast: Cast,
        scenario: Scenario,
    ) -> None:
        self._seen = seen
        self._policy = policy
        self._scenario = scenario
        self._now_s = seen.now_s
        self._spaces = Spaces(seen.nodes)
        self._groups = {group.job_class: list(group.order) for group in groups}
        self._coming = list(cast.coming)
        self._slots = cast.slots
        self._elements = dict(cast.elements)
        self._predictions = JobPredictions(seen)
        self._courses: dict[int, Course] = {}
        self._again_s: float | None = None
        self._started: set[int] = set()
        waiting = {key[1] for order in self._groups.values() for key in order}
        self._running: dict[int, _Runs] = {}
        for each in seen.running:
            self._running[each.job] = self._known(each, cast.runs.get(each.job))
            self._started.update((each.job, array_of(each.job)))
        jobs = waiting | {each.job for each in self._coming} | set(self._running)
        self._left = Counter(array_of(job) for job in jobs)  # of each array
        self._unended = jobs | set(cast.elements)

    def run(self, jobs: Collection[int], asks: int, may_go_on: Callable[[], bool]) -> Played:
        found: dict[int, float] = {}
        asked = 0
        self._come()
        while asked < asks:
            left = asks - asked
            if self._groups or self._courses:
                asked += 1
                self._ask(jobs, found)
            if len(found) == len(jobs):
                return Played(starts_s=found, until_s=self._now_s, asked=asked)
            if self._come():
                continue  # at the same moment: what has started was waited for
            next_s = self._next_s(left, asks)
            if next_s is None:
                endless = tuple(job for job, each in self._running.items() if each.end_s is None)
                return Played(
                    starts_s=found, until_s=self._now_s, asked=asked, stuck=True, endless=endless
                )
            if not may_go_on():
                raise TooLongError
            self._go_to(next_s)
            self._come()
        return Played(starts_s=found, until_s=self._now_s, asked=asked)

    # --- what happens at one moment ---

    def _come(self) -> bool:
        """Let jobs into the queue that may be there now; return whether there were any."""
        staying: list[Coming] = []
        for each in self._coming:
            if not self._may_come(each):
                staying.append(each)
                continue
            array = array_of(each.job)
            if array in self._slots:
                self._elements[array] = self._elements.get(array, 0) + 1
            order = self._groups.setdefault(each.job_class, [])
            order.append(each.key)
            order.sort()
        some = len(staying) < len(self._coming)
        self._coming = staying
        return some

    def _may_come(self, each: Coming) -> bool:
        array = array_of(each.job)
        slots = self._slots.get(array)
        return (
            each.at_s <= self._now_s
            and not any(job in self._unended for job in each.ends)
            and not any(job in self._unended and job not in self._started for job in each.starts)
            and (slots is None or self._elements.get(array, 0) < slots)
        )

    def _ask(self, jobs: Collection[int], found: dict[int, float]) -> None:
        """Ask the policy, and carry out what it plans."""
        plan = self._policy(self._moment())
        self._again_s = plan.again_s
        for move in plan.moves:
            self._spaces.give(self._running[move.job].seen.allocation)
        for move in plan.moves:
            self._move(self._running[move.job], move.allocation)
        for start in plan.starts:
            self._spaces.take(start.allocation)
            self._running[start.job] = self._start(start)
            self._started.update((start.job, array_of(start.job)))
            self._leave_queue(start.job_class, start.job)
            if start.job in jobs:
                found.setdefault(start.job, self._now_s)

    def _move(self, runs: _Runs, allocation: Allocation) -> None:
        if not allocation:  # it waits again, and nobody asks when it starts the next time
            del self._running[runs.seen.job]
            self._ended(runs.seen.job)
            return
        self._spaces.take(allocation)
        runs.seen = structs.replace(runs.seen, allocation=allocation)
        if runs.course is not None:
            runs.course.move(allocation)
            runs.end_s = runs.course.end_s(self._now_s)

    def _leave_queue(self, job_class: JobClass, job: int) -> None:
        left = [key for key in self._groups[job_class] if key[1] != job]
        if left:
            self._groups[job_class] = left
        else:
            del self._groups[job_class]

    # --- time ---

    def _next_s(self, left: int, asks: int) -> float | None:
        """Return when the policy is asked next; None: nothing more happens.

        Half of the questions are for what is near, the others for all that is left.
        """
        ends_s = [each.end_s for each in self._running.values() if each.end_s is not None]
        together = 1 if left > asks / 2 else math.ceil(len(ends_s) / max(left - 1, 1))
        times_s = [heapq.nsmallest(together, ends_s)[-1]] if ends_s else []
        times_s += [each.at_s for each in self._coming if each.at_s > self._now_s]
        if self._again_s is not None and (self._groups or ends_s):
            times_s.append(max(self._again_s, self._now_s + LEAST_STEP_S))
        return max(self._now_s, min(times_s)) if times_s else None

    def _go_to(self, now_s: float) -> None:
        for course in self._courses.values():
            course.advance(now_s - self._now_s)
        self._now_s = now_s
        over = [
            job
            for job, each in self._running.items()
            if each.end_s is not None and each.end_s <= now_s
        ]
        for job in over:
            self._spaces.give(self._running.pop(job).seen.allocation)
            self._ended(job)
        for each in self._running.values():
            end_s = each.seen.end_s
            if each.course is None and end_s is not None and end_s <= now_s:
                each.seen = structs.replace(each.seen, end_s=_outlived(each, now_s))

    def _ended(self, job: int) -> None:
        self._courses.pop(job, None)
        self._unended.discard(job)
        array = array_of(job)
        if array:
            self._elements[array] = self._elements.get(array, 0) - 1
            self._left[array] -= 1
            if not self._left[array]:
                self._unended.discard(array)

    # --- run times ---

    def _known(self, running: RunningJob, runs: RunTime | None) -> _Runs:
        """Return a job that runs already."""
        course = course_of(running.job, running.allocation, self._seen)
        if course is not None:
            self._courses[running.job] = course
            end_s = course.end_s(self._now_s)
            seen = structs.replace(running, end_s=end_s)
            return _Runs(seen=seen, end_s=end_s, limit_s=None, course=course)
        end_s = running.end_s
        if self._scenario.of and runs is not None:
            end_s = self._sampled_end_s(running, runs)
        limit_s = None if runs is None else runs.limit_s
        return _Runs(seen=running, end_s=end_s, limit_s=limit_s)

    def _sampled_end_s(self, running: RunningJob, runs: RunTime) -> float | None:
        age_s = max(self._now_s - running.started_s, 0.0)
        run_s = runs.at(self._share(running.job), age_s)
        return None if run_s is None else max(running.started_s + run_s, self._now_s)

    def _share(self, job: int) -> float:
        return share_of(job, self._scenario.number, self._scenario.of)

    def _start(self, start: Start) -> _Runs:
        course = course_of(start.job, start.allocation, self._seen, starts=True)
        planned_s = self._predictions.run_time_s(start.job, start.job_class, start.allocation)
        run_s = planned_s
        limit_s = start.job_class.walltime_s or self._seen.default_walltime_s
        if course is not None:
            self._courses[start.job] = course
            end_s = course.end_s(self._now_s)
            run_s = planned_s = None if end_s is None else end_s - self._now_s
        elif self._scenario.of:
            said = (self._predictions.prediction(start.job, s.node) for s in start.allocation)
            run_s = learned(said, limit_s).at(self._share(start.job))
        return _Runs(
            seen=RunningJob(
                job=start.job,
                allocation=start.allocation,
                started_s=self._now_s,
                end_s=None if planned_s is None else self._now_s + planned_s,
            ),
            end_s=None if run_s is None else self._now_s + run_s,
            limit_s=limit_s,
            course=course,
        )

    def _moment(self) -> Snapshot:
        """Return the present moved on; loads and predictions stay what they are."""
        seen = self._seen
        nodes: dict[str, FreeNode] = {space.name: space for space in self._spaces}
        profiles = seen.profiles
        if profiles:
            waiting = {key[1] for order in self._groups.values() for key in order}
            profiles = {
                job: self._courses[job].profile() if job in self._courses else profile
                for job, profile in profiles.items()
                if job in self._courses or job in waiting
            }
        return structs.replace(
            seen,
            now_s=self._now_s,
            nodes=nodes,
            groups=[Group(job_class=each, order=order) for each, order in self._groups.items()],
            running=[each.seen for each in self._running.values()],
            profiles=profiles,
        )


def _outlived(runs: _Runs, now_s: float) -> float | None:
    """Return the planned end of a job that has outlived its plan, as the head plans it anew."""
    started_s = runs.seen.started_s
    return planned_end_s(started_s=started_s, expected_s=0.0, walltime_s=runs.limit_s, now_s=now_s)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of the starts of all scenarios, each of which stands for an equal share."""
    place = min(max(share * len(values) - 0.5, 0.0), len(values) - 1.0)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    first, second = values[low], values[high]
    if first == second or not math.isfinite(first):
        return first
    return first + (second - first) * (place - low)
