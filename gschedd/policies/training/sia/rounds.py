"""One round of Sia over a snapshot."""

import numpy as np
from msgspec import structs

from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.candidates import Candidates, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.allocation.adaptive.core import Limits
from gschedd.allocation.adaptive.plans import Decided, plan_of
from gschedd.allocation.adaptive.problem import (
    Assignment,
    AssignmentError,
    Floats,
    Ints,
    Problem,
    in_order,
)
from gschedd.allocation.adaptive.rounds import adaptive_jobs, is_round, next_round_s
from gschedd.allocation.running import Trainings
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.training.sia import Settings
from gschedd.policies.training.sia.objective import problem_of


def plan_round(snapshot: Snapshot, settings: Settings) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    jobs = adaptive_jobs(snapshot, all_of_them=is_round(snapshot, settings.round_s))
    again_s = next_round_s(snapshot.now_s, settings.round_s)
    if not jobs:
        return Plan(again_s=again_s if snapshot.profiles else None)
    held = [each.allocation for each in jobs if each.allocation]
    pool = pool_of(snapshot.nodes, held, settings.reserved_gpus)
    candidates = candidates_of(jobs, pool, snapshot.nodes)
    problem = problem_of(candidates, settings)
    found = assigned(problem, settings)
    return plan_of(snapshot, decided(snapshot, candidates, problem, found), again_s=again_s)


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
        waiting=Trainings.of(snapshot).waiting,
    )


def assigned(problem: Problem, settings: Settings) -> Assignment:
    """Return the best assignment; jobs that must run are held to it only if they all can."""
    limits = Limits(gap=settings.gap, time_s=settings.time_limit_s)
    try:
        return solve(problem, limits)
    except AssignmentError:
        if np.all(np.isfinite(problem.waiting_cost)):
            raise
    costs = np.where(np.isfinite(problem.waiting_cost), problem.waiting_cost, settings.lambda_n)
    return solve(structs.replace(problem, waiting_cost=costs), limits)


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
