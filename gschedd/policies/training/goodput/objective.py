"""The objective of the policy ``goodput``: what each configuration costs each job.

With goodput G of job i on configuration j of g GPUs, of at least N_i GPUs, h_i the most on which it
has run, L_i its work left, S_i the time without progress of a restart, r_i as under ``sia``::

    G_ij <- G_ij / max(1, g_j / h_i)^caution
    G_ij <- r_i G_ij / (1 + S_i G_ij / L_i)       where j is not what i has, unless i never ran
    x_ij = G_ij / max_j G_ij                      speed, of the best that the job may have now
    T_i  = L_i / max_j G_ij                       predicted time left, seconds
    w_i  = (median T / T_i)^short_first           within 1 / weight_bound and weight_bound
    w_i <- w_i (1 + age_i in hours)^ageing
    maximise the sum of w_i x_ij^p over what is chosen,
             less lambda max(1, w_i) for each job without any

x is the progress that a job makes in a second, in seconds of its run time where it is fastest: so a
unit of x is worth a second of completion time to any job. With p below 1 the first GPUs of a job
are worth more than further ones. The best goodput is that before restarts are paid for.
L / (L / G + S) is the mean goodput over the work that is left, with the restart in it. Jobs whose
work is not known weigh 1, and pay for a restart by r alone.
"""

from functools import partial
from typing import Final

import numpy as np
from msgspec import structs

from gsched.config.policies import GoodputConfig
from gschedd.allocation.adaptive.candidates import AdaptiveJob, Candidates, Growth
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import AdaptiveRules, plan_by
from gschedd.allocation.adaptive.objective import (
    problem_with,
    restart_factor,
    restart_factors,
)
from gschedd.allocation.adaptive.problem import Floats, Problem
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import GradientNoise
from gschedd.plan.snapshot import Plan, Snapshot


def plan_round(snapshot: Snapshot, settings: GoodputConfig) -> Plan:
    """Decide about all adaptive jobs at a round, and about those that wait in between."""
    return plan_by(snapshot, rules(settings))


def rules(settings: GoodputConfig) -> AdaptiveRules:
    """Return the rules of a round."""
    return AdaptiveRules(
        problem_of=partial(problem_of, settings=settings),
        prepared=partial(with_noise, noise=settings.start_noise),
        round_s=settings.round_s,
        limits=SearchLimits(gap=settings.gap, time_s=settings.time_limit_s),
        waiting_cost=settings.lambda_n,
        growth=Growth(first=settings.start_gpus),
        reserved_gpus=settings.reserved_gpus,
    )


def with_noise(job: AdaptiveJob, noise: float) -> AdaptiveJob:
    """Return a job with an assumed gradient noise scale where none was measured.

    Without any, the best batch would be the initial one, with which hardly any job gains from more
    GPUs.

    Args:
        noise: in initial batches.
    """
    model = job.profile.goodput
    if not isinstance(model, GoodputModel) or model.noise != GradientNoise():
        return job
    assumed = structs.replace(model, noise=GradientNoise(square_norm=1.0, variance=noise))
    return structs.replace(job, profile=structs.replace(job.profile, goodput=assumed))


#: Age by which a weight grows by 2^ageing, seconds.
AGE_S: Final = 3600.0


def problem_of(candidates: Candidates, settings: GoodputConfig) -> Problem:
    """Return the assignment problem; jobs cost what they gain, negated."""
    goodput = expected(candidates, settings)
    best = best_of(candidates, goodput)
    weight = weights(candidates, best, settings)
    speed = restarted(candidates, goodput) / best[candidates.job]
    waiting_cost = settings.lambda_n * np.maximum(weight, 1.0)
    return problem_with(candidates, -(speed**settings.p) * weight[candidates.job], waiting_cost)


def best_of(candidates: Candidates, goodput: Floats) -> Floats:
    """Return the best goodput of each job, 0 where it has no configuration; shape ``(J,)``."""
    best = np.zeros(len(candidates.jobs))
    np.maximum.at(best, candidates.job, goodput)
    return best


def expected(candidates: Candidates, settings: GoodputConfig) -> Floats:
    """Return goodputs, less on more GPUs than a job has run on; shape ``(K,)``."""
    known = np.array(
        [max(each.profile.gpus_reached, each.profile.gpus_min) for each in candidates.jobs],
        dtype=float,
    )
    gpus = candidates.configurations.gpus[candidates.configuration]
    unseen = np.maximum(gpus / known[candidates.job], 1.0)
    reduced: Floats = candidates.goodput / unseen**settings.caution
    return reduced


def restarted(candidates: Candidates, goodput: Floats) -> Floats:
    """Return goodputs, less where a job would be restarted, or was preempted; shape ``(K,)``."""
    profiles = [each.profile for each in candidates.jobs]
    factor = np.array([restart_factor(each) for each in profiles])
    restart_s = np.array([each.restart_s for each in profiles])
    time_left_s = left(candidates)[candidates.job] / goodput
    with np.errstate(divide="ignore"):
        paid = 1.0 / (1.0 + restart_s[candidates.job] / time_left_s)
    paid = np.where(np.isfinite(time_left_s), paid, 1.0) * factor[candidates.job]
    result: Floats = goodput * restart_factors(candidates, paid)
    return result


def weights(candidates: Candidates, best: Floats, settings: GoodputConfig) -> Floats:
    """Return the weight of each job, more for a short and for an old one; shape ``(J,)``.

    A job whose time left is not known is neither short nor long.

    Args:
        best: goodput of each job, shape ``(J,)``.
    """
    work = left(candidates)
    known = np.isfinite(work) & (best > 0)
    age_s = np.array([each.profile.age_s for each in candidates.jobs])
    weight = (1.0 + age_s / AGE_S) ** settings.ageing
    if not known.any():
        return weight
    time_left_s = np.maximum(work[known] / best[known], 1.0)
    ratio = np.median(time_left_s) / time_left_s
    bound = settings.weight_bound
    weight[known] *= np.clip(ratio**settings.short_first, 1.0 / bound, bound)
    return weight


def left(candidates: Candidates) -> Floats:
    """Return the work that each job has left, NaN where it is not known; shape ``(J,)``."""
    work = (each.profile.left for each in candidates.jobs)
    return np.array([np.nan if each is None else each for each in work], dtype=float)
