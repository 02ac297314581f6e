"""Jobs that cannot be started: which of them are tried again, how often, and who is blamed."""

import errno

import pytest

from gsched.config.tables import QueueConfig
from gsched.model.job import LaunchFailure
from gsched.model.resources import Share
from gsched.model.states import HoldKind, LaunchStage, OutcomeKind, Subject
from gschedd.core.attempts.relaunch import FIRST_LOOK_S, LONGEST_LOOK_S, MISSING_S
from gschedd.core.cycle.run import elsewhere
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.plan.snapshot import Start
from tests.support.evidence import FORK, LEASE, MISSING, UNKNOWN_USER
from tests.support.world import ALICE, BOB, World, node, settings

HOME_GONE = LaunchFailure(stage=LaunchStage.HOME, subject=Subject.USER, errno=errno.ENOENT)
HIDDEN = LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER, errno=errno.ETIMEDOUT)


def stopped() -> Settings:
    """Return the settings of a cluster that starts nothing by itself."""
    return settings(queues={"batch": QueueConfig(name="batch", started=False)})


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


def test_one_users_jobs_do_not_drain_a_node_whose_probe_passes() -> None:
    """It may be that user's jobs that use up all its processes."""
    world = failing(FORK)
    for machine in world.machines.values():
        machine.probe_fault = ""
    for _ in range(20):
        world.submit()

    world.run_until(3600)

    assert [name for name in world.machines if world.seen_node(name).drained] == []
    assert world.seen_node("n1").faults > 3


def test_failures_of_different_users_an_hour_apart_are_not_in_a_row() -> None:
    world = World(node("n1"))
    machine = world.machines["n1"]
    machine.probe_fault = ""
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
    assert world.why(job).startswith("held after 5 failed starts; last: could not be started on ")
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


# --- a directory that does not exist yet ---


def repair(world: World) -> None:
    """Let every machine start jobs again: the directory is there now."""
    for machine in world.machines.values():
        machine.launch_fault = ""


def test_a_job_waits_for_a_directory_and_runs_when_it_is_there() -> None:
    world = failing(MISSING, "n1")
    job = world.submit()
    world.run_for(2)

    assert world.state(job) == "waiting"
    assert world.why(job).startswith("directory /data/out does not exist on n1; next try at ")
    repair(world)
    world.run_for(FIRST_LOOK_S + 20)

    assert world.state(job) == "done"
    assert world.job(job).attempts == 2


def test_a_job_that_waits_for_a_directory_holds_no_resources() -> None:
    world = failing(MISSING, "n1")
    waits = world.submit("nodes=1:ppn=4")
    world.run_for(2)
    repair(world)

    other = world.submit("nodes=1:ppn=4", runs_s=1)
    world.run_for(1.5)

    assert (world.state(waits), world.state(other)) == ("waiting", "done")


def test_nobody_is_blamed_for_a_directory_that_does_not_exist() -> None:
    world = failing(MISSING, "n1")
    job = world.submit()

    world.run_for(MISSING_S / 2)

    assert world.job(job).attempts > 5
    assert world.job(job).faults == 0
    node = world.seen_node("n1")
    assert (node.faults, node.drained, node.probation.due_s) == (0, False, 0.0)


def test_other_nodes_are_tried_for_the_directory() -> None:
    world = World(node("n1"), node("n2", cpus=8))
    machine = world.machines["n1"]
    machine.launch_fault, machine.fault = "no", MISSING
    job = world.submit()

    world.run_for(60)

    assert places(world, job) == ["n1", "n2"]
    assert world.state(job) == "done"


def test_a_job_whose_directory_never_comes_is_held_after_an_hour_and_runs_when_released() -> None:
    world = failing(MISSING, "n1")
    job = world.submit()
    world.run_for(MISSING_S - 1)
    assert world.state(job) == "waiting"

    world.run_for(LONGEST_LOOK_S + 2)

    assert world.state(job) == "held"
    assert world.job(job).holds == (HoldKind.USER,)
    assert world.why(job).startswith("held after 01:0")
    assert "without a directory: directory /data/out does not exist on n1" in world.why(job)
    assert world.job(job).attempts < 20
    repair(world)
    world.release(job)
    world.run_for(20)
    assert world.state(job) == "done"


