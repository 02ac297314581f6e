"""A policy for training jobs, whose forecasts are checked against everything that nodes have.

Policies for training jobs count GPUs over time. They consider CPUs, memory, consumable resources
and GPU types only where they place a job now. So a job may be forecast to start on a GPU beside
which no CPU is free for hours. Here each forecast of a job that waits is compared with the earliest
time at which a node has all of its request. What others hold comes back at their planned ends:

* Always: what no plan can take from a running job, as it is no training job, or cannot migrate.
  Nothing is said of a deadline that holds only if these end before their walltimes.
* Where CPUs, memory or consumable resources let nodes hold fewer training jobs than their GPUs
  would: there also what other training jobs hold, or will hold to meet their deadlines.

A forecast is only corrected to a later end; no start, migration or order is changed.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Request
from gsched.model.units import format_gpus
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.forecast import Forecast
from gschedd.plan.layouts import layout_of
from gschedd.plan.moments import moment
from gschedd.plan.room import room, shortage, usable_gpus
from gschedd.plan.snapshot import JobClass, Plan, Policy, RunningJob, Snapshot, Start
from gschedd.plan.space import FreeNode, Spaces
from gschedd.plan.training import TrainingProfile, gpu_count
from gschedd.plan.windows import barring, window_reason
from gschedd.plan.words import Reason, explain

#: So many times are tried for a start among other training jobs; a later one is not known.
MAX_TIMES: Final = 64


def within_nodes(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the plan of a policy for training jobs, with forecasts that the nodes can keep."""
    plan = policy(snapshot)
    started = {start.job for start in plan.starts}
    waiting = {
        job: group.job_class
        for group in snapshot.groups
        for _, job in group.order
        if job in snapshot.profiles and job not in started
    }
    if waiting.keys().isdisjoint(verdict.job for verdict in plan.verdicts) and not any(
        is_elastic(start.job_class.request) for start in plan.starts
    ):
        return plan
    expected = _Check(snapshot, plan, waiting).plan()
    if all(each.limit_s in {None, each.end_s} for each in snapshot.running):
        return expected
    running = [
        each if each.limit_s is None else structs.replace(each, end_s=each.limit_s)
        for each in snapshot.running
    ]
    at_limits = _Check(structs.replace(snapshot, running=running), plan, waiting).plan()
    return _kept_at_limits(snapshot, expected, at_limits, waiting)


class _Held(Struct, frozen=True, kw_only=True):
    """Resources that a job holds from one time to another; infinite: for ever."""

    job: int
    from_s: float
    to_s: float
    allocation: Allocation


class _Start(Struct, frozen=True, kw_only=True):
    """When a job could start on some number of GPUs, and when it would end."""

    at_s: float
    end_s: float
    allocation: Allocation


