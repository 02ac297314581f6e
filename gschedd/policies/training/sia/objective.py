"""The objective of Sia: what each configuration costs each job.

With goodput G of job i on configuration j, of at least N_i GPUs, age T, n restarts of S seconds::

    G_ij <- N_i G_ij / min_j G_ij
    G_ij <- r_i G_ij         where j is not what i has;  r_i = max(T - n S, 0) / (T + S), and 1 if
                             T < S or i has never run
    p < 0: minimise the sum of G_ij^p over what is chosen, and lambda for each job without any
    p > 0: maximise the sum of G_ij^p over what is chosen, less lambda for each job without any

Source: Jayaram Subramanya et al., SOSP 2023.
"""

from typing import Final

import numpy as np

from gschedd.allocation.adaptive.candidates import Candidates
from gschedd.allocation.adaptive.objective import (
    holding,
    normalised,
    problem_with,
    restart_factor,
    restarting,
)
from gschedd.allocation.adaptive.problem import Floats, Problem
from gschedd.policies.training.sia import Settings

#: The best configuration of a job that waits costs at most this part of lambda.
WAITS_LESS: Final = 0.99


def problem_of(candidates: Candidates, settings: Settings) -> Problem:
    """Return the assignment problem; configurations with an infinite cost are left out."""
    waiting_cost = np.full(len(candidates.jobs), settings.lambda_n)
    return problem_with(candidates, costs(candidates, settings), waiting_cost)


def costs(candidates: Candidates, settings: Settings) -> Floats:
    """Return what each column costs, less being better; shape ``(K,)``."""
    if not len(candidates.job):
        return np.zeros(0)
    relative = normalised(candidates, candidates.goodput)
    if settings.restart_factor:
        relative = relative * restart_factors(candidates, relative, settings)
    with np.errstate(divide="ignore"):
        power: Floats = relative**settings.p
    return power if settings.p < 0 else -power


def restart_factors(candidates: Candidates, relative: Floats, settings: Settings) -> Floats:
    """Return by what a restart reduces the goodput of each column, shape ``(K,)``.

    A job that was preempted pays for its next start, too, or else jobs would take turns on the same
    GPUs. But it never pays so much that it would wait beside idle GPUs.
    """
    factors = np.array([restart_factor(each.profile) for each in candidates.jobs])
    has_run = np.array([each.profile.gpus_reached > 0 for each in candidates.jobs], dtype=bool)
    best = np.zeros(len(candidates.jobs))
    np.maximum.at(best, candidates.job, relative)
    if settings.p < 0:
        least = (WAITS_LESS * settings.lambda_n) ** (1.0 / settings.p) / np.maximum(best, 1e-300)
        preempted = np.where(has_run, np.maximum(factors, np.minimum(least, 1.0)), 1.0)
    else:
        preempted = np.where(has_run, factors, 1.0)
    changed = restarting(candidates)
    waits = ~holding(candidates)[candidates.job]
    found: Floats = np.where(changed, factors[candidates.job], 1.0)
    return np.where(waits, preempted[candidates.job], found)
