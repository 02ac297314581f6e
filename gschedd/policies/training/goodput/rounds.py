"""One round of the policy ``goodput`` over a snapshot."""

from functools import partial

from msgspec import structs

from gsched.config.policies import GoodputConfig
from gschedd.allocation.adaptive.candidates import AdaptiveJob, Growth
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.deciding import AdaptiveRules, plan_by
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import GradientNoise
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.training.goodput.objective import problem_of


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
