"""One round of Pollux over a snapshot."""

import math
from typing import Final

import numpy as np

from baselines.pollux import Settings
from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.candidates import AdaptiveJob, Candidates, candidates_of
from gschedd.allocation.adaptive.cluster import Configurations, pool_of
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import adaptive_jobs, next_round_s
from gschedd.allocation.adaptive.plans import Decided, plan_of
from gschedd.allocation.adaptive.problem import Floats, Problem, in_order
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import AdaptiveProfile

#: Speedup that is added to all, so that the mean of a job without GPUs is defined.
LEAST: Final = 1e-3


def plan_round(snapshot: Snapshot, settings: Settings) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    again_s = next_round_s(snapshot.now_s, settings.round_s)
    jobs = adaptive_jobs(snapshot, settings.round_s)
    if not jobs:
        return Plan(again_s=again_s if snapshot.profiles else None)
    pool = pool_of(snapshot.nodes, [each.allocation for each in jobs if each.allocation])
    candidates = candidates_of(jobs, pool, snapshot.nodes)
    problem = problem_of(candidates, settings)
    found = solve(problem, SearchLimits(gap=settings.gap, time_s=settings.time_limit_s))
    waits = np.array([not each.allocation for each in jobs], dtype=bool)
    decided = Decided(
        candidates=candidates,
        chosen=in_order(problem, found.configuration, waits),
        gain=np.zeros(len(jobs)),
        waiting=TrainingJobs.of(snapshot).waiting,
    )
    return plan_of(snapshot, decided, again_s=again_s)


def problem_of(candidates: Candidates, settings: Settings) -> Problem:
    """Return the assignment whose least cost is the largest power mean."""
    table = candidates.configurations
    return Problem(
        waiting_cost=np.full(len(candidates.jobs), LEAST**settings.p),
        usage=table.usage,
        capacity=table.capacity,
        job=candidates.job,
        configuration=candidates.configuration,
        cost=(speedups(candidates, settings) + LEAST) ** settings.p,
        resources=table.resources,
    )


def speedups(candidates: Candidates, settings: Settings) -> Floats:
    """Return the speedup of each column, less the cost of a restart; shape ``(K,)``."""
    table = candidates.configurations
    gpus = sum(int(table.gpus[start:end].max(initial=0)) for start, end in _spans(table))
    share = max(1, math.ceil(gpus / max(1, len(candidates.jobs))))
    found = np.zeros(len(candidates.job))
    for number, each in enumerate(candidates.jobs):
        columns = np.flatnonzero(candidates.job == number)
        if not len(columns):
            continue
        ids = candidates.configuration[columns]
        nodes = np.append(table.nodes[ids], math.ceil(share / _largest_node(table)))
        goodput = _of_any_type(each, table, nodes, np.append(table.gpus[ids], share))
        fair = goodput[-1] if goodput[-1] > 0 else goodput[:-1].max(initial=LEAST)
        current = candidates.current[columns]
        factor = restart_factor(each.profile, settings.restart_s) if current.any() else 1.0
        found[columns] = goodput[:-1] / fair * np.where(current, 1.0, factor)
    return found


def restart_factor(profile: AdaptiveProfile, restart_s: float) -> float:
    """Return which part of its time a job would have run, had it restarted once more; 0 to 1."""
    ran_s = max(profile.age_s - profile.restarts * restart_s, 0.0)
    return ran_s / (profile.age_s + restart_s)


def _of_any_type(job: AdaptiveJob, table: Configurations, nodes: Floats, gpus: Floats) -> Floats:
    """Return the mean goodput of the types on some configurations."""
    types = job.profile.goodput.types() & set(table.types) or set(table.types)
    whole = nodes.astype(np.int64), gpus.astype(np.int64)
    each = [job.profile.goodput.best(name, *whole).goodput for name in sorted(types)]
    mean: Floats = np.mean(each, axis=0)
    return mean


def _spans(table: Configurations) -> list[tuple[int, int]]:
    return [(int(table.starts[at]), int(table.starts[at + 1])) for at in range(len(table.types))]


def _largest_node(table: Configurations) -> int:
    return int(table.gpus[table.nodes == 1].max(initial=1))
