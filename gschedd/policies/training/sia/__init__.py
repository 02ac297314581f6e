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

from msgspec import Struct, field

from gschedd.plan.snapshot import Plan, Policy, Snapshot


class Settings(Struct, frozen=True, kw_only=True):
    """What may be chosen.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the goodputs: below 0 favours jobs with little, above 0 the sum; not 0.
        lambda_n: cost of a job that gets no GPUs.
        restart_factor: whether the cost of a restart counts.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: float = 60.0
    p: float = -0.5
    lambda_n: float = 1.1
    restart_factor: bool = True
    gap: float = 1e-5
    time_limit_s: float = 5.0
    reserved_gpus: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError where a setting is out of its range."""
        if not self.round_s > 0:
            raise ValueError(f"round_s {self.round_s:g} must be more than 0")
        if not -10 <= self.p <= 10 or self.p == 0:
            raise ValueError(f"p {self.p:g} must be -10 to 10, and not 0")
        if not self.lambda_n >= 0:
            raise ValueError(f"lambda_n {self.lambda_n:g} must be at least 0")
        if not 0 <= self.gap < 1:
            raise ValueError(f"gap {self.gap:g} must be at least 0 and less than 1")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s {self.time_limit_s:g} must be more than 0")
        for gpu_type, count in self.reserved_gpus.items():
            if count < 0:
                raise ValueError(f"reserved_gpus: {count} of type {gpu_type}; at least 0")


def plan(snapshot: Snapshot) -> Plan:
    """Plan with the published settings."""
    return _plan(snapshot, Settings())


def sia(settings: Settings) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    from gschedd.policies.training.sia.rounds import plan_round  # needs NumPy and HiGHS

    return plan_round(snapshot, settings)
