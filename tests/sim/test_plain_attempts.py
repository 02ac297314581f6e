"""Attempts without an agent: all that becomes true is what it is with gnode's agent."""

import pickle
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from baselines.registry import ALL
from gsched.config.preemption import PreemptionConfig
from gsched.config.tables import Config, QueueConfig
from gsched.model.training import Training
from gschedd.core.state import facts as f
from gschedd.models.robust import RobustModel
from gschedd.sim import plain
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob

#: Jobs of the queue "urgent" stop those of "batch", which begin anew.
SITE = Config(
    queue=(QueueConfig(name="batch"), QueueConfig(name="urgent", priority=100)),
    preemption=PreemptionConfig(by=("queue",), min_run_s=0.0),
)


def jobs_of(seed: int) -> list[TraceJob]:
    """Return jobs that end in many ways: by themselves, at their walltimes, stopped."""
    draw = random.Random(seed)
    found = []
    for number in range(120):
        runs_s = round(draw.uniform(10.0, 900.0), 1)
        trains = draw.random() < 0.1
        found.append(
            TraceJob(
                submit_s=draw.randrange(2000) + draw.choice((0.0, 0.5)),
                duration_s=0.0 if number % 17 == 0 else runs_s,
                name=draw.choice(("short", "long", "job")),
                user=draw.choice(("ann", "bob", "cem")),
                queue=draw.choice(("batch", "batch", "batch", "urgent")),
                cpus=draw.randint(1, 8),
                gpus=2 if trains else draw.choice((0, 0, 1, 2)),
                nodes=0 if trains else draw.choice((0, 0, 0, 2)),
                memory_bytes=draw.choice((0, 2**30)),
                walltime_s=runs_s * draw.choice((0.5, 1.0, 2.0)),
                exit_code=draw.choice((0, 0, 0, 1)),
                training=Training(iterations=200, rates=((2, 1.0),)) if trains else None,
            )
        )
    return sorted(found, key=lambda job: job.submit_s)


def outcome(policy: str) -> tuple[list[JobResult], list[f.AnyFact], dict[str, int]]:
    """Return the results, all facts in their order, and what the head counted."""
    facts: list[f.AnyFact] = []
    results: list[JobResult] = []
    chosen = ALL.choose(policy)
    simulation = Simulation(
        read_cluster("4xcpus=16,gpus=2,memory=64gb"),
        jobs_of(7),
        chosen.plan,
        options=Options(
            site=SITE, make_model=RobustModel, heartbeats=chosen.reads_loads, move_s=5.0
        ),
        on_result=results.append,
    )

    def see(some: Sequence[f.AnyFact]) -> None:
        facts.extend(pickle.loads(pickle.dumps(some)))  # with predictions as they are then

    simulation.recorder.on_facts = see
    assert not simulation.run()
    return results, facts, dict(simulation.head.oddities)


@pytest.mark.parametrize("policy", ["fifo", "balance"])
def test_all_facts_are_those_of_nodes_with_agents(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Whichever way attempts end, and with loads of nodes or without."""
    results, facts, oddities = outcome(policy)

    with monkeypatch.context() as patched:
        patched.setattr(plain, "is_plain", lambda _launch: False)
        assert (results, facts, oddities) == outcome(policy)
    kinds = Counter(type(fact) for fact in facts)
    assert kinds[f.JobPreempted] > 3
    assert kinds[f.StopRequested] > 3
    assert len({each.outcome for each in results}) >= 2
