"""One round of Gavel over a snapshot."""

from typing import Final

import highspy
import numpy as np

from baselines.gavel import Settings
from gschedd.allocation.adaptive.candidates import Candidates, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.allocation.adaptive.deciding import adaptive_jobs, next_round_s
from gschedd.allocation.adaptive.plans import Decided, plan_of
from gschedd.allocation.adaptive.prices import quiet_highs
from gschedd.allocation.adaptive.problem import Floats, Ints
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import TrainingProfile

#: Shares below this are none: what the solver leaves by its tolerance.
LEAST_SHARE: Final = 1e-5


def plan_round(snapshot: Snapshot, settings: Settings) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    again_s = next_round_s(snapshot.now_s, settings.round_s)
    jobs = adaptive_jobs(snapshot, settings.round_s)
    if not jobs:
        return Plan(again_s=again_s if snapshot.profiles else None)
    pool = pool_of(snapshot.nodes, [each.allocation for each in jobs if each.allocation])
    candidates = candidates_of(jobs, pool, snapshot.nodes)
    columns = least_columns(candidates)
    share = shares(candidates, columns)
    had_s = np.array(
        [
            _had_s(snapshot.profiles[each.job], candidates.goodput[candidates.job == number])
            for number, each in enumerate(jobs)
        ]
    )
    priority = share / (had_s[candidates.job[columns]] + settings.round_s / 2)
    chosen, gain = _dealt(candidates, columns, priority)
    decided = Decided(
        candidates=candidates,
        chosen=chosen,
        gain=gain,
        waiting=TrainingJobs.of(snapshot).waiting,
    )
    return plan_of(snapshot, decided, again_s=again_s)


def least_columns(candidates: Candidates) -> Ints:
    """Return the column with the fewest GPUs of each job on each type, in order."""
    table = candidates.configurations
    of_type = np.searchsorted(table.starts, candidates.configuration, side="right")
    order = np.lexsort((table.gpus[candidates.configuration], of_type, candidates.job))
    keys = np.stack([candidates.job[order], of_type[order]])
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    found: Ints = order[is_first]
    return found


def shares(candidates: Candidates, columns: Ints) -> Floats:
    """Return which part of its time each job is to have each of some columns, 0 to 1.

    The sum of the steps a second is largest, no job has more than its time, and on average no type
    has more GPUs in use than there are.
    """
    table, width = candidates.configurations, len(columns)
    if not width:
        return np.zeros(0)
    configuration, job = candidates.configuration[columns], candidates.job[columns]
    samples = candidates.batch_per_gpu[columns] * (candidates.accumulation[columns] + 1)
    samples = np.maximum(samples * table.gpus[configuration], 1)
    usage = table.usage[:, configuration]
    rows = len(usage)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = width, rows + len(candidates.jobs)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = candidates.goodput[columns] / samples
    lp.col_lower_, lp.col_upper_ = np.zeros(width), np.ones(width)
    lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
    lp.row_upper_ = np.concatenate([table.capacity, np.ones(len(candidates.jobs))])
    resource, column = np.nonzero(usage)
    of_column = np.concatenate([column, np.arange(width)])
    order = np.argsort(of_column, kind="stable")
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(of_column, minlength=width))])
    lp.a_matrix_.index_ = np.concatenate([resource, rows + job])[order]
    lp.a_matrix_.value_ = np.concatenate([usage[resource, column], np.ones(width)])[order]
    highs = quiet_highs()
    highs.passModel(lp)
    highs.run()
    found = np.array(highs.getSolution().col_value)
    return np.where(found > LEAST_SHARE, np.clip(found, 0.0, 1.0), 0.0)


def _had_s(profile: TrainingProfile, goodput: Floats) -> float:
    """Return for how long a job ran, by what it has done, seconds."""
    fastest = float(goodput.max(initial=0.0))
    return max(0.0, profile.total_work - profile.work) / fastest if fastest > 0 else 0.0


def _dealt(candidates: Candidates, columns: Ints, priority: Floats) -> tuple[Ints, Floats]:
    """Return the configuration of each job, and its priority: each the first that fits.

    Jobs without a share get what is left. Of equal ones those that run go first, then the oldest.
    """
    table = candidates.configurations
    chosen = np.full(len(candidates.jobs), -1, dtype=np.int64)
    gain = np.zeros(len(candidates.jobs))
    left = table.capacity.copy()
    job = candidates.job[columns]
    order = np.lexsort((-candidates.goodput[columns], job, ~candidates.current[columns], -priority))
    for at in order:
        usage = table.usage[:, candidates.configuration[columns[at]]]
        if chosen[job[at]] < 0 and np.all(usage <= left):
            left -= usage
            chosen[job[at]] = candidates.configuration[columns[at]]
            gain[job[at]] = priority[at]
    return chosen, gain
