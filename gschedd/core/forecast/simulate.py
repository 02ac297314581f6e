"""The queue played forward: the policy is asked at each end of a running job, on a copy of it.

One play is one scenario: it says how long each job runs. What is not in the queue yet, but will be
(a job with a start time, with dependencies, an element of an array), comes when it may.

Where a job ends and the first job of the queue is one of the same class, that job takes over its
allocation without a question to the policy: there is nothing to decide. Of arrays whole blocks of
elements take over, the smaller the fewer elements are left, so that an array of a hundred thousand
elements costs some hundred steps (guided self-scheduling: Polychronopoulos & Kuck, IEEE Trans.
Computers C-36(12):1425-1439, 1987).
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import NormalDist
from typing import Final

from msgspec import Struct, structs

from gsched.model.ids import array_of
from gsched.model.resources import Allocation
from gschedd.core.forecast.context import Arrival, QueueContext
from gschedd.core.forecast.pinned import Pinned
from gschedd.core.forecast.runtimes import (
    OF_ONE,
    Chances,
    RunTime,
    believed,
    kind_share,
    share_of,
)
from gschedd.core.forecast.training_jobs import TrainingRun, course_of
from gschedd.core.forecast.unmade import SHOWN, ElementKinds, Unmade, UnmadeElements
from gschedd.plan.limits import NO_LIMITS, LimitBook, LimitRoom
from gschedd.plan.load import Kind
from gschedd.plan.snapshot import (
    Group,
    JobClass,
    KeptByJob,
    OrderKey,
    Policy,
    RunningJob,
    Snapshot,
)
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.times import JobPredictions, planned_end_s
from gschedd.plan.windows import window_end_s

#: A round of a policy that asks to be asked again is at least this long, seconds.
LEAST_STEP_S: Final = 1e-3
#: So often a job takes over from another one in a play; beyond, the queue is too long.
MAX_TAKEN_OVER: Final = 20_000
#: With fewer jobs of its class in the queue the policy is asked at each end, as it may then start
#: jobs behind them as well.
LEAST_LIKE: Final = 32
#: Jobs that take over before it is asked whether there is time to go on.
TAKEN_AT_ONCE: Final = 500
#: A block is this part of what each place of an array would get of the elements that are left.
BLOCK_PART: Final = 2
_NORMAL: Final = NormalDist()


class TooLongError(Exception):
    """There is no time to ask the policy as often as a forecast needs."""


class Beliefs(Struct, frozen=True, kw_only=True):
    """What all scenarios of a question share.

    Attributes:
        chances: of the hypotheses about kinds of which jobs run, by kind.
        owners: those of several kinds.
        alone: kinds of which there is only one job.
    """

    chances: Mapping[str, Chances] = {}
    owners: frozenset[int] = frozenset()
    alone: frozenset[str] = frozenset()


class Scenario(Struct, frozen=True, kw_only=True):
    """How long jobs run: as in the ``number``-th of ``of`` scenarios; of 0: as they are planned."""

    number: int = 0
    of: int = 0


class Played(Struct, frozen=True, kw_only=True):
    """What came of a scenario.

    Attributes:
        starts_s: when the jobs in question start, seconds since the epoch, by job.
        until_s: how far it was played.
        rounds: how often the policy was called.
        stuck: nothing more would happen, however long it was played on.
        endless: running jobs without an end, where it was stuck.
    """

    starts_s: Mapping[int, float]
    until_s: float
    rounds: int
    stuck: bool = False
    endless: tuple[int, ...] = ()


class _Runs(Struct, kw_only=True):
    """A running job: ``end_s`` is when it really ends, ``limit_s`` what the policy counts with.

    Attributes:
        elements: of an array that run one after the other, from the job on.
        planned_s: run time that is planned for each of them, where there are several.
    """

    seen: RunningJob
    end_s: float | None
    limit_s: float | None
    job_class: JobClass | None = None
    course: TrainingRun | None = None
    elements: int = 1
    planned_s: float = 0.0


def play(  # noqa: PLR0913 -- what a play is made of
    seen: Snapshot,
    policy: Policy,
    jobs: Collection[int],
    *,
    groups: Iterable[Group],
    cast: QueueContext,
    beliefs: Beliefs,
    scenario: Scenario,
    asks: int,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Played:
    """Return when jobs start in one scenario.

    Args:
        seen: the present.
        jobs: in question; it is played until all have started.
        groups: the queue, as far as it is looked at.
        beliefs: what is known of run times.
        asks: the policy is asked so often at most.
        may_go_on: whether there is time to ask it again.

    Raises:
        TooLongError: there is not.
    """
    played = _Play(seen, policy, groups, cast, beliefs, scenario, frozenset(jobs))
    return played.run(asks, may_go_on)


class _Play:
    """One scenario while it is played; lives only inside `play`."""

    def __init__(  # noqa: PLR0913, PLR0917 -- what a play is made of
        self,
        seen: Snapshot,
        policy: Policy,
        groups: Iterable[Group],
        cast: QueueContext,
        beliefs: Beliefs,
        scenario: Scenario,
        jobs: frozenset[int],
    ) -> None:
        if cast.unmade:
            seen = structs.replace(seen, kinds=ElementKinds(seen.kinds))
        self._seen = seen
        self._policy = policy
        self._beliefs = beliefs
        self._scenario = scenario
        self._jobs = jobs
        self._found: dict[int, float] = {}
        self._now_s = seen.now_s
        self._spaces = Spaces(seen.nodes)
        self._book = LimitBook(NO_LIMITS) if seen.limits is None else seen.limits.book.copy()
        self._groups = {group.job_class: list(group.order) for group in groups}
        self._coming = list(cast.coming)
        later: list[Arrival | UnmadeElements] = [*cast.coming, *cast.unmade]
        awaited = [job for each in later for job in each.ends + each.starts]
        self._awaited = frozenset(awaited)
        named = jobs | self._awaited
        self._unmade = {each.array: Unmade(each, named) for each in cast.unmade}
        self._predictions = JobPredictions(seen)
        self._runs: dict[tuple[Kind | None, tuple[str, ...], float | None], RunTime] = {}
        self._pins: dict[RunTime, Pinned] = {}
        self._courses: dict[int, TrainingRun] = {}
        self._again_s: float | None = None
        self._kept = seen.kept if isinstance(seen.kept, KeptByJob) else None
        self._started: set[int] = set()
        self._ends: list[tuple[float, int]] = []  # of running jobs; a heap, with ends that are over
        self._at_once: Counter[JobClass] = Counter()  # running jobs
        waiting = {key[1] for order in self._groups.values() for key in order}
        self._running: dict[int, _Runs] = {}
        for each in seen.running:
            known = self._known(each, cast.runs.get(each.job), cast.classes.get(each.job))
            self._begin(each.job, _ended_by(known, cast.ends_s.get(each.job)))
        jobs_known = waiting | {each.job for each in self._coming} | set(self._running)
        self._left = Counter(array_of(job) for job in jobs_known)  # of each array
        for array, unmade in self._unmade.items():
            self._left[array] += unmade.count
        unmade_named = {job for job in self._awaited if array_of(job) in self._unmade}
        self._unended = jobs_known | unmade_named | set(cast.arrays)

    def run(self, asks: int, may_go_on: Callable[[], bool]) -> Played:
        rounds = taken = 0
        self._come()
        while rounds < asks and taken < MAX_TAKEN_OVER:
            left = asks - rounds
            if self._groups or self._courses:
                rounds += 1
                self._ask()
            if self._is_answered():
                return self._played(rounds)
            if self._come():
                continue  # at the same moment: what has started was waited for
            while (more := self._take_over()) and taken < MAX_TAKEN_OVER:
                taken += more
                if not may_go_on():
                    raise TooLongError
            if self._is_answered():
                return self._played(rounds)
            next_s = self._next_s(left, asks)
            if next_s is None:
                endless = tuple(job for job, each in self._running.items() if each.end_s is None)
                return structs.replace(self._played(rounds), stuck=True, endless=endless)
            if not may_go_on():
                raise TooLongError
            self._go_to(next_s)
            self._come()
        return self._played(rounds)

    def _is_answered(self) -> bool:
        return len(self._found) == len(self._jobs)

    def _played(self, rounds: int) -> Played:
        return Played(starts_s=self._found, until_s=self._now_s, rounds=rounds)

    # --- what happens at one moment ---

    def _come(self) -> bool:
        """Let jobs into the queue that may be there now; return whether there were any."""
        staying: list[Arrival] = []
        for each in self._coming:
            if self._may_come(each):
                self._queue(each.job_class, [each.key])
            else:
                staying.append(each)
        some = len(staying) < len(self._coming)
        self._coming = staying
        for unmade in self._unmade.values():
            if unmade.count and unmade.has_slot and self._may_come(unmade.elements):
                order = self._groups.get(unmade.job_class, ())
                if any(array_of(job) == unmade.array for _, job in order):
                    continue
                self._queue(unmade.job_class, unmade.take(SHOWN))
                some = True
        return some

    def _queue(self, job_class: JobClass, keys: Iterable[OrderKey]) -> None:
        order = self._groups.setdefault(job_class, [])
        order.extend(keys)
        order.sort()

    def _may_come(self, each: Arrival | UnmadeElements) -> bool:
        return (
            each.at_s <= self._now_s
            and not any(job in self._unended for job in each.ends)
            and not any(job in self._unended and job not in self._started for job in each.starts)
        )

    def _ask(self) -> None:
        """Ask the policy, and carry out what it plans."""
        plan = self._policy(self._moment())
        self._again_s = plan.again_s
        for move in plan.moves:
            self._spaces.give(self._running[move.job].seen.allocation)
        for move in plan.moves:
            self._move(self._running[move.job], move.allocation)
        for start in plan.starts:
            self._spaces.take(start.allocation)
            runs = self._start(start.job, start.job_class, start.allocation)
            runs.seen = structs.replace(runs.seen, reservation=start.reservation)
            until_s = window_end_s(self._seen.reserved, start.reservation, self._now_s)
            self._begin(start.job, _ended_by(runs, until_s))
            self._leave_queue(start.job_class, start.job)

    def _begin(self, job: int, runs: _Runs) -> None:
        self._running[job] = runs
        self._started.update((job, array_of(job)))
        if runs.end_s is not None and runs.course is None:
            heapq.heappush(self._ends, (runs.end_s, job))
        if runs.job_class is not None:
            self._at_once[runs.job_class] += 1
        if job in self._jobs:
            self._found.setdefault(job, self._now_s)

    def _move(self, runs: _Runs, allocation: Allocation) -> None:
        if not allocation:  # it waits again, and nobody asks when it starts the next time
            self._ended(runs.seen.job)
            return
        self._spaces.take(allocation)
        self._book.resize(runs.seen.job, allocation, self._seen.nodes)
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

    # --- jobs that take over from others of their class ---

    def _take_over(self) -> int:
        """Let the first of the queue take over from those that end, until something else happens.

        Returns:
            How many did.
        """
        if self._courses:
            return 0
        times_s = [each.at_s for each in self._coming if each.at_s > self._now_s]
        times_s += [
            each.elements.at_s
            for each in self._unmade.values()
            if each.count and each.elements.at_s > self._now_s
        ]
        times_s += [] if self._again_s is None else [self._again_s]
        until_s = min(times_s, default=math.inf)
        taken = 0
        while taken < TAKEN_AT_ONCE and not self._is_answered():
            ending = self._first_end()
            if ending is None or ending[0] > until_s:
                return taken
            end_s, job = ending
            runs = self._running[job]
            first = self._first_waiting(array_of(job))
            if first is None or runs.job_class is None or first[1] != runs.job_class:
                return taken
            if self._like(first[1]) < LEAST_LIKE or not self._are_open(runs.seen.allocation):
                return taken
            if self._book.rules.by_time or job in self._awaited or array_of(job) in self._awaited:
                return taken  # its end may let others into the queue, or leaves too little GPU time
            self._now_s = end_s
            self._follow(runs, *first)
            taken += 1
        return taken

    def _like(self, job_class: JobClass) -> int:
        """Return how many jobs of a class wait, elements that are no jobs yet included."""
        unmade = sum(e.count for e in self._unmade.values() if e.job_class == job_class)
        return len(self._groups.get(job_class, ())) + unmade

    def _are_open(self, allocation: Allocation) -> bool:
        nodes = (self._seen.nodes.get(share.node) for share in allocation)
        windowed = self._seen.windows
        return all(node is not None and node.open and node.name not in windowed for node in nodes)

    def _first_end(self) -> tuple[float, int] | None:
        """Return which running job ends next, and when."""
        while self._ends:
            end_s, job = self._ends[0]
            runs = self._running.get(job)
            if runs is not None and runs.end_s == end_s:
                return self._ends[0]
            heapq.heappop(self._ends)
        return None

    def _first_waiting(self, array: int) -> tuple[OrderKey, JobClass, Unmade | None] | None:
        """Return the first job of the queue if an element of an array ends now; 0: none does."""
        firsts: list[tuple[OrderKey, JobClass, Unmade | None]] = [
            (order[0], job_class, None) for job_class, order in self._groups.items()
        ]
        firsts += [
            (unmade.next_key, unmade.job_class, unmade)
            for unmade in self._unmade.values()
            if unmade.count
            and (unmade.has_slot or unmade.array == array)
            and self._may_come(unmade.elements)
        ]
        return min(firsts, key=lambda each: each[0], default=None)

    def _follow(
        self, runs: _Runs, key: OrderKey, job_class: JobClass, unmade: Unmade | None
    ) -> None:
        """Let a job, or a block of elements, take over from a job that ends now."""
        allocation = runs.seen.allocation
        places = self._at_once[job_class]
        self._spaces.give(allocation)
        self._ended(runs.seen.job)
        self._spaces.take(allocation)
        job, size = key[1], 1
        if unmade is None:
            self._leave_queue(job_class, job)
        else:
            job, size = unmade.take_block(unmade.count // (BLOCK_PART * places))
        self._begin(job, self._start(job, job_class, allocation, size))

    # --- time ---

    def _next_s(self, left: int, asks: int) -> float | None:
        """Return when the policy is asked next; None: nothing more happens.

        Half of the questions are for what is near, the others for all that is left.
        """
        ends_s = [each.end_s for each in self._running.values() if each.end_s is not None]
        together = 1 if left > asks / 2 else math.ceil(len(ends_s) / max(left - 1, 1))
        times_s = [heapq.nsmallest(together, ends_s)[-1]] if ends_s else []
        times_s += [each.at_s for each in self._coming if each.at_s > self._now_s]
        times_s += [
            each.elements.at_s
            for each in self._unmade.values()
            if each.count and each.elements.at_s > self._now_s
        ]
        if self._groups:
            times_s += [
                window.to_s
                for windows in self._seen.windows.values()
                for window in windows
                if window.to_s > self._now_s
            ]
            times_s += [each.from_s for each in self._seen.reserved if each.from_s > self._now_s]
            until_s = self._kept.until_s.values() if self._kept is not None else ()
            times_s += [at_s for at_s in until_s if at_s > self._now_s]
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
            self._spaces.give(self._running[job].seen.allocation)
            self._ended(job)
        for each in self._running.values():
            end_s = each.seen.end_s
            if each.course is None and end_s is not None and end_s <= now_s:
                end_s = now_s + each.planned_s if each.elements > 1 else _outlived(each, now_s)
                each.seen = structs.replace(each.seen, end_s=end_s)

    def _ended(self, job: int) -> None:
        runs = self._running.pop(job)
        self._book.finish(job, self._now_s)
        if runs.job_class is not None:
            self._at_once[runs.job_class] -= 1
        self._courses.pop(job, None)
        self._unended.discard(job)
        array = array_of(job)
        if array:
            unmade = self._unmade.get(array)
            if unmade is not None:
                unmade.made -= 1
            self._left[array] -= runs.elements
            if not self._left[array]:
                self._unended.discard(array)

    # --- run times ---

    def _known(self, running: RunningJob, run: RunTime | None, job_class: JobClass | None) -> _Runs:
        """Return a job that runs already."""
        course = course_of(running.job, running.allocation, self._seen)
        if course is not None:
            self._courses[running.job] = course
            seen = structs.replace(running, end_s=course.end_s(self._now_s))
            return _Runs(seen=seen, end_s=seen.end_s, limit_s=None, course=course)
        end_s = running.end_s
        if self._scenario.of and run is not None:
            end_s = self._sampled_end_s(running, run)
        limit_s = None if run is None else run.limit_s
        return _Runs(seen=running, end_s=end_s, limit_s=limit_s, job_class=job_class)

    def _sampled_end_s(self, running: RunningJob, run: RunTime) -> float | None:
        if run.is_unknown:
            return None
        age_s = max(self._now_s - running.started_s, 0.0)
        run_s = self._pinned(run).at(self._share(running.job), age_s)
        return max(running.started_s + run_s, self._now_s)

    def _share(self, job: int) -> float:
        return share_of(job, self._scenario.number, self._scenario.of)

    def _pinned(self, run: RunTime) -> Pinned:
        """Return what jobs of a kind are like in this scenario."""
        pinned = self._pins.get(run)
        if pinned is None:
            scenario, beliefs = self._scenario, self._beliefs
            share = kind_share(run, scenario.number, scenario.of, beliefs.owners)
            pinned = run.pinned(share, beliefs.chances.get(run.kind, ()))
            if pinned.by_walltime and run.kind in beliefs.alone:
                pinned = structs.replace(pinned, sigma=OF_ONE)
            self._pins[run] = pinned
        return pinned

    def _start(
        self, job: int, job_class: JobClass, allocation: Allocation, elements: int = 1
    ) -> _Runs:
        """Return a job that starts now, or a block of elements, one after the other."""
        self._book.start(job, job_class, allocation, self._seen.nodes, self._now_s)
        course = course_of(job, allocation, self._seen, starts=True)
        planned_s = self._predictions.run_time_s(job, job_class, allocation)
        run_s = None if planned_s is None else planned_s * elements
        limit_s = job_class.walltime_s or self._seen.default_walltime_s
        if course is not None:
            self._courses[job] = course
            end_s = course.end_s(self._now_s)
            run_s = planned_s = None if end_s is None else end_s - self._now_s
        elif self._scenario.of:
            run = self._run_time(job, allocation, limit_s)
            run_s = None if run.is_unknown else self._sampled_s(run, job, elements)
        return _Runs(
            seen=RunningJob(
                job=job,
                allocation=allocation,
                started_s=self._now_s,
                end_s=None if planned_s is None else self._now_s + planned_s,
            ),
            end_s=None if run_s is None else self._now_s + run_s,
            limit_s=limit_s,
            job_class=job_class,
            course=course,
            elements=elements,
            planned_s=planned_s or 0.0,
        )

    def _run_time(self, job: int, allocation: Allocation, limit_s: float | None) -> RunTime:
        kind = self._seen.kinds.get(job)
        nodes = tuple(share.node for share in allocation)
        run = self._runs.get((kind, nodes, limit_s))
        if run is None:
            run = self._runs[kind, nodes, limit_s] = believed(
                job, nodes, predictions=self._predictions, limit_s=limit_s, kind=kind
            )
        return run

    def _sampled_s(self, run: RunTime, job: int, elements: int) -> float:
        """Return how long a job runs, or elements of its kind do one after the other, seconds."""
        pinned, share = self._pinned(run), self._share(job)
        if elements == 1:
            return pinned.at(share)
        mean_s, spread_s = pinned.moments()
        off_s = math.sqrt(elements) * spread_s * _NORMAL.inv_cdf(share)
        return max(elements * mean_s + off_s, mean_s)

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
        if self._kept is not None:
            self._kept = self._kept.at(self._now_s, self._started)
        return structs.replace(
            seen,
            kept=self._kept,
            now_s=self._now_s,
            nodes=nodes,
            groups=[Group(job_class=each, order=order) for each, order in self._groups.items()],
            running=[each.seen for each in self._running.values()],
            profiles=profiles,
            limits=LimitRoom(self._book, self._now_s),
        )


def _ended_by(runs: _Runs, at_s: float | None) -> _Runs:
    """Return a running job that ends no later than a reservation makes it, if one does."""
    runs.end_s = min(filter(None, (at_s, runs.end_s)), default=None)
    return runs


def _outlived(runs: _Runs, now_s: float) -> float | None:
    """Return the planned end of a job that has outlived its plan, as the head plans it anew."""
    started_s = runs.seen.started_s
    return planned_end_s(started_s=started_s, expected_s=0.0, walltime_s=runs.limit_s, now_s=now_s)
