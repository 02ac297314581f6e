"""Goodput: Sia's assignment with larger first shares, predicted remaining work and bounded weights.

As under ``sia``, each round gives every adaptive job the configuration (GPUs of one type) and batch
for which the sum over all jobs is best. Different are

* the objective: the speed of each job counts as a part of the best that the job may have, not as a
  multiple of the worst;
* the start: a job whose step times are known starts on up to ``start_gpus`` GPUs, not on its
  minimum, so that short jobs are not restarted at each doubling;
* what is not known yet: goodput on more GPUs than a job has run on is reduced, and its gradient
  noise is assumed until it was measured;
* restarts: a change must pay off within the work that is left;
* weights: jobs with little predicted time left count more, those with much count less, both within
  a bound; and the older a job, the more it counts, so that no long job starves.

Source of the assignment: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized
ML-cluster scheduling", SOSP 2023. That shorter jobs should get more GPUs, but not all of them,
where speedup is sublinear: Berg et al., "heSRPT: Parallel scheduling to minimize mean slowdown",
Performance Evaluation 144, 2020.
"""

from functools import partial

from gsched.config.policies import GoodputConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot


def plan(snapshot: Snapshot) -> Plan:
    """Plan with the default settings."""
    return _plan(snapshot, GoodputConfig())


def goodput(settings: GoodputConfig) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: GoodputConfig) -> Plan:
    from gschedd.policies.training.goodput.objective import plan_round  # needs NumPy and HiGHS

    return plan_round(snapshot, settings)
