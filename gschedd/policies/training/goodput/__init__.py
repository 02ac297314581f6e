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

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from gschedd.plan.snapshot import Plan, Policy, Snapshot

_Rule = tuple[Callable[[float], bool], str]
_POSITIVE: Final[_Rule] = (lambda value: value > 0, "more than 0")
_NOT_NEGATIVE: Final[_Rule] = (lambda value: value >= 0, "at least 0")
_FROM_ONE: Final[_Rule] = (lambda value: value >= 1, "at least 1")
#: What each setting must be.
_RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        "round_s": _POSITIVE,
        "p": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
        "lambda_n": _NOT_NEGATIVE,
        "start_gpus": _FROM_ONE,
        "caution": _NOT_NEGATIVE,
        "start_noise": _NOT_NEGATIVE,
        "short_first": _NOT_NEGATIVE,
        "weight_bound": _FROM_ONE,
        "ageing": _NOT_NEGATIVE,
        "gap": (lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        "time_limit_s": _POSITIVE,
    }
)


class Settings(Struct, frozen=True, kw_only=True):
    """What may be chosen.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the speed of a job, of its best: more than 0, and 1 at most.
        lambda_n: cost of a job that gets no GPUs, times its weight if that is more than 1.
        start_gpus: GPUs on which a job may start whose step times are known, or its minimum.
        caution: goodput on n times the most GPUs on which a job has run is divided by n^caution.
        start_noise: gradient noise scale of a job that has measured none, in initial batches.
        short_first: weight of a job is (median / its time left)^short_first.
        weight_bound: that weight is no larger, nor smaller than one over it.
        ageing: a job counts (1 + its age in hours)^ageing times that weight.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: float = 60.0
    p: float = 0.5
    lambda_n: float = 0.1
    start_gpus: int = 8
    caution: float = 0.1
    start_noise: float = 4.0
    short_first: float = 0.2
    weight_bound: float = 1.5
    ageing: float = 0.3
    gap: float = 1e-3
    time_limit_s: float = 5.0
    reserved_gpus: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError where a setting is out of its range."""
        for name, (good, rule) in _RULES.items():
            value = getattr(self, name)
            if not good(value):
                raise ValueError(f"{name} {value:g} must be {rule}")
        for gpu_type, count in self.reserved_gpus.items():
            if count < 0:
                raise ValueError(f"reserved_gpus: {count} of type {gpu_type}; at least 0")


def plan(snapshot: Snapshot) -> Plan:
    """Plan with the default settings."""
    return _plan(snapshot, Settings())


def goodput(settings: Settings) -> Policy:
    """Return the policy with other settings."""
    return partial(_plan, settings=settings)


def _plan(snapshot: Snapshot, settings: Settings) -> Plan:
    from gschedd.policies.training.goodput.rounds import plan_round  # needs NumPy and HiGHS

    return plan_round(snapshot, settings)
