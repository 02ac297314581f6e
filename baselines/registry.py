"""All policies that can be simulated: the installed ones and the baselines."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import structs

from baselines import (
    drs_paper,
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
from baselines.kit.paper_model import PaperModel
from gsched.config.policies import BalanceConfig, DrsConfig, TrainingConfig
from gschedd.plan.snapshot import Policy
from gschedd.policies.registry import INSTALLED, Chosen, Registry
from gschedd.policies.training import drs


def _paper(settings: BalanceConfig) -> Chosen:
    return Chosen(
        plan=paper.paper(settings),
        make_model=PaperModel,
        reads_loads=True,
        predicts_run_times=False,  # it knows a mean only, which every other job exceeds
    )


#: DRS as published, without its migration.
DRS_STILL: Final = drs.drs(DrsConfig(moves_max=0, patience_s=float("inf")))

ALL: Final = Registry(
    queue=MappingProxyType(
        {
            **INSTALLED.queue,
            "fewest": lambda _: Chosen(plan=fewest.plan),
            "paper": _paper,
            "roundrobin": lambda _: Chosen(plan=roundrobin.plan),
            "torque": lambda _: Chosen(plan=torque.plan),
        }
    ),
    training=MappingProxyType(
        {
            **INSTALLED.training,
            "drs-paper": lambda _: drs_paper.drs_paper(DRS_STILL),
            "drs-still": lambda training: drs.drs(structs.replace(training.drs, moves_max=0)),
            "edf": lambda _: edf.plan,
            "fifowhole": lambda _: fifowhole.plan,
            "gavel": lambda _: gavel.plan,
            "pollux": lambda _: pollux.plan,
            "themis": lambda _: themis.plan,
        }
    ),
    adaptive=INSTALLED.adaptive | {"gavel", "pollux"},
)

#: Each policy for training jobs with its default settings.
TRAININGS: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: make(TrainingConfig()) for name, make in ALL.training.items()}
)
#: Each policy for the jobs of a queue with its default settings.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: ALL.choose(name).plan for name in sorted(ALL.queue)}
)