@pytest.mark.parametrize("way", ["alter", "hold and release"])
def test_a_job_is_tried_at_once_after_its_user_has_changed_it(way: str) -> None:
    world = failing(MISSING, "n1")
    job = world.submit()
    world.run_for(600)
    repair(world)
    assert world.state(job) == "waiting"

    if way == "alter":
        world.alter(job, stdout_path="/data/out2/")
    else:
        world.hold(job)
        assert world.state(job) == "held"
        world.release(job)
    world.run_for(1)

    assert world.state(job) in {"running", "done"}


def test_a_job_that_waits_for_a_directory_can_be_deleted() -> None:
    world = failing(MISSING, "n1")
    job = world.submit()
    world.run_for(2)

    world.delete(job)

    assert world.state(job) == "done"


def test_what_a_job_waits_for_outlives_the_head() -> None:
    world = failing(MISSING, "n1")
    job = world.submit()
    world.run_for(600)
    since_s = world.job(job).missing_since_s

    world.restart_head()

    assert since_s > 0
    assert world.job(job).missing_since_s == since_s
    assert "directory /data/out does not exist on n1" in world.why(job)


# --- elsewhere first ---


def places(world: World, job: int) -> list[str]:
    """Return where each attempt of a job was, the first share of each."""
    told = world.told(f.AttemptAssigned, job)
    return [fact.allocation[0].node for fact in told if isinstance(fact, f.AttemptAssigned)]


def test_a_retry_goes_to_another_node_first() -> None:
    world = World(node("n1"), node("n2", cpus=8), node("n3", cpus=9))
    for name in ("n1", "n2"):
        world.machines[name].launch_fault = "cannot fork"
        world.machines[name].probe_fault = ""  # else they are drained
    job = world.submit()

    world.run_until(100)

    assert places(world, job) == ["n1", "n2", "n3"]
    assert world.state(job) == "done"
    last = world.told(f.AttemptAssigned, job)[-1]
    assert isinstance(last, f.AttemptAssigned)
    assert last.why.endswith("not on n2, n1, where it failed to start")


def test_a_retry_goes_to_the_same_node_where_no_other_is_free() -> None:
    """Also where none other could ever hold it: to wait for nothing would be worse."""
    world = World(node("n1", cpus=8), node("n2", cpus=2))
    world.machines["n1"].launch_fault = "cannot fork"
    job = world.submit("nodes=1:ppn=4")
    world.run_until(1)
    world.machines["n1"].launch_fault = ""

    world.run_until(100)

    assert places(world, job) == ["n1", "n1"]
    assert world.state(job) == "done"


@pytest.mark.parametrize(("cpus", "expected"), [(2, "n1"), (1, "n2")])
def test_a_retry_takes_nothing_that_was_planned_for_others(cpus: int, expected: str) -> None:
    """Of two starts in one cycle the other one may need all of the other node, or half of it."""
    world = World(node("n1", cpus=2), node("n2", cpus=2), config=stopped())
    retry, other = world.submit("nodes=1:ppn=1"), world.submit(f"nodes=1:ppn={cpus}")
    state = world.head.state
    state.jobs[retry].avoid = ("n1", "gone")
    starts = [
        Start(
            job=number,
            job_class=state.class_of(state.jobs[number]),
            allocation=(Share(node=name, cpus=wanted),),
            why="planned",
        )
        for number, name, wanted in ((retry, "n1", 1), (other, "n2", cpus))
    ]

    found = elsewhere(state, starts, 0.0)

    assert [start.allocation[0].node for start in found] == [expected, "n2"]
    assert state.spaces["n2"].cpus == 2


def test_a_job_of_two_nodes_leaves_out_the_one_that_failed() -> None:
    world = World(node("n1"), node("n2"), node("n3", cpus=8))
    world.machines["n2"].launch_fault = "cannot fork"
    world.machines["n2"].probe_fault = ""
    job = world.torchrun("nodes=2")

    world.run_until(100)

    attempts = [
        {share.node for share in fact.allocation}
        for fact in world.told(f.AttemptAssigned, job)
        if isinstance(fact, f.AttemptAssigned)
    ]
    assert attempts == [{"n1", "n2"}, {"n1", "n3"}]


def test_what_a_job_avoids_outlives_the_head() -> None:
    world = World(node("n1"), node("n2", cpus=8))
    world.machines["n1"].launch_fault = "cannot fork"
    world.machines["n1"].probe_fault = ""
    job = world.submit()
    world.run_until(1)

    world.restart_head()
    world.run_until(100)

    assert places(world, job) == ["n1", "n2"]
