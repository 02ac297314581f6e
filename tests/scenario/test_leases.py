"""Leases in the head: when a job of a node that does not answer is queued again, and when not."""

import pytest

from gsched.errors import GschedError
from gsched.model.job import ExitRecord
from gsched.model.resources import Load, Usage
from gsched.model.states import HoldKind, OutcomeKind, StopReason
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.attempts.requeue import MAX_FAULTS
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.views.jobs import JobViews
from tests.support.moves import Story, gpus
from tests.support.world import ADMIN, Program, World, node, settings

LEASE_S = 60.0
GRACE_S = 30.0
#: Lease and grace, drift, margin.
PATIENCE_S = (LEASE_S + GRACE_S) * 1.01 + 30.0
TEN_YEARS_S = 3.2e8


def world(**config: object) -> World:
    """Return two nodes, each with room for one job that requests all of it."""
    return World(node("n1", cpus=2), node("n2", cpus=2), config=settings(**config))


def leased(site: World, **changes: object) -> int:
    """Submit a job with a lease that runs on one whole node, n1 the first."""
    stated = {"lease_s": LEASE_S, "program": Program(runs_s=1000.0)} | changes
    return site.submit("nodes=1:ppn=2", **stated)  # type: ignore[arg-type] # as `submit` takes them


def end_at_lease(site: World, name: str, job: int) -> None:
    """Let a lease pass, after which a machine that is not connected ends the job."""
    site.run_for(LEASE_S)
    site.kill(name, job, 1, 15)


def reason(site: World, job: int) -> str:
    return JobViews(site.head, now_s=site.now_s).row(site.job(job)).reason


def test_it_starts_elsewhere_when_its_lease_is_over_on_both_sides() -> None:
    """E3, C13."""
    site = world()
    job = leased(site)
    site.run_until(10.0)
    assert site.machine_of(job) == ("n1",)

    site.lose_power("n1")
    site.run_until(10.0 + PATIENCE_S - 1.0)
    assert site.machine_of(job) == ("n1",)
    site.run_until(10.0 + PATIENCE_S + 3.0)

    assert site.machine_of(job) == ("n2",)
    (end,) = [fact for fact in site.told(f.PartEnded, job) if isinstance(fact, f.PartEnded)]
    assert end.record.kind is OutcomeKind.NODE_LOST
    assert "lease of 00:01:00 has expired" in end.record.message


def test_a_job_without_a_lease_stays() -> None:
    site = world()
    job = leased(site, lease_s=0.0)
    site.run_until(10.0)

    site.lose_power("n1")
    site.run_until(100_000.0)

    assert site.machine_of(job) == ("n1",)
    assert "gnodes confirm-dead n1" in reason(site, job)


def test_gstat_says_when() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.lose_power("n1")
    site.run_until(40.0)

    told = reason(site, job)

    assert told.startswith("node n1 has not answered for 00:00:30; the job is requeued at ")
    assert "unless the node returns" in told
    due_s = site.head.leases.requeued_s(site.job(job), site.settings)
    assert due_s == pytest.approx(site.now_s - 30.0 + PATIENCE_S)


def test_a_node_that_comes_back_in_time_keeps_its_job() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    for _ in range(5):  # each time the wait begins anew
        site.disconnect("n1")
        site.run_for(PATIENCE_S - 1.0)
        site.connect("n1")
        site.run_for(1.0)

    assert site.machine_of(job) == ("n1",)
    assert site.job(job).attempts == 1


def test_no_step_of_the_wall_clock_ends_a_lease() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.disconnect("n1")
    head, steady_s = site.head, site.now_s
    head.expire_leases(site.now_s, steady_s)

    for wall_s in (site.now_s + TEN_YEARS_S, site.now_s - TEN_YEARS_S):
        assert not head.expire_leases(wall_s, steady_s + PATIENCE_S - 1.0).facts

    assert head.expire_leases(site.now_s, steady_s + PATIENCE_S + 1.0).facts
    assert site.job(job).attempt is None


def test_a_head_that_was_restarted_waits_anew() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.disconnect("n1")
    end_at_lease(site, "n1", job)
    site.run_for(PATIENCE_S - LEASE_S - 1.0)

    site.restart_head()
    site.run_for(PATIENCE_S - 1.0)
    assert site.machine_of(job) == ("n1",)
    site.run_for(5.0)

    assert site.machine_of(job) == ("n2",)


def test_nothing_expires_in_safe_mode_and_the_wait_begins_anew_after_it() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.disconnect("n1")
    site.run_for(5.0)
    site.head.safe_mode = "safe mode"
    site.head.expire_leases(site.now_s, site.now_s)
    assert site.head.next_expiry_s() is None
    site.run_for(10 * PATIENCE_S)

    site.head.safe_mode = ""
    site.run_for(PATIENCE_S - 1.0)
    assert site.machine_of(job) == ("n1",)
    site.run_for(5.0)
    assert site.machine_of(job) == ("n2",)


def test_the_exit_of_a_node_that_comes_back_later_changes_nothing() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.disconnect("n1")
    end_at_lease(site, "n1", job)
    site.run_for(PATIENCE_S - LEASE_S + 5.0)
    assert site.machine_of(job) == ("n2",)

    site.connect("n1")
    site.run_for(10.0)

    assert site.machine_of(job) == ("n2",)
    assert site.job(job).attempts == 2
    assert not site.machines["n1"].reports()


