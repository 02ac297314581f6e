"""Policies by the name a queue uses, each made ready for a head with the site's own settings."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.errors import ConfigError
from gschedd.models.predict import Model, PaperModel
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Fairness, beside
from gschedd.plan.snapshot import Policy
from gschedd.policies.baselines import edf, fewest, fifowhole, paper, roundrobin, themis, torque
from gschedd.policies.kit.capacity import Weights
from gschedd.policies.queue import balance, fifo
from gschedd.policies.training import deadline, drs, elasticflow


class Predictor(StrEnum):
    """What says beforehand what a job will cost."""

    ROBUST = "robust"
    PAPER = "paper"


class Tuning(Struct, frozen=True, kw_only=True):
    """What a site may choose about balancing and predictions, checked already.

    Attributes:
        weights: of the resources: the paper's k1 to k4.
        latest: L of the paper's predictor: how many runs stand for a kind never seen.
        newest_weight: w of the paper's predictor: how much the newest fifth of them counts.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
        reserve: under ``balance``, the first job passed over holds a reservation.
        predictor: of all policies but ``paper``, which has its own.
        literal: ``balance`` means the paper's algorithm.
        deadline: what plans trainings, by its name in `TRAININGS`, beside any policy.
        drs_settings: of ``drs`` where that plans trainings.
        fairness: how trainings with deadlines and all other jobs share the cluster.
    """

    weights: Weights = Weights()
    latest: int = 20
    newest_weight: float = 0.6
    window_s: float = 10.0
    reserve: bool = True
    predictor: Predictor = Predictor.ROBUST
    literal: bool = False
    deadline: str = "deadline"
    drs_settings: drs.Settings = drs.Settings()
    fairness: Fairness = Fairness()


class Chosen(Struct, frozen=True, kw_only=True):
    """A policy with all that a head needs to run it.

    Attributes:
        name: as it was asked for.
        plan: the policy.
        make_model: makes the predictor that it plans with, without any history.
        reads_loads: it looks at how busy nodes are, so that they must tell.
        foretells_times: its predictor tells run times that are seldom exceeded. The paper's does
            not: it knows a mean only, which every other job exceeds.
        plans_goals: it plans trainings one by one, by what is known of them; all here do.
    """

    name: str
    plan: Policy
    make_model: Callable[[], Model]
    reads_loads: bool = False
    foretells_times: bool = True
    plans_goals: bool = False


def choose(name: str, tuning: Tuning | None = None) -> Chosen:
    """Return a policy by its name, for all jobs: trainings are planned by a policy of their own.

    Args:
        name: as a queue uses it; or one for trainings, and then all others are balanced.
        tuning: the site's own settings; None for the defaults.

    Raises:
        ConfigError: there is no such policy.
    """
    tuning = tuning or Tuning()
    rest, goals = ("balance", name) if name in TRAININGS else (name, tuning.deadline)
    make, plan = _MAKERS.get(rest), TRAININGS.get(goals)
    if make is None or plan is None:
        unknown, known = (name, ALL_NAMES) if make is None else (goals, tuple(TRAININGS))
        raise ConfigError(f"unknown policy {unknown!r}", hint=f"known are: {', '.join(known)}")
    made = make(name, tuning)
    if goals == "drs":
        plan = drs.drs(tuning.drs_settings)
    both = beside(plan, made.plan, tuning.fairness)
    return structs.replace(made, plan=both, plans_goals=True)


def choose_for(queues: Mapping[str, str], tuning: Tuning | None = None) -> Chosen:
    """Return the policy that plans for a head's queues.

    Args:
        queues: the policy that each queue names, by queue; at least one.
        tuning: the site's own settings; None for the defaults.

    Raises:
        ConfigError: there is no such policy, or the queues do not agree.
    """
    chosen = {name: choose(name, tuning) for name in queues.values()}
    if len(chosen) > 1:
        named = ", ".join(f"{queue} names {policy}" for queue, policy in queues.items())
        raise ConfigError(
            f"all queues must use the same policy: {named}",
            hint="name the same policy in every [[queue]]; their priorities and limits may differ",
        )
    return next(iter(chosen.values()))


def _plain(plan: Policy) -> Callable[[str, Tuning], Chosen]:
    """Return what makes a policy that has no settings of its own."""
    return lambda name, tuning: _with_predictor(name, plan, tuning)


def _balance(name: str, tuning: Tuning) -> Chosen:
    if tuning.literal:
        return _paper(name, tuning)
    settings = balance.Settings(
        weights=tuning.weights, window_s=tuning.window_s, reserve=tuning.reserve
    )
    return structs.replace(
        _with_predictor(name, balance.balance(settings), tuning), reads_loads=True
    )


def _paper(name: str, tuning: Tuning) -> Chosen:
    settings = paper.Settings(weights=tuning.weights, window_s=tuning.window_s)
    by_paper = structs.replace(tuning, predictor=Predictor.PAPER)
    return structs.replace(_with_predictor(name, paper.paper(settings), by_paper), reads_loads=True)


def _with_predictor(name: str, plan: Policy, tuning: Tuning) -> Chosen:
    if tuning.predictor is Predictor.ROBUST:
        return Chosen(name=name, plan=plan, make_model=RobustModel)
    return Chosen(
        name=name,
        plan=plan,
        make_model=lambda: PaperModel(latest=tuning.latest, weight=tuning.newest_weight),
        foretells_times=False,
    )


_MAKERS: Final[Mapping[str, Callable[[str, Tuning], Chosen]]] = MappingProxyType(
    {
        "balance": _balance,
        "fewest": _plain(fewest.plan),
        "fifo": _plain(fifo.plan),
        "paper": _paper,
        "roundrobin": _plain(roundrobin.plan),
        "torque": _plain(torque.plan),
    }
)

#: Policies for trainings: those with what is known of their run time, or with a deadline.
TRAININGS: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "deadline": deadline.plan,
        "drs": drs.plan,
        "drs-paper": drs.drs(drs.Settings(variant=drs.Variant.PAPER)),
        "drs-still": drs.drs(drs.Settings(moves_max=0)),
        "edf": edf.plan,
        "elasticflow": elasticflow.plan,
        "fifowhole": fifowhole.plan,
        "themis": themis.plan,
    }
)

#: What a queue may name, in order.
NAMES: Final = tuple(sorted(_MAKERS))
#: What may be simulated, in order.
ALL_NAMES: Final = tuple(sorted({*NAMES, *TRAININGS}))

#: Every policy as it is without settings.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: choose(name).plan for name in NAMES}
)
