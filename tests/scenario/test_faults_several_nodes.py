"""Jobs on several nodes of which one fails."""

from gsched.model.states import OutcomeKind
from gschedd.core.state import effects as e
from gschedd.core.state import facts as f
from tests.support.world import BEGIN_S, Program, World, node


def outcome_kind(world: World, job: int) -> OutcomeKind:
    outcome = world.job(job).outcome
    assert outcome is not None, f"job {job} is {world.state(job)}"
    return outcome.kind


def test_the_parts_of_an_attempt_share_a_port_and_run_on_all_nodes() -> None:
    """torchrun runs everywhere; a plain script on the first node only."""
    world = World(node("n1", cpus=2), node("n2", cpus=2))
    everywhere = world.torchrun("nodes=2", program=Program(runs_s=10))
    plain = world.submit("nodes=2", runs_s=10)
    world.run_until(1)

    assert all((everywhere, 1) in machine.launches for machine in world.machines.values())
    assert [(plain, 1) in machine.launches for machine in world.machines.values()] == [True, False]
    ports = [job.attempt.master_port for job in world.head.state.jobs.values() if job.attempt]
    assert len(set(ports)) == 2
    assert all(20000 <= port <= 29999 for port in ports)
    world.run_until(100)

    assert world.state(everywhere) == world.state(plain) == "done"


def test_one_part_fails_and_the_others_are_stopped() -> None:
    """The first failure is the outcome: its exit code and its node (D8)."""
    world = World(node("n1"), node("n2"), node("n3"))
    program = Program(runs_s=1000, runs_on_s={"n2": 20}, exit_codes={"n2": 42})
    job = world.torchrun("nodes=3", program=program)

    world.run_until(100)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.exit_code, outcome.node) == (OutcomeKind.EXITED, 42, "n2")
    assert world.job(job).ended_s == BEGIN_S + 20
    (stop,) = world.told(f.StopRequested, job)
    assert isinstance(stop, f.StopRequested)
    assert stop.message == "the part on n2 has ended: failed with exit code 42"


def test_the_first_failure_counts_whichever_report_comes_first() -> None:
    """n1's report is slow, but n1 failed first."""
    world = World(node("n1"), node("n2"))
    program = Program(runs_on_s={"n1": 20, "n2": 21}, exit_codes={"n1": 5, "n2": 6})
    job = world.torchrun("nodes=2", program=program)
    world.run_until(19)
    world.disconnect("n1")
    world.run_until(30)

    world.connect("n1")
    world.run_until(31)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.node) == (5, "n1")


def test_parts_that_end_well_wait_for_each_other() -> None:
    """Code 0 on one node stops nobody; resources are free when all have ended (I7)."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    job = world.torchrun("nodes=2", program=Program(runs_on_s={"n1": 10, "n2": 50}))
    world.run_until(20)
    assert world.state(job) == "running"
    assert world.head.state.spaces["n1"].cpus == 0

    world.run_until(60)

    assert world.state(job) == "done"
    assert world.job(job).wall_s == 50


def test_a_job_of_two_nodes_that_loses_one_starts_anew_on_both() -> None:
    """The surviving part is stopped before the next attempt starts (I3)."""
    world = World(node("n1", cpus=1), node("n2", cpus=1))
    job = world.torchrun("nodes=2", program=Program(runs_s=100))
    world.run_until(10)

    world.reboot("n2")
    assert world.state(job) == "exiting"
    world.run_until(500)

    assert outcome_kind(world, job) is OutcomeKind.EXITED
    assert world.job(job).attempts == 2


def test_a_part_whose_launch_is_lost_is_launched_when_its_node_registers() -> None:
    """The other part waits for it meanwhile (A6)."""
    world = World(node("n1"), node("n2"))
    world.lost[e.SendLaunch] = 1
    job = world.torchrun("nodes=2", program=Program(runs_s=100))
    world.run_until(10)
    attempt = world.job(job).attempt
    assert attempt is not None
    assert attempt.state.value == "starting"

    for name in ("n1", "n2"):
        world.disconnect(name)
        world.connect(name)
    world.run_until(500)

    assert outcome_kind(world, job) is OutcomeKind.EXITED
    assert world.job(job).attempts == 1
