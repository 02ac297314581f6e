"""Shares change nothing where one user submits everything."""

import random
from collections.abc import Sequence

import pytest

from gsched.config.preemption import PreemptionConfig
from gsched.config.shares import PriorityConfig, ProjectConfig, SharesConfig
from gsched.config.tables import Config
from gsched.model.training import Training
from gschedd.core.state import facts as f
from gschedd.policies.registry import INSTALLED
from gschedd.sim.cluster import read_cluster
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob

JOBS = 150
HOUR_S = 3600.0
#: Of a job that saves its state, on one GPU and more.
RATES = ((1, 1.0), (2, 1.9), (4, 3.5))
OFF = Config()
ON = Config(
    project=(ProjectConfig(name="all", users=("user",)),),
    shares=SharesConfig(half_life_s=HOUR_S),
    priority=PriorityConfig(),
    preemption=PreemptionConfig(by=("share",), min_run_s=0.0),
)


def jobs_of(seed: int) -> list[TraceJob]:
    """Return more jobs than fit at once, some with priorities, some that change their GPUs."""
    draw = random.Random(seed)
    found = []
    for _ in range(JOBS):
        runs_s = draw.lognormvariate(-1.0, 1.0) * HOUR_S
        gpus = draw.choice((0, 1, 1, 2, 4))
        saves = gpus == 1 and draw.random() < 0.2
        found.append(
            TraceJob(
                submit_s=draw.randrange(48) * 600.0 + draw.random(),
                duration_s=runs_s,
                cpus=draw.randint(1, 4),
                gpus=gpus,
                priority=draw.choice((0, 0, 0, 5)),
                walltime_s=None if saves else runs_s * draw.uniform(1.0, 3.0),
                training=Training(iterations=round(runs_s), rates=RATES) if saves else None,
                gpus_max=4 if saves else 0,
                deadline_s=draw.uniform(2.0, 6.0) * runs_s if saves else None,
            )
        )
    return sorted(found, key=lambda job: job.submit_s)


def decisions(policy: str, seed: int, site: Config) -> tuple[list[tuple[object, ...]], int]:
    """Return who started when and where, what was done to running jobs, and how many cycles ran."""
    simulation = Simulation(
        read_cluster("3xcpus=16,gpus=4"),
        jobs_of(seed),
        INSTALLED.choose(policy).plan,
        options=Options(site=site, plans_training=True),
    )
    found: list[tuple[object, ...]] = []

    def see(facts: Sequence[f.AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, f.AttemptAssigned | f.MigrationRequested):
                found.append((fact.at_s, fact.job, fact.allocation))
            elif isinstance(fact, f.JobPreempted):
                found.append((fact.at_s, fact.job, fact.way))

    simulation.recorder.on_facts = see
    assert not simulation.run()
    assert simulation.summary(policy).outcomes == {"exited": JOBS}
    assert simulation.head is not None
    return found, simulation.head.cycles


@pytest.mark.parametrize("policy", ["fifo", "drs", "elasticflow"])
def test_with_one_user_shares_change_no_decision(policy: str) -> None:
    """Nor do they have anything planned again: a policy for training jobs may decide otherwise."""
    off = decisions(policy, 1, OFF)

    assert len(off[0]) >= JOBS
    assert decisions(policy, 1, ON) == off
