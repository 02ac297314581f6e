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
from gschedd.allocation.adaptive.problem import Floats, Problem
from gschedd.plan.training import AdaptiveProfile
from gschedd.policies.training.sia import Settings


def problem_of(candidates: Candidates, settings: Settings) -> Problem:
    """Return the assignment problem; configurations with an infinite cost are left out."""
    cost = costs(candidates, settings)
    finite = np.isfinite(cost)
    must = np.array([each.must_run for each in candidates.jobs], dtype=bool)
    able = np.zeros(len(must), dtype=bool)
    able[candidates.job[finite]] = True
    table = candidates.configurations
    return Problem(
        waiting_cost=np.where(must & able, np.inf, settings.lambda_n),
        usage=table.usage,
        capacity=table.capacity,
        job=candidates.job[finite],
        configuration=candidates.configuration[finite],
        cost=cost[finite],
        resources=table.resources,
    )


def costs(candidates: Candidates, settings: Settings) -> Floats:
    """Return what each column costs, less being better; shape ``(K,)``."""
    if not len(candidates.job):
        return np.zeros(0)
    profiles = [each.profile for each in candidates.jobs]
    least = np.full(len(profiles), np.inf)
    np.minimum.at(least, candidates.job, candidates.goodput)
    minimum = np.array([each.gpus_min for each in profiles], dtype=float)
    relative = candidates.goodput * (minimum / least)[candidates.job]
    if settings.restart_factor:
        has = np.zeros(len(profiles), dtype=bool)
        has[candidates.job[candidates.current]] = True
        factors = np.where(has, [restart_factor(each) for each in profiles], 1.0)
        relative = relative * np.where(candidates.current, 1.0, factors[candidates.job])
    with np.errstate(divide="ignore"):
        power: Floats = relative**settings.p
    return power if settings.p < 0 else -power


def restart_factor(profile: AdaptiveProfile) -> float:
    """Return which part of its time a job would have run, had it restarted once more; 0 to 1."""
    if profile.age_s < profile.restart_s:
        return 1.0
    ran_s = profile.age_s - profile.restarts * profile.restart_s
    return max(ran_s, 0.0) / max(profile.age_s + profile.restart_s, 1e-9)
