"""Policies by the name a queue uses, each made ready for a head with the site's own settings."""

import difflib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.errors import ConfigError
from gschedd.models.predict import Model, PaperModel
from gschedd.models.robust import RobustModel
from gschedd.plan.compose import Fairness, beside
from gschedd.plan.snapshot import Policy
from gschedd.policies.baselines import (
    edf,
    fewest,
    fifowhole,
    gavel,
    paper,
    pollux,
    roundrobin,
    themis,
    torque,
)
from gschedd.policies.kit.capacity import Weights
from gschedd.policies.queue import balance, fifo
from gschedd.policies.training import deadline, drs, elasticflow, goodput, sia


class Predictor(StrEnum):
    """What says beforehand what a job will cost."""

    ROBUST = "robust"
    PAPER = "paper"


class Tuning(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site may choose about balancing and predictions, checked already.

    Attributes:
        weights: of the resources: the paper's k1 to k4.
        latest: L of the paper's predictor: how many runs stand for a kind never seen.
        newest_weight: w of the paper's predictor: how much the newest fifth of them counts.
        window_s: a job younger than this when its node was last sampled is not in the report yet.
        reserve: under ``balance``, the first job passed over holds a reservation.
        predictor: of all policies but ``paper``, which has its own.
        literal: ``balance`` means the paper's algorithm.
        training: the policy for training jobs, by its name in `TRAININGS`, beside any policy.
        deadline_settings, drs_settings, elasticflow_settings, goodput_settings, sia_settings,
            themis_settings: of each policy for training jobs that has any; they count where it is
            the one.
        fairness: how trainings with deadlines and all other jobs share the cluster.
    """

    weights: Weights = Weights()
    latest: int = 20
    newest_weight: float = 0.6
    window_s: float = 10.0
    reserve: bool = True
    predictor: Predictor = Predictor.ROBUST
    literal: bool = False
    training: str = "deadline"
    deadline_settings: deadline.Settings = deadline.Settings()
    drs_settings: drs.Settings = drs.Settings()
    elasticflow_settings: elasticflow.Settings = elasticflow.Settings()
    goodput_settings: goodput.Settings = goodput.Settings()
    sia_settings: sia.Settings = sia.Settings()
    themis_settings: themis.Settings = themis.Settings()
    fairness: Fairness = Fairness()


class Chosen(Struct, frozen=True, kw_only=True):
    """A policy with all that a head needs to run it.

    Attributes:
        name: as it was asked for.
        plan: the policy.
        make_model: makes the predictor that it plans with, without any history.
        reads_loads: it looks at how busy nodes are, so that they must tell.
        predicts_run_times: its predictor tells run times that are seldom exceeded. The paper's does
            not: it knows a mean only, which every other job exceeds.
        plans_training: it plans trainings one by one, by what is known of them; all here do.
        plans_adaptive: it chooses batch sizes of adaptive trainings, too.
    """

    name: str
    plan: Policy
    make_model: Callable[[], Model]
    reads_loads: bool = False
    predicts_run_times: bool = True
    plans_training: bool = False
    plans_adaptive: bool = False


def choose(name: str, tuning: Tuning | None = None) -> Chosen:
    """Return a policy by its name, for all jobs: trainings are planned by a policy of their own.

    Args:
        name: as a queue uses it; or one for trainings, and then all others are balanced.
        tuning: the site's own settings; None for the defaults.

    Raises:
        ConfigError: there is no such policy, or packages that it needs are not installed.
    """
    tuning = tuning or Tuning()
    rest, profiles = ("balance", name) if name in TRAININGS else (name, tuning.training)
    make, make_profiles = _MAKERS.get(rest), _TRAINING_MAKERS.get(profiles)
    if make is None:
        raise unknown_policy(name, ALL_NAMES)
    if make_profiles is None:
        raise unknown_policy(profiles, tuple(TRAININGS))
    _check_installed(profiles)
    made = make(name, tuning)
    adaptive = profiles in PLANNING_ADAPTIVE
    both = beside(make_profiles(tuning), made.plan, tuning.fairness, adaptive_only=adaptive)
    return structs.replace(made, plan=both, plans_training=True, plans_adaptive=adaptive)


def _check_installed(name: str) -> None:
    missing = [
        package
        for package in NEEDED_PACKAGES.get(name, ())
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        raise ConfigError(
            f"policy {name!r} needs {' and '.join(missing)}, not installed here",
            hint="install gsched with its extra: pip install 'gsched[sia]'",
        )


def unknown_policy(name: str, known: Sequence[str]) -> ConfigError:
    """Return the error for a policy that does not exist."""
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(f"unknown policy {name!r}", hint=f"{meant}valid: {', '.join(known)}")


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
        predicts_run_times=False,
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


def _drs(tuning: Tuning, **changes: object) -> Policy:
    return drs.drs(structs.replace(tuning.drs_settings, **changes))


_TRAINING_MAKERS: Final[Mapping[str, Callable[[Tuning], Policy]]] = MappingProxyType(
    {
        "deadline": lambda tuning: deadline.deadline(tuning.deadline_settings),
        "drs": _drs,
        "drs-paper": partial(_drs, variant=drs.Variant.PAPER),
        "drs-still": partial(_drs, moves_max=0),
        "edf": lambda _: edf.plan,
        "elasticflow": lambda tuning: elasticflow.elasticflow(tuning.elasticflow_settings),
        "fifowhole": lambda _: fifowhole.plan,
        "gavel": lambda _: gavel.plan,
        "goodput": lambda tuning: goodput.goodput(tuning.goodput_settings),
        "pollux": lambda _: pollux.plan,
        "sia": lambda tuning: sia.sia(tuning.sia_settings),
        "themis": lambda tuning: themis.themis(tuning.themis_settings),
    }
)

#: Those that choose batch sizes of adaptive trainings, too, and plan only these.
PLANNING_ADAPTIVE: Final = frozenset({"gavel", "goodput", "pollux", "sia"})

#: Policies for trainings, as they are without settings.
TRAININGS: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: make(Tuning()) for name, make in _TRAINING_MAKERS.items()}
)

#: Packages that a policy needs beside those of gsched itself.
NEEDED_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    dict.fromkeys(PLANNING_ADAPTIVE, ("highspy", "numpy"))
)

#: What a queue may name, in order.
NAMES: Final = tuple(sorted(_MAKERS))
#: What may be simulated, in order.
ALL_NAMES: Final = tuple(sorted({*NAMES, *TRAININGS}))

#: Every policy as it is without settings.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: choose(name).plan for name in NAMES}
)
