"""Maintenance: windows of time in which no job runs on a node."""

import pytest

from gsched.protocol import actions as a
from gsched.protocol.node_rows import NodeRow
from gschedd.core.requests import commands as c
from gschedd.core.state.settings import Caller
from gschedd.core.views.nodes import node_row
from gschedd.policies.queue import balance, fifo
from tests.support.world import ADMIN, ALICE, BEGIN_S, World, node


def windowed(**changes: float) -> a.MaintainNode:
    """Return maintenance from 100 s to 200 s after the world's beginning."""
    times = {"from_s": 100.0, "to_s": 200.0, **changes}
    return a.MaintainNode(
        from_s=BEGIN_S + times["from_s"], to_s=BEGIN_S + times["to_s"], reason="new switch"
    )


def order(world: World, *names: str, action: a.AnyNodeAction | None = None) -> None:
    for name in names:
        world.do(c.ActOnNode(caller=ADMIN, node=name, action=action or windowed()))


def refused(world: World, action: a.AnyNodeAction) -> str:
    return world.refusal(c.ActOnNode(caller=ADMIN, node="n1", action=action)).message


@pytest.mark.parametrize("policy", [fifo.plan, balance.plan], ids=["fifo", "balance"])
def test_only_a_job_that_ends_before_it_starts(policy: object) -> None:
    """The others start when it is over; one without a walltime has no end that is before it."""
    world = World(node("n1", cpus=4), policy=policy)  # type: ignore[arg-type]  # a policy
    order(world, "n1")
    short = world.submit("walltime=90")
    long = world.submit("walltime=150")
    endless = world.submit()

    world.run_until(50)

    assert world.started_s(short) == 0
    assert (world.started_s(long), world.started_s(endless)) == (None, None)
    assert "maintenance of n1 from " in world.why(long)
    assert "new switch; its walltime does not end before" in world.why(long)
    assert "it has no walltime" in world.why(endless)
    world.run_until(300)
    assert (world.started_s(long), world.started_s(endless)) == (200, 200)


def test_jobs_go_to_nodes_without_maintenance() -> None:
    """All chunks of a job count, and a job that fits nowhere else holds nobody up."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    order(world, "n1")
    here = world.submit("nodes=1:ppn=4,walltime=500", runs_s=300.0)
    both = world.submit("nodes=2:ppn=1,walltime=500")
    short = world.submit("nodes=1:ppn=4,walltime=60")

    world.run_until(400)

    assert world.started_s(here) == 0
    assert world.started_s(short) == 0
    assert world.started_s(both) == 300


def test_the_first_job_that_waits_is_predicted_to_start_at_the_end_and_others_backfill() -> None:
    world = World(node("n1", cpus=4))
    order(world, "n1")
    first = world.submit("nodes=1:ppn=4,walltime=1000", runs_s=1000.0)
    world.run_until(1)

    assert world.wait_of(first).predicted_start_s == BEGIN_S + 200
    passes = world.submit("nodes=1:ppn=4,walltime=50")
    world.run_until(30)
    assert world.started_s(passes) is not None


def test_a_job_does_not_backfill_on_a_node_whose_maintenance_it_would_reach() -> None:
    """Beside a reservation it would fit there only."""
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    order(world, "n2")
    world.submit("nodes=n1:ppn=2,walltime=90", runs_s=90)
    first = world.submit("nodes=1:ppn=4,walltime=500", runs_s=5)
    beside = world.submit("nodes=1:ppn=1,walltime=400")

    world.run_until(20)

    assert world.started_s(beside) is None
    assert "would delay job 2's reservation" in world.why(beside)
    world.run_until(150)
    assert (world.started_s(first), world.started_s(beside)) == (90, 95)


def test_a_node_counts_as_drained_meanwhile_and_a_drain_by_an_operator_stays() -> None:
    world = World(node("n1"))
    order(world, "n1")

    def shown() -> NodeRow:
        return node_row(world.seen_node("n1"), world.head.state, world.now_s)

    def row() -> tuple[bool, str]:
        return shown().drained, shown().reason

    assert row()[0] is False
    assert shown().reason_s == 0
    assert row()[1].startswith("maintenance from ")
    world.run_until(101)
    assert row()[0] is True
    assert row()[1].startswith("maintenance until ")
    assert (shown().reason_s, shown().reason_by) == (BEGIN_S + 100, "")
    world.run_until(120)
    order(world, "n1", action=a.DrainNode(reason="my own"))
    world.run_until(150)
    order(world, "n1", action=a.DrainNode(reason="my own", migrate=True))
    world.run_until(250)
    assert row() == (True, "my own")
    assert shown().reason_s == BEGIN_S + 120
    assert shown().reason_by == "admin"
    order(world, "n1", action=a.ResumeNode())
    assert (shown().reason_s, shown().reason_by) == (0, "")


def test_a_restarted_head_knows_it_and_a_cancelled_one_bars_nothing() -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4))
    order(world, "n1", "n2")
    job = world.submit("walltime=1000")
    world.run_until(10)

    world.restart_head()
    world.run_until(20)

    assert {each.number for name in ("n1", "n2") for each in world.seen_node(name).windows} == {1}
    assert world.started_s(job) is None
    order(world, "n2", action=a.MaintainNode(cancel=1))
    world.run_until(30)
    assert world.started_s(job) == 20


def test_a_user_cannot_extend_a_running_job_into_it_and_an_operator_can() -> None:
    world = World(node("n1"))
    order(world, "n1")
    job = world.submit("walltime=50", runs_s=1000)
    world.run_until(10)

    def longer(to: str, by: Caller) -> c.ActOnJob:
        alteration = a.Alteration(resources=(f"walltime={to}",))
        return c.ActOnJob(caller=by, job=job, action=a.AlterJob(alteration=alteration))

    world.do(longer("90", ALICE))
    assert "would run into the maintenance of n1" in world.refusal(longer("150", ALICE)).message
    world.do(longer("150", ADMIN))
    world.run_until(300)
    assert world.job(job).ended_s == BEGIN_S + 150


def test_times_that_are_no_window_are_refused() -> None:
    world = World(node("n1"))
    order(world, "n1")

    assert "not after its beginning" in refused(world, windowed(from_s=300, to_s=300))
    assert "would have ended" in refused(world, windowed(from_s=-50, to_s=-10))
    assert "has maintenance 1 from" in refused(world, windowed(from_s=150, to_s=300))
    assert "more than five years" in refused(world, windowed(from_s=1e9, to_s=2e9))
    assert "has no maintenance 7" in refused(world, a.MaintainNode(cancel=7))
    order(world, "n1", action=windowed(from_s=200, to_s=300))
    assert [each.number for each in world.seen_node("n1").windows] == [1, 2]


def test_a_node_in_maintenance_is_not_resumed_but_its_drain_is() -> None:
    """A resumption that changed nothing would look as if the node ran jobs again."""
    world = World(node("n1", cpus=4))
    order(world, "n1", action=windowed(from_s=0.0, to_s=100.0))
    world.run_until(1)

    assert "n1 is in maintenance 1 until " in refused(world, a.ResumeNode())
    order(world, "n1", action=a.DrainNode(reason="fan"))
    order(world, "n1", action=a.ResumeNode())
    order(world, "n1", action=a.MaintainNode(cancel=1))
    job = world.submit()
    world.run_until(10)
    assert world.started_s(job) is not None
    order(world, "n1", action=a.ResumeNode())  # nothing is left to do
