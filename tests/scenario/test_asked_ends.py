"""Ends that somebody asked for, met by faults on the way."""

from gsched.model.job import Outcome
from gsched.model.states import OutcomeKind
from tests.support.world import ADMIN, Program, World, node


def test_a_deleted_job_whose_node_dies_is_cancelled_all_the_same() -> None:
    """Its owner wanted it gone, and gone it is: nobody looks for a lost node in its outcome."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=100, ignores_term=True))
    world.run_until(5)
    world.delete(job)
    world.reboot("n1")
    world.run_until(50)

    outcome = world.done[job].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    assert outcome.message == "cancelled by alice"


def test_a_job_to_be_rerun_whose_node_dies_runs_again() -> None:
    """Also one that says it is not rerunnable, as an operator has forced it."""
    world = World(node("n1"))
    job = world.submit(program=Program(runs_s=20, ignores_term=True), rerunnable=False)
    world.run_until(5)
    world.rerun(job, by=ADMIN, force=True)
    world.reboot("n1")
    world.run_until(100)

    assert world.done[job].attempts == 2
    assert world.done[job].outcome == Outcome(kind=OutcomeKind.EXITED, exit_code=0)
