"""The objective of Sia: what each configuration costs each job.

With goodput G of job i on configuration j, of at least N_i GPUs, age T, n restarts of S seconds::

    G_ij <- N_i G_ij / min_j G_ij
    G_ij <- r_i G_ij         where j is not what i has;  r_i = max(T - n S, 0) / (T + S), 1 if T < S
    p < 0: minimise the sum of G_ij^p over what is chosen, and lambda for each job without any
    p > 0: maximise the sum of G_ij^p over what is chosen, less lambda for each job without any

Source: Jayaram Subramanya et al., SOSP 2023.
"""

import numpy as np

from gschedd.allocation.adaptive.candidates import Candidates
from gschedd.allocation.adaptive.objective import (
    normalised,
    problem_with,
    restart_factor,
    restarting,
)
from gschedd.allocation.adaptive.problem import Floats, Problem
from gschedd.policies.training.sia import Settings


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
        factors = np.array([restart_factor(each.profile) for each in candidates.jobs])
        relative = relative * np.where(restarting(candidates), factors[candidates.job], 1.0)
    with np.errstate(divide="ignore"):
        power: Floats = relative**settings.p
    return power if settings.p < 0 else -power
