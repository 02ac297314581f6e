"""Jobs that cannot be started: which of them are tried again, how often, and who is blamed."""

import errno

import pytest

from gsched.model.job import LaunchFailure
from gsched.model.states import HoldKind, LaunchStage, OutcomeKind, Subject
from gschedd.core import facts as f
from tests.support.evidence import FORK, LEASE, UNKNOWN_USER
from tests.support.world import ALICE, BOB, World, node

HOME_GONE = LaunchFailure(stage=LaunchStage.HOME, subject=Subject.USER, errno=errno.ENOENT)
HIDDEN = LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER, errno=errno.ETIMEDOUT)


def failing(failure: LaunchFailure | None, *names: str, message: str = "no") -> World:
    """Return a world whose machines all fail to start anything, with this evidence."""
    world = World(*(node(name) for name in names or ("n1", "n2")))
    for machine in world.machines.values():
        machine.launch_fault, machine.fault = message, failure
    return world


@pytest.mark.parametrize("failure", [LEASE, UNKNOWN_USER, HOME_GONE, HIDDEN, None])
def test_no_number_of_jobs_of_one_user_drains_a_node(failure: LaunchFailure | None) -> None:
    world = failing(failure)
    for _ in range(20):
        world.submit()

    world.run_until(3600)

    assert [name for name in world.machines if world.seen_node(name).drained] == []
    assert [name for name in world.machines if world.seen_node(name).faults] == []


def test_one_users_jobs_do_not_drain_a_node_even_where_it_is_to_blame() -> None:
    """It may be that user's jobs that use up all its processes."""
    world = failing(FORK)
    for _ in range(20):
        world.submit()

    world.run_until(3600)

    assert [name for name in world.machines if world.seen_node(name).drained] == []
    assert world.seen_node("n1").faults > 3


def test_failures_of_different_users_an_hour_apart_are_not_in_a_row() -> None:
    world = World(node("n1"))
    machine = world.machines["n1"]
    for who in (ALICE, BOB, ALICE, BOB):
        machine.launch_fault = "cannot fork"
        job = world.submit(by=who)
        world.run_for(1)
        world.hold(job, by=who)
        world.run_for(4000)

    assert not world.seen_node("n1").drained
    assert world.seen_node("n1").faults == 1


def test_an_error_of_the_jobs_own_that_may_pass_is_tried_again_then_its_user_mends_it() -> None:
    world = failing(LEASE, message="cannot write out: another process holds a lease on it")
    job = world.submit()

    world.run_until(3600)

    assert world.state(job) == "held"
    assert world.job(job).holds == (HoldKind.USER,)
    assert world.job(job).attempts == 5
    assert "5 attempts in a row could not be started" in world.why(job)
    assert "holds a lease" in world.why(job)
    for machine in world.machines.values():
        machine.launch_fault = ""
    world.release(job)
    world.run_until(3700)
    assert world.state(job) == "done"


def test_d19_a_job_whose_user_is_gone_is_held() -> None:
    """Three attempts over some minutes, as a name service may not find anybody for a moment."""
    world = failing(UNKNOWN_USER, message="node n1 knows no user alice")
    job = world.submit()
    world.run_until(100)
    assert world.state(job) == "waiting"

    world.run_until(600)

    assert world.state(job) == "held"
    assert world.job(job).holds == (HoldKind.SYSTEM,)
    assert world.job(job).attempts == 3
    assert "USER_GONE: no node knows its user any more" in world.why(job)


def test_a_job_that_failed_before_is_not_held_the_first_time_its_user_is_not_found() -> None:
    """Losses of nodes count in the same row, but say nothing of its user."""
    world = World(node("n1"))
    job = world.submit(runs_s=1000)
    for _ in range(3):
        world.run_for(60)
        world.reboot("n1")
    world.machines["n1"].launch_fault, world.machines["n1"].fault = "unknown", UNKNOWN_USER
    world.run_for(30)
    assert world.job(job).unknown_since_s > 0

    assert world.state(job) == "waiting"


def test_d22_a_name_service_that_is_silent_for_an_hour_holds_no_job() -> None:
    world = failing(HIDDEN)
    job = world.submit()
    world.run_until(3600)
    assert world.state(job) == "waiting"

    for machine in world.machines.values():
        machine.launch_fault = ""
    world.run_until(3600 + 700)

    assert world.job(job).outcome is not None
    assert world.state(job) == "done"


def test_h6_a_full_quota_ends_the_job_in_words() -> None:
    quota = LaunchFailure(stage=LaunchStage.OUTPUT, subject=Subject.JOB, errno=errno.EDQUOT)
    world = failing(quota, message="cannot write out: Disk quota exceeded")
    job = world.submit()

    world.run_until(10)

    outcome = world.job(job).outcome
    assert outcome is not None
    assert (outcome.kind, outcome.message) == (
        OutcomeKind.LAUNCH_FAILED,
        "cannot write out: Disk quota exceeded",
    )
    assert len(world.told(f.AttemptAssigned, job)) == 1
