"""A round of a policy for adaptive jobs that chooses configurations by an assignment of least cost.

Candidates, problem, assignment, plan; what a policy has of its own is the problem.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field, structs

from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.candidates import (
    AdaptiveJob,
    Candidates,
    Growth,
    candidates_of,
)
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.plans import Decided, plan_of
from gschedd.allocation.adaptive.problem import (
    Assignment,
    AssignmentError,
    Floats,
    Ints,
    Problem,
    in_order,
)
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.snapshot import Plan, Snapshot

#: A decision that is late by this part of a round at most is the round's.
LATE: Final = 0.05


def is_round(snapshot: Snapshot, round_s: float) -> bool:
    """Return whether running jobs are decided about.

    That is at multiples of a round, or a little later; and when moves of the round had to wait for
    others, and one of these is over.
    """
    now_s = snapshot.now_s
    return snapshot.moves_left or now_s - _begin_s(now_s, round_s) <= LATE * round_s


def next_round_s(now_s: float, round_s: float) -> float:
    """Return when the next round begins, seconds since the epoch."""
    return _begin_s(now_s, round_s) + round_s


def _begin_s(now_s: float, round_s: float) -> float:
    """Return when the present round began, seconds since the epoch."""
    return math.floor(now_s / round_s) * round_s


def adaptive_jobs(snapshot: Snapshot, round_s: float) -> list[AdaptiveJob]:
    """Return the adaptive jobs about which is decided now.

    They are those that wait and, in a round, those that may be migrated and ran when it began. A
    job that has started since keeps its GPUs until the next round: otherwise two jobs could take
    them from each other in each cycle of a round, and none would ever do a step.
    """
    begin_s = _begin_s(snapshot.now_s, round_s)
    training_jobs = TrainingJobs.of(snapshot)
    jobs: list[AdaptiveJob] = []
    for number, job_class in training_jobs.waiting.items():
        profile = snapshot.profiles[number]
        if profile.adaptive is not None:
            jobs.append(
                AdaptiveJob(
                    job=number,
                    profile=profile.adaptive,
                    request=job_class.request,
                    must_run=profile.guaranteed is True,
                )
            )
    for number, running in training_jobs.movable.items() if is_round(snapshot, round_s) else ():
        profile = snapshot.profiles[number]
        if running.started_s >= begin_s:
            continue
        if profile.adaptive is not None and profile.request is not None:
            jobs.append(
                AdaptiveJob(
                    job=number,
                    profile=profile.adaptive,
                    request=profile.request,
                    allocation=running.allocation,
                    must_run=profile.guaranteed is True,
                )
            )
    return sorted(jobs, key=lambda each: each.job)


class AdaptiveRules(Struct, frozen=True, kw_only=True, eq=False):
    """How a policy decides.

    Attributes:
        problem_of: makes the assignment problem of some candidates.
        round_s: time between decisions about running jobs, seconds.
        limits: of the search.
        waiting_cost: of a job that must run, where not all of these can.
        prepared: a job as the policy sees it; None: as it is.
        growth: how many GPUs jobs may have that have run on few.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    problem_of: Callable[[Candidates], Problem]
    round_s: float
    limits: SearchLimits
    waiting_cost: float
    prepared: Callable[[AdaptiveJob], AdaptiveJob] | None = None
    growth: Growth = Growth()
    reserved_gpus: Mapping[str, int] = field(default_factory=dict)


def plan_by(snapshot: Snapshot, rules: AdaptiveRules) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    jobs = adaptive_jobs(snapshot, rules.round_s)
    again_s = next_round_s(snapshot.now_s, rules.round_s)
    if not jobs:
        return Plan(again_s=again_s if snapshot.profiles else None)
    candidates = candidates_by(snapshot, jobs, rules)
    problem = rules.problem_of(candidates)
    found = assigned(problem, rules)
    return plan_of(snapshot, decided(snapshot, candidates, problem, found), again_s=again_s)


def candidates_by(
    snapshot: Snapshot, jobs: Sequence[AdaptiveJob], rules: AdaptiveRules
) -> Candidates:
    """Return the configurations that jobs of a snapshot may have."""
    if rules.prepared is not None:
        jobs = [rules.prepared(each) for each in jobs]
    held = [each.allocation for each in jobs if each.allocation]
    pool = pool_of(snapshot.nodes, held, rules.reserved_gpus)
    return candidates_of(jobs, pool, snapshot.nodes, rules.growth)


def assigned(problem: Problem, rules: AdaptiveRules) -> Assignment:
    """Return the best assignment; jobs that must run are held to it only if they all can."""
    try:
        return solve(problem, rules.limits)
    except AssignmentError:
        if np.all(np.isfinite(problem.waiting_cost)):
            raise
    finite = np.isfinite(problem.waiting_cost)
    costs = np.where(finite, problem.waiting_cost, rules.waiting_cost)
    return solve(structs.replace(problem, waiting_cost=costs), rules.limits)


def decided(
    snapshot: Snapshot, candidates: Candidates, problem: Problem, found: Assignment
) -> Decided:
    """Return what an assignment decides about the jobs of a snapshot."""
    waits = np.array([not each.allocation for each in candidates.jobs], dtype=bool)
    chosen = in_order(problem, found.configuration, waits)
    return Decided(
        candidates=candidates,
        chosen=chosen,
        gain=_gains(candidates, problem, chosen),
        waiting=TrainingJobs.of(snapshot).waiting,
    )


def _gains(candidates: Candidates, problem: Problem, chosen: Ints) -> Floats:
    """Return by how much each job's cost falls, shape ``(J,)``."""
    before = np.where(np.isfinite(problem.waiting_cost), problem.waiting_cost, 0.0)
    after = before.copy()
    finite = problem.job
    taken = chosen[finite] == problem.configuration
    after[finite[taken]] = problem.cost[taken]
    now = np.full(len(candidates.jobs), -1, dtype=np.int64)
    now[candidates.job[candidates.current]] = candidates.configuration[candidates.current]
    has = now[finite] == problem.configuration
    before[finite[has]] = problem.cost[has]
    gains: Floats = before - after
    return gains
