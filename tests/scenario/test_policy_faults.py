"""A policy that raises: it gets another chance by itself, seldom enough to harm nobody."""

from gschedd.core.cycle.dirty import FIRST_RETRY_S, LAST_RETRY_S
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.policies.queue import fifo
from gschedd.sim.cluster import read_cluster
from gschedd.sim.simulation import MAX_FAILURES, Simulation
from gschedd.sim.workload import TraceJob
from tests.support.world import BEGIN_S, World, node


class Fails:
    """Fifo, after it has failed so many times; and when it was asked, since the world began."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked_s: list[float] = []

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Fail or answer."""
        self.asked_s.append(snapshot.now_s - BEGIN_S)
        if len(self.asked_s) <= self.times:
            raise ZeroDivisionError("nobody is there to share with")
        return fifo.plan(snapshot)


def test_a_policy_that_failed_once_is_asked_again_although_nothing_changes() -> None:
    """The job does not wait until somebody submits another one."""
    policy = Fails(1)
    world = World(node("n1"), policy=policy)
    job = world.submit(runs_s=5)

    world.run_until(60)

    assert world.started_s(job) == FIRST_RETRY_S
    assert world.head.oddities["policy_failed"] == 1
    assert world.head.policy_failure is None
    assert world.head.next_alarm_s() is None


def test_a_policy_that_goes_on_failing_is_asked_more_and_more_seldom() -> None:
    """After 1, 2, 4, ... seconds, at last every five minutes; each failure is counted."""
    policy = Fails(10**6)
    world = World(node("n1"), policy=policy)
    job = world.submit(runs_s=5)

    world.run_until(3600)

    pauses = [b - a for a, b in zip(policy.asked_s, policy.asked_s[1:], strict=False)]
    assert pauses[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(pauses[9:]) == {LAST_RETRY_S}
    assert world.head.oddities["policy_failed"] == len(policy.asked_s)
    assert world.state(job) == "queued"


def test_a_change_asks_at_once_and_a_cycle_that_went_well_begins_anew() -> None:
    """The next failure is again answered after a second."""
    policy = Fails(4)
    world = World(node("n1", cpus=1), policy=policy)
    world.submit(runs_s=100)
    world.run_until(4)
    assert policy.asked_s == [0, 1, 3]

    world.submit("ncpus=1,walltime=10")
    assert policy.asked_s == [0, 1, 3, 4]
    world.run_until(50)
    assert policy.asked_s == [0, 1, 3, 4, 12]
    policy.times = len(policy.asked_s) + 1
    third = world.submit("ncpus=1,walltime=20")
    world.run_until(52)

    assert policy.asked_s[5:] == [50, 51]
    assert "needs 1 CPU" in world.why(third)


def test_a_simulation_under_a_policy_that_only_fails_ends() -> None:
    """With nothing done, and the failures counted."""
    jobs = [TraceJob(submit_s=0, duration_s=10, user="user", cpus=1)]
    simulation = Simulation(read_cluster("2xcpus=1"), jobs, Fails(10**6))

    assert simulation.run() is False
    assert simulation.recorder.done == 0
    assert simulation.head.oddities["policy_failed"] == MAX_FAILURES + 1
