"""Sia: each round, the GPUs and batch of every adaptive job that give the best goodput in all.

Each job has a goodput on each configuration (GPUs of one type). The goodputs of a job are divided
by the least of them, so that jobs count alike; all but the current one are reduced by the cost of a
restart. A power of them is a cost, and the assignment of configurations to jobs with the least sum
of costs is carried out. Between rounds, waiting jobs start on free GPUs, and nothing moves.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023, from its public description. Ours differs in this: the cost of a restart
does not reduce the goodputs of jobs without GPUs, as these restart anyway; jobs start between
rounds where GPUs are free; nodes may be partly taken by jobs of other policies.
"""

from functools import partial

from gsched.config.policies import SiaConfig
from gschedd.plan.snapshot import Plan, Policy, Snapshot


def plan(snapshot: Snapshot) -> Plan:
    """Plan with the published settings."""
    return _plan(snapshot, SiaConfig())


def sia(settings: SiaConfig) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: SiaConfig) -> Plan:
    from gschedd.policies.training.sia.objective import plan_round  # needs NumPy and HiGHS

    return plan_round(snapshot, settings)