def expired_on_the_node(site: World, job: int) -> None:
    """Let n1 end a job at its lease and come back before the head has given it up."""
    record = ExitRecord(
        job=job,
        attempt=site.job(job).attempts,
        kind=OutcomeKind.NODE_LOST,
        stop_reason=StopReason.LEASE,
        signal=15,
        ended_s=site.now_s,
    )
    name = site.machine_of(job)[0]
    site.machines[name].running.clear()
    site._take(
        site.head.reported(name, n.Exited(record=record, usage=Usage(), load=Load()), site.now_s)
    )
    site.settle()


def test_a_job_that_its_node_has_ended_is_queued_again_but_not_for_ever() -> None:
    """As after the loss of a node: it is not the job's failure."""
    site = world()
    job = leased(site)
    for _ in range(MAX_FAULTS):
        site.run_for(120.0)
        assert site.state(job) == "running"
        expired_on_the_node(site, job)

    assert site.state(job) == "held"
    assert site.job(job).holds == (HoldKind.SYSTEM,)


def test_parts_on_other_nodes_are_stopped_before_it_starts_again() -> None:
    site = World(*(node(f"n{number}", cpus=2) for number in (1, 2, 3, 4)))
    job = site.submit(
        "nodes=2:ppn=2", every_node=True, lease_s=LEASE_S, program=Program(runs_s=1000.0)
    )
    site.run_until(10.0)
    site.lose_power("n1")
    site.run_for(PATIENCE_S + 20.0)

    assert set(site.machine_of(job)) <= {"n2", "n3", "n4"}
    assert site.job(job).attempts == 2
    stops = [fact for fact in site.told(f.StopRequested, job) if isinstance(fact, f.StopRequested)]
    assert [stop.reason for stop in stops] == [StopReason.PEER_FAILED]


def test_a_delete_of_a_job_on_a_lost_node_is_done_when_its_lease_is_over() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.lose_power("n1")
    site.delete(job)
    site.run_for(PATIENCE_S + 1.0)

    assert site.state(job) == "done"


def test_a_longer_grace_since_its_start_does_not_matter_nor_a_shorter_one() -> None:
    """Its node was told the old one."""
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.alter(job, grace_s=0.0)
    site.lose_power("n1")
    site.run_for(PATIENCE_S - 1.0)

    assert site.machine_of(job) == ("n1",)


def test_the_site_may_give_a_lease_to_those_that_say_nothing() -> None:
    site = world(lease_s=90.0)

    jobs = [
        site.submit(lease_s=None),
        site.submit(lease_s=0.0),
        site.submit(rerunnable=False),
        site.submit(lease_s=45.0),
    ]

    assert [site.job(job).spec.lease_s for job in jobs] == [90.0, 0.0, 0.0, 45.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lease_s": 29.0}, "a lease of 29 s is not between 30 s and"),
        ({"lease_s": 1e9}, "is not between"),
        ({"lease_s": -1.0}, "is not between"),
        ({"lease_s": float("nan")}, "is not between"),
        ({"lease_s": 60.0, "rerunnable": False}, "must not be rerun"),
    ],
)
def test_a_lease_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(GschedError, match=words):
        world().submit(**changes)  # type: ignore[arg-type] # as `submit` takes them


def test_a_job_that_may_not_run_again_any_more_loses_its_lease_unless_it_runs_with_it() -> None:
    site = world()
    runs, also = leased(site), leased(site)
    waits = leased(site)
    del also
    site.run_until(10.0)

    site.alter(waits, rerunnable=False)
    assert site.job(waits).spec.lease_s == 0.0
    with pytest.raises(GschedError, match="runs with a lease"):
        site.alter(runs, rerunnable=False)


def test_an_operator_need_not_wait() -> None:
    site = world()
    job = leased(site)
    site.run_until(10.0)
    site.lose_power("n1")
    site.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.ConfirmDead()))
    site.run_for(5.0)

    assert site.machine_of(job) == ("n2",)
    site.run_for(2 * PATIENCE_S)
    assert site.job(job).attempts == 2


def test_a_training_resumes_from_its_newest_checkpoint() -> None:
    story = Story()
    job = story.training(2, lease_s=LEASE_S)
    story.run_for(5.0)
    story.tell(
        story.machines["a"],
        n.Checkpointed(job=job, attempt=1, step=9, work_done=90.0, path="/c/9"),
    )
    story.run_for(1.0)
    story.lose_power("a")
    story.run_for(PATIENCE_S + 5.0)

    attempt = story.job(job).attempt
    assert attempt is not None
    assert tuple(attempt.parts) == ("b",)
    assert attempt.work_begun == 90.0


def test_a_training_that_was_asked_to_leave_a_lost_node_goes_where_it_was_to_go() -> None:
    """I7, I9: its target is not started before the lease has expired."""
    story = Story()
    job = story.training(2, lease_s=LEASE_S)
    story.run_for(5.0)
    story.lost[n.StopAttempt] = 1
    story.move((job, gpus("b", 0, 1)))
    story.run_for(1.0)
    assert story.told(f.CheckpointTaken, job)
    story.lose_power("a")
    story.run_for(PATIENCE_S - 5.0)
    assert story.state(job) == "migrating"
    assert story.job(job).attempts == 1
    story.run_for(10.0)

    assert story.place(job) == gpus("b", 0, 1)
    assert story.job(job).attempts == 2
