"""A running job gets more walltime: within the quota, and only if nobody is delayed by it."""

import pytest

from gsched.config.tables import QueueConfig
from gsched.errors import BadStateError, GschedError, NotPermittedError
from gsched.model.states import OutcomeKind
from gsched.protocol import actions as a
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from tests.support.world import ALICE, BEGIN_S, BOB, Program, World, node, settings

OPERATOR = Caller(user="root", uid=0, gid=0, operator=True)


def extend(world: World, job: int, text: str, by: Caller = ALICE) -> GschedError | None:
    """Return why a change of a walltime is refused; None: it is made."""
    alteration = a.Alteration(resources=(f"walltime={text}",))
    command = c.ActOnJob(caller=by, job=job, action=a.AlterJob(alteration=alteration))
    try:
        world.do(command)
    except GschedError as error:
        return error
    return None


def with_quota(text: str = "", per_user: int = 0) -> World:
    queue = QueueConfig(
        name="batch", walltime_extension=text, walltime_extensions_per_user=per_user
    )
    return World(node("n1", cpus=4), config=settings(queues={"batch": queue}))


def test_a_job_that_delays_nobody_is_extended_and_ends_later() -> None:
    """A waiting job that needs other resources, or fits beside it, does not matter."""
    world = World(node("n1", cpus=2), node("n2", cpus=2))
    job = world.submit("nodes=1:ppn=2,walltime=100", runs_s=1000)
    world.submit("nodes=1:ppn=2,walltime=50", runs_s=1000, by=BOB)
    world.submit("nodes=1:ppn=2,walltime=50", by=BOB)  # gets n2 at 50 s
    world.run_until(10)

    assert extend(world, job, "+1:00") is None
    assert extend(world, job, "200") is None  # absolute
    world.run_until(1000)

    assert world.job(job).ended_s == BEGIN_S + 200
    outcome = world.job(job).outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.WALLTIME


def test_whom_it_would_delay_is_named_with_by_how_much() -> None:
    world = World(node("n1", cpus=2), node("n2", cpus=2))
    job = world.submit("nodes=1:ppn=2,walltime=100", runs_s=1000)
    world.submit("nodes=1:ppn=2,walltime=130", runs_s=1000, by=BOB)
    waiting = world.submit("nodes=1:ppn=1,walltime=50", by=BOB)
    world.run_until(10)

    far = extend(world, job, "+5:00")  # n2 is free at 130 s: that much earlier it cannot start
    assert isinstance(far, NotPermittedError)
    assert f"job {waiting} of bob waits for the resources of job {job}" in far.message
    assert "00:00:30 later" in far.message
    near = extend(world, job, "+0:10")
    assert near is not None
    assert "00:00:10 later" in near.message
    assert extend(world, job, "90") is None  # less is always allowed
    assert extend(world, job, "+5:00", by=OPERATOR) is None
    assert world.job(job).spec.walltime_s == 390


def test_a_job_that_waits_for_more_than_this_one_is_not_delayed_by_it() -> None:
    """It needs both nodes, and the other one is busy for longer."""
    world = World(node("n1", cpus=2), node("n2", cpus=2))
    job = world.submit("nodes=1:ppn=2,walltime=100", runs_s=1000)
    world.submit("nodes=1:ppn=2,walltime=500", runs_s=1000, by=BOB)
    waiting = world.submit("nodes=2:ppn=2,walltime=50", by=BOB)
    world.run_until(10)

    assert extend(world, job, "+6:30") is None  # both end at 490 and 500 s
    refused = extend(world, job, "+0:30")
    assert refused is not None
    assert f"job {waiting} of bob" in refused.message
    assert "00:00:20 later" in refused.message


def test_held_jobs_and_jobs_of_stopped_queues_are_not_delayed() -> None:
    queues = {"batch": QueueConfig(name="batch"), "night": QueueConfig(name="night", started=False)}
    world = World(node("n1", cpus=2), config=settings(queues=queues))
    job = world.submit("nodes=1:ppn=2,walltime=100", runs_s=1000)
    world.submit("nodes=1:ppn=2", by=BOB, holds=("user",))
    world.submit("nodes=1:ppn=2", by=BOB, queue="night")
    world.run_until(10)

    assert extend(world, job, "+1:00") is None


@pytest.mark.parametrize(("quota", "most"), [("2:00", 120), ("50%", 100), ("0", 0)])
def test_all_extensions_of_a_job_together_are_within_the_quota(quota: str, most: int) -> None:
    world = with_quota(quota)
    job = world.submit("nodes=1,walltime=200", runs_s=10_000)
    world.run_until(10)

    if most:
        assert extend(world, job, f"+0:{most // 2}") is None
        assert extend(world, job, f"+0:{most // 2}") is None
    refused = extend(world, job, "+0:01")
    assert isinstance(refused, NotPermittedError)
    assert "00:00:00 are left" in refused.hint
    assert extend(world, job, "-0:10") is None
    if most:
        assert extend(world, job, "+0:05") is None  # what was given back counts no more
    assert extend(world, job, "+1:00:00", by=OPERATOR) is None


def test_a_user_can_have_so_many_running_jobs_extended() -> None:
    world = with_quota(per_user=1)
    first, second = (world.submit("nodes=1,walltime=200", runs_s=10_000) for _ in range(2))
    others = world.submit("nodes=1,walltime=200", runs_s=10_000, by=BOB)
    world.run_until(10)

    assert extend(world, first, "+1:00") is None
    assert extend(world, first, "+1:00") is None  # it is one of them already
    refused = extend(world, second, "+1:00")
    assert isinstance(refused, NotPermittedError)
    assert f"({first})" in refused.message
    assert extend(world, others, "+1:00", by=BOB) is None


def test_a_job_that_is_being_stopped_cannot_be_extended() -> None:
    world = World(node("n1"))
    job = world.submit("nodes=1,walltime=100", program=Program(runs_s=1000, ignores_term=True))
    world.run_until(1)
    world.rerun(job)

    assert isinstance(extend(world, job, "+1:00"), BadStateError)


def test_a_waiting_job_uses_no_quota() -> None:
    world = with_quota("1:00")
    world.submit("nodes=1:ppn=4", runs_s=50)
    job = world.submit("nodes=1,walltime=100", runs_s=10_000)
    world.run_until(10)

    assert extend(world, job, "+1:00:00") is None
    world.run_until(60)
    assert world.job(job).spec.extended_s == 0
    assert extend(world, job, "+1:00") is None
