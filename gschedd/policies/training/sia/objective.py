"""The objective of Sia: what each configuration costs each job.

With goodput G of job i on configuration j, of at least N_i GPUs, age T, n restarts of S seconds::

    G_ij <- N_i G_ij / min_j G_ij
    G_ij <- r_i G_ij         where j is not what i has;  r_i = max(T - n S, 0) / (T + S), and 1 if
                             T < S or i has never run
    p < 0: minimise the sum of G_ij^p over what is chosen, and lambda for each job without any
    p > 0: maximise the sum of G_ij^p over what is chosen, less lambda for each job without any

Source: Jayaram Subramanya et al., SOSP 2023.
"""

from functools import partial
from typing import Final

import numpy as np

from gsched.config.policies import SiaConfig
from gschedd.allocation.adaptive.candidates import Candidates
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import AdaptiveRules, plan_by
from gschedd.allocation.adaptive.objective import (
    normalised,
    problem_with,
    restart_factor,
    restart_factors,
)
from gschedd.allocation.adaptive.problem import Floats, Problem
from gschedd.plan.snapshot import Plan, Snapshot


def plan_round(snapshot: Snapshot, settings: SiaConfig) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    return plan_by(snapshot, rules(settings))


def rules(settings: SiaConfig) -> AdaptiveRules:
    """Return the rules of a round."""
    return AdaptiveRules(
        problem_of=partial(problem_of, settings=settings),
        round_s=settings.round_s,
        limits=SearchLimits(gap=settings.gap, time_s=settings.time_limit_s),
        waiting_cost=settings.lambda_n,
        reserved_gpus=settings.reserved_gpus,
    )


#: The best configuration of a job that waits costs at most this part of lambda.
WAITS_LESS: Final = 0.99


def problem_of(candidates: Candidates, settings: SiaConfig) -> Problem:
    """Return the assignment problem; configurations with an infinite cost are left out."""
    waiting_cost = np.full(len(candidates.jobs), settings.lambda_n)
    return problem_with(candidates, costs(candidates, settings), waiting_cost)


def costs(candidates: Candidates, settings: SiaConfig) -> Floats:
    """Return what each column costs, less being better; shape ``(K,)``."""
    if not len(candidates.job):
        return np.zeros(0)
    relative = normalised(candidates, candidates.goodput)
    if settings.restart_factor:
        relative = relative * paid_for(candidates, relative, settings)
    with np.errstate(divide="ignore"):
        power: Floats = relative**settings.p
    return power if settings.p < 0 else -power


def paid_for(candidates: Candidates, relative: Floats, settings: SiaConfig) -> Floats:
    """Return by what restarts reduce the goodput of each column, shape ``(K,)``."""
    factors = np.array([restart_factor(each.profile) for each in candidates.jobs])
    least = None
    if settings.p < 0:
        best = np.zeros(len(candidates.jobs))
        np.maximum.at(best, candidates.job, relative)
        least = (WAITS_LESS * settings.lambda_n) ** (1.0 / settings.p) / np.maximum(best, 1e-300)
    return restart_factors(candidates, factors[candidates.job], least)
