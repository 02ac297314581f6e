"""A policy that decides for ever at one moment ends the simulation with an error."""

import pytest

from gsched.model.training import Training
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.queue import fifo
from gschedd.sim import livelock
from gschedd.sim.cluster import read_cluster
from gschedd.sim.livelock import MAX_DECISIONS, RestlessPolicyError
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob


class Wavers:
    """Starts nothing, and says by turns that jobs can meet their deadlines and that they cannot."""

    def __init__(self) -> None:
        self.meets = False

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Change its mind, and ask for a further cycle at once."""
        self.meets = not self.meets
        verdicts = tuple(Forecast(job=job, meets=self.meets, why="") for job in snapshot.profiles)
        return Plan(verdicts=verdicts, more=True)


def training_jobs(count: int) -> list[TraceJob]:
    size = Training(iterations=100.0, rates=((1, 1.0),))
    return [
        TraceJob(submit_s=70.0, duration_s=0.0, gpus=1, training=size, deadline_s=1000.0)
        for _ in range(count)
    ]


def wavering(count: int, policy: str = "") -> Simulation:
    options = Options(policy=policy, plans_training=True)
    return Simulation(
        read_cluster("1xcpus=8,gpus=2"), training_jobs(count), Wavers(), options=options
    )


def jobs(count: int, duration_s: float = 10.0) -> list[TraceJob]:
    return [TraceJob(submit_s=70.0, duration_s=duration_s) for _ in range(count)]


def test_a_policy_that_changes_its_mind_for_ever_is_named_with_the_moment_and_the_jobs() -> None:
    simulation = wavering(2, "odd")

    with pytest.raises(RestlessPolicyError) as raised:
        simulation.run()

    assert str(raised.value).startswith("the policy odd decided ")
    assert " at 70 s of the trace" in str(raised.value)
    assert str(raised.value).endswith("jobs 1, 2")
    assert raised.value.hint
    assert simulation.head.cycles < MAX_DECISIONS + 100


def test_a_policy_without_a_name_is_named_by_its_class() -> None:
    with pytest.raises(RestlessPolicyError, match="the policy Wavers decided"):
        wavering(1).run()


def test_many_jobs_that_start_and_end_at_one_moment_are_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take more decisions than the limit that holds for none."""
    monkeypatch.setattr(livelock, "MAX_DECISIONS", 20)
    simulation = Simulation(read_cluster("1xcpus=2"), jobs(100, duration_s=0.0), fifo.plan)

    assert simulation.run() is False
    assert simulation.recorder.done == 100
    assert simulation.head.cycles > 20
