"""One round of Sia over a snapshot."""

from functools import partial

from gsched.config.policies import SiaConfig
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import AdaptiveRules, plan_by
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.training.sia.objective import problem_of


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