class _Check:
    """Compares the forecasts of one plan with the nodes; lives only for that.

    Jobs that policies may stop or migrate hold nothing in ``base``. On the nodes that are
    ``crowded`` CPUs, memory or consumable resources are fewer than the GPUs need; only there the
    others of these jobs count.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, waiting: Mapping[int, JobClass]) -> None:
        self._snapshot = snapshot
        self._plan = plan
        self._waiting = waiting
        base = Spaces(snapshot.nodes)
        flexible: list[RunningJob] = []
        fixed: list[_Held] = []
        for running in snapshot.running:
            if not any(_has_gpus(base, share.node) for share in running.allocation):
                continue
            if running.leaving and running.job not in snapshot.profiles:
                base.give(running.allocation)  # it is on its way to other nodes, and not planned
            elif self._may_change(running):
                base.give(running.allocation)
                flexible.append(running)
            else:
                fixed.append(self._held(running))
        fixed = [held for held in fixed if held.to_s < math.inf]
        fixed.sort(key=lambda held: (held.to_s, held.job))
        self._fixed = fixed
        self._ends_s = [held.to_s for held in fixed]
        #: What is free once so many of the fixed jobs have ended, as far as that was asked for.
        self._after: dict[int, Spaces] = {0: base}
        self._first: dict[Request, float | None] = {}
        self._crowded = self._crowded_nodes(base, flexible)
        self._others = list(self._hold(flexible)) if self._crowded else []

    # --- who holds what ---

    def _may_change(self, running: RunningJob) -> bool:
        """Return whether policies may take from a running job what it has."""
        profile = self._snapshot.profiles.get(running.job)
        return profile is not None and (profile.movable or profile.movable_later or running.leaving)

    def _held(self, running: RunningJob) -> _Held:
        now_s, profile = self._snapshot.now_s, self._snapshot.profiles.get(running.job)
        if profile is not None and profile.work > 0:
            end_s = now_s + self._run_s(profile, running.allocation)
        else:  # it has exceeded its predicted run time: only its walltime is known
            end_s = math.inf if running.end_s is None else running.end_s
        return _Held(
            job=running.job, from_s=now_s, to_s=max(end_s, now_s), allocation=running.allocation
        )

    def _run_s(self, profile: TrainingProfile, allocation: Allocation) -> float:
        gpus_of = Spaces(self._snapshot.nodes).gpus_of
        return profile.run_time_s(layout_of(allocation, gpus_of, self._snapshot.fabric))

    def _crowded_nodes(self, base: Spaces, flexible: Iterable[RunningJob]) -> frozenset[str]:
        """Return the nodes that could hold more of some job on their GPUs than beside them."""
        profiles = (self._snapshot.profiles[each.job] for each in flexible)
        requests = {profile.request for profile in profiles if profile.request is not None}
        requests |= {group.job_class.request for group in self._snapshot.groups}
        return frozenset(
            space.name
            for space in base
            if space.gpus and any(_is_short(request, space) for request in requests)
        )

    def _hold(self, flexible: Iterable[RunningJob]) -> Iterator[_Held]:
        """Yield what training jobs hold of crowded nodes that run, or are started by the plan."""
        now_s, profiles = self._snapshot.now_s, self._snapshot.profiles
        moved = {move.job: move.allocation for move in self._plan.moves}
        for running in flexible:
            allocation = moved.get(running.job, running.allocation)
            if allocation:
                held = self._held(structs.replace(running, allocation=allocation))
                yield from self._crowding(held)
        for start in self._plan.starts:
            end_s = now_s + self._run_s(profiles[start.job], start.allocation)
            held = _Held(job=start.job, from_s=now_s, to_s=end_s, allocation=start.allocation)
            yield from self._crowding(held)

    def _crowding(self, held: _Held) -> Iterator[_Held]:
        """Yield what of it is on crowded nodes, if anything is."""
        shares = tuple(share for share in held.allocation if share.node in self._crowded)
        if shares:
            yield structs.replace(held, allocation=shares)

    # --- when a request is free ---

    def _fixed_at(self, at_s: float) -> Spaces:
        """Return what is free at a time, but for what jobs hold that policies may change."""
        ended = bisect_right(self._ends_s, at_s)
        if ended not in self._after:
            before = max(each for each in self._after if each < ended)
            spaces = self._after[before].copy()
            for held in self._fixed[before:ended]:
                spaces.give(held.allocation)
            self._after[ended] = spaces
        return self._after[ended]

    def _free_at(self, at_s: float) -> Spaces:
        """Return what is free at a time."""
        spaces = self._fixed_at(at_s)
        if self._others:
            spaces = spaces.copy()
            for held in self._others:
                if held.from_s <= at_s < held.to_s:
                    spaces.take(held.allocation)
        return spaces

    def _first_s(self, request: Request) -> float | None:
        """Return from when on the fixed jobs leave enough of the nodes; None: not as far as known.

        The more have ended, the more is free: so the time is found by bisection.
        """
        if request not in self._first:
            times_s = [self._snapshot.now_s, *dict.fromkeys(self._ends_s)]
            found = bisect_left(
                times_s,
                x=True,
                key=lambda at_s: not isinstance(place(request, self._fixed_at(at_s)), NoFit),
            )
            self._first[request] = times_s[found] if found < len(times_s) else None
        return self._first[request]

    def _start(self, profile: TrainingProfile, request: Request) -> _Start | None:
        """Return when and where a request starts at the earliest; None: that is not known."""
        first_s = self._first_s(request)
        if first_s is None:
            return None
        ends_s = {*self._ends_s, *(held.to_s for held in self._others)} if self._others else set()
        times_s = [first_s, *sorted(each_s for each_s in ends_s if first_s < each_s < math.inf)]
        for at_s in times_s[:MAX_TIMES]:
            found = place(request, self._free_at(at_s))
            if isinstance(found, NoFit):
                continue
            end_s = at_s + self._run_s(profile, found)
            if all(self._is_beside(found, held, at_s, end_s) for held in self._others):
                return _Start(at_s=at_s, end_s=end_s, allocation=found)
        return None

    def _is_beside(self, allocation: Allocation, held: _Held, at_s: float, end_s: float) -> bool:
        """Return whether what another job will hold leaves an allocation free."""
        nodes = {share.node for share in allocation}
        if not at_s < held.from_s < end_s or nodes.isdisjoint(s.node for s in held.allocation):
            return True
        return _is_free(allocation, self._free_at(held.from_s))

    # --- forecasts ---

    def plan(self) -> Plan:
        """Return the plan with corrected forecasts, and with the reasons that follow from them."""
        verdicts = {verdict.job: verdict for verdict in self._plan.verdicts}
        reasons: dict[int, Reason] = {}
        judged = (verdict for verdict in self._plan.verdicts if verdict.job in self._waiting)
        for verdict in sorted(judged, key=lambda each: deadline_order(self._snapshot, each.job)):
            job, now_s = verdict.job, self._snapshot.now_s
            profile, request = self._snapshot.profiles[job], self._waiting[job].request
            numbers = _numbers(request, profile, verdict.gpus)
            if not self._crowded and self._first_s(numbers[0]) == now_s:
                continue  # it lacks nothing but GPUs, which the policy has counted
            starts = [self._start(profile, each) for each in numbers]
            best = starts[0]
            if best is None or best.at_s > now_s:
                best = min(filter(None, starts), key=lambda start: start.end_s, default=None)
                reasons[job] = self._reason(self._waiting[job], profile, numbers[-1], best)
                verdicts[job] = _corrected(verdict, profile, best, reasons[job])
            if best is not None and verdicts[job].meets and profile.deadline_s is not None:
                held = _Held(job=job, from_s=best.at_s, to_s=best.end_s, allocation=best.allocation)
                self._others += self._crowding(held)
        for start in self._plan.starts:
            if start.job in verdicts and self._crowded and is_elastic(start.job_class.request):
                verdicts[start.job] = self._of_started(start, verdicts[start.job])
        if not reasons and tuple(verdicts.values()) == self._plan.verdicts:
            return self._plan
        return structs.replace(
            self._plan,
            verdicts=tuple(verdicts.values()),
            waits=tuple(
                structs.replace(wait, reason=reasons.get(wait.first, wait.reason))
                for wait in self._plan.waits
            ),
        )

    def _of_started(self, start: Start, verdict: Forecast) -> Forecast:
        """Return the forecast of a job that starts now, and gets more GPUs only if they are usable.

        It was planned to have more than nodes have room for now.
        """
        now_s, profile = self._snapshot.now_s, self._snapshot.profiles[start.job]
        gpus = gpu_count(start.allocation)
        best = _Start(
            at_s=now_s, end_s=now_s + self._run_s(profile, start.allocation), allocation=()
        )
        if profile.deadline_s is None or not verdict.meets or best.end_s <= profile.deadline_s:
            return verdict
        self._others = [held for held in self._others if held.job != start.job]
        request = start.job_class.request
        for more in _numbers(request, profile, max(profile.gpus)):
            grown = self._start(profile, more)
            if grown is None or more.gpus <= gpus:
                continue
            took_s = grown.end_s - grown.at_s - profile.startup_s
            part = max(grown.at_s - now_s - profile.startup_s, 0.0) / (best.end_s - now_s)
            end_s = grown.at_s + profile.move_s + took_s * (1 - min(part, 1.0))
            if end_s < best.end_s:
                best = structs.replace(best, at_s=grown.at_s, end_s=end_s)
        words = f"nodes have the CPUs and memory for only {format_gpus(gpus)} of it"
        return _corrected(verdict, profile, best, Reason(words, words))

    def _reason(
        self,
        job_class: JobClass,
        profile: TrainingProfile,
        request: Request,
        best: _Start | None,
    ) -> Reason:
        """Return what a job waits for, and how long."""
        windows, now_s, walltime_s = (
            self._snapshot.windows,
            self._snapshot.now_s,
            job_class.walltime_s,
        )
        closed = [node for node in windows if barring(windows, node, now_s, walltime_s)]
        if best is None and closed:
            return window_reason(windows, closed, now_s, walltime_s)
        lack = explain(request, self._free_at(now_s))
        if best is None:
            return lack
        words = f"{lack.short} until {moment(best.at_s)}"
        if profile.deadline_s is not None and best.end_s <= profile.deadline_s:
            return Reason(f"{words}; it starts in time for its deadline", "starts in time")
        return Reason(words, lack.short)


def deadline_order(snapshot: Snapshot, job: int) -> tuple[bool, float, int]:
    """Return in which order training jobs get what comes free: guaranteed ones, then by deadline.

    Ties go to the lower job id.
    """
    profile = snapshot.profiles[job]
    deadline_s = math.inf if profile.deadline_s is None else profile.deadline_s
    return (profile.guaranteed is not True, deadline_s, job)


def _corrected(
    verdict: Forecast, profile: TrainingProfile, best: _Start | None, reason: Reason
) -> Forecast:
    """Return a forecast with the end that the nodes allow at best, if that is later."""
    if profile.deadline_s is None and verdict.end_s is None:
        return verdict
    end_s = None if best is None else max(best.end_s, verdict.end_s or 0.0)
    verdict = structs.replace(verdict, end_s=end_s)
    if profile.deadline_s is None or (end_s is not None and end_s <= profile.deadline_s):
        return verdict
    if (
        verdict.meets is False
        and verdict.why
        and (verdict.unsure_until_s is None) == (best is not None)
    ):
        return verdict  # the policy has a reason of its own, or nobody knows
    return structs.replace(
        verdict,
        meets=False,
        firm=False,
        can_guarantee=False,
        why=str(reason),
        lacks_room=True,
        unsure_until_s=None,
    )


def _kept_at_limits(
    snapshot: Snapshot, expected: Plan, at_limits: Plan, waiting: Container[int]
) -> Plan:
    """Return a plan whose deadlines are met although running jobs use their whole walltimes.

    Of a job that is in time only if they end as planned nothing is known, unless it was guaranteed.
    """
    late = {each.job: each.why for each in at_limits.verdicts if each.meets is False}

    def kept(verdict: Forecast) -> Forecast:
        profile = snapshot.profiles.get(verdict.job)
        if profile is None or profile.guaranteed or profile.deadline_s is None:
            return verdict
        if not (verdict.meets and verdict.job in late and verdict.job in waiting):
            return verdict
        return structs.replace(
            verdict,
            meets=False,
            firm=False,
            can_guarantee=False,
            why=f"{late[verdict.job]} if running jobs use their whole walltimes",
            lacks_room=True,
            unsure_until_s=profile.deadline_s,
        )

    return structs.replace(expected, verdicts=tuple(map(kept, expected.verdicts)))


def _has_gpus(spaces: Spaces, node: str) -> bool:
    return node in spaces and spaces[node].open and spaces[node].total_gpus > 0


def _is_short(request: Request, space: FreeNode) -> bool:
    """Return whether a node holds fewer places of a request than its free GPUs alone would."""
    chunk = structs.replace(request.chunks[0], count=1)
    gpus = len(usable_gpus(chunk, space)) // chunk.gpus
    if not gpus or not space.open or not space.features.issuperset(chunk.features):
        return False
    return bool(shortage(chunk, space, exclusive=request.exclusive)) or room(chunk, space) < gpus


def _numbers(request: Request, profile: TrainingProfile, gpus: int) -> Sequence[Request]:
    """Return a request with the planned number of GPUs, with half as many, and so on."""
    if not is_elastic(request):
        return [request]
    found: list[Request] = []
    allowed = [count for count in profile.gpus if count <= gpus] or [*profile.gpus[:1]]
    while allowed:
        found.append(at_count(request, allowed[-1] // request.chunks[0].gpus))
        allowed = [count for count in allowed if count <= allowed[-1] // 2]
    return found or [at_count(request, request.places)]


def _is_free(allocation: Allocation, spaces: Spaces) -> bool:
    """Return whether all of an allocation is free."""
    for share in allocation:
        space = spaces[share.node]
        rest = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
        if shortage(rest, space, exclusive=share.exclusive):
            return False
        if not {gpu.index for gpu in space.gpus}.issuperset(share.gpu_indices):
            return False
    return True
