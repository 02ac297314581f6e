"""What objectives of policies for adaptive jobs have in common: normalised goodputs, restarts.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023.
"""

import numpy as np

from gschedd.allocation.adaptive.candidates import Candidates
from gschedd.allocation.adaptive.problem import Flags, Floats, Problem
from gschedd.plan.training import AdaptiveProfile


def normalised(candidates: Candidates, goodput: Floats) -> Floats:
    """Return goodputs by the least that each job is known to have, times its minimum of GPUs.

    Args:
        goodput: of each column, shape ``(K,)``; the least is that of the candidates themselves.
    """
    profiles = [each.profile for each in candidates.jobs]
    least = np.full(len(profiles), np.inf)
    np.minimum.at(least, candidates.job, candidates.goodput)
    minimum = np.array([each.gpus_min for each in profiles], dtype=float)
    relative: Floats = goodput * (minimum / least)[candidates.job]
    return relative


def holding(candidates: Candidates) -> Flags:
    """Return which jobs have GPUs, shape ``(J,)``."""
    has = np.zeros(len(candidates.jobs), dtype=bool)
    has[candidates.job[candidates.current]] = True
    return has


def restarting(candidates: Candidates) -> Flags:
    """Return which columns would restart a job that has GPUs, shape ``(K,)``."""
    changed: Flags = holding(candidates)[candidates.job] & ~candidates.current
    return changed


def preempted(candidates: Candidates) -> Flags:
    """Return which jobs have run and have no GPUs, shape ``(J,)``."""
    has_run = np.array([each.profile.gpus_reached > 0 for each in candidates.jobs], dtype=bool)
    found: Flags = has_run & ~holding(candidates)
    return found


def restart_factors(candidates: Candidates, paid: Floats, least: Floats | None = None) -> Floats:
    """Return by what a restart reduces the goodput of each column, shape ``(K,)``.

    A job that was preempted pays for its next start like one that has GPUs and would change them,
    or else jobs would take turns on the same GPUs. The first start of a job is no restart.

    Args:
        paid: which part of its goodput a job has left after a restart there, shape ``(K,)``.
        least: what is left at least of the goodput of a preempted job, shape ``(J,)``, so that it
            does not wait beside idle GPUs; None: any objective prefers running to waiting.
    """
    waiting = paid if least is None else np.maximum(paid, np.minimum(least, 1.0)[candidates.job])
    found: Floats = np.where(restarting(candidates), paid, 1.0)
    return np.where(preempted(candidates)[candidates.job], waiting, found)


def restart_factor(profile: AdaptiveProfile) -> float:
    """Return which part of its time a job would have run, had it restarted once more; 0 to 1."""
    if profile.age_s < profile.restart_s:
        return 1.0
    ran_s = profile.age_s - profile.restarts * profile.restart_s
    return max(ran_s, 0.0) / max(profile.age_s + profile.restart_s, 1e-9)


def problem_with(candidates: Candidates, cost: Floats, waiting_cost: Floats) -> Problem:
    """Return the assignment problem; columns with an infinite cost are left out.

    A job that must not wait has to get a configuration if it has any.

    Args:
        cost: of each column, shape ``(K,)``.
        waiting_cost: of each job without a configuration, shape ``(J,)``.
    """
    finite = np.isfinite(cost)
    must = np.array([each.must_run for each in candidates.jobs], dtype=bool)
    able = np.zeros(len(must), dtype=bool)
    able[candidates.job[finite]] = True
    table = candidates.configurations
    return Problem(
        waiting_cost=np.where(must & able, np.inf, waiting_cost),
        usage=table.usage,
        capacity=table.capacity,
        job=candidates.job[finite],
        configuration=candidates.configuration[finite],
        cost=cost[finite],
        resources=table.resources,
    )
