"""Nodes that gsched drains itself: probed, and resumed when they can start jobs again."""

import errno
from itertools import pairwise

from gsched.model.job import LaunchFailure
from gsched.model.states import LaunchStage, Subject
from gsched.protocol import actions as a
from gsched.protocol import node as n
from gschedd.core.nodes.probation import DAY_S, MAX_RESUMPTIONS
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.views.nodes import node_row
from tests.support.world import ADMIN, ALICE, BOB, World, node

BROKEN = LaunchFailure(stage=LaunchStage.GROUP, subject=Subject.NODE, errno=errno.EROFS)


def broken(*names: str) -> World:
    """Return a world whose first machine cannot start anything, for good."""
    world = World(*(node(name) for name in names or ("n1", "n2")))
    machine = world.machines["n1"]
    machine.launch_fault, machine.fault = "cannot make the control group", BROKEN
    return world


def mend(world: World) -> None:
    world.machines["n1"].launch_fault = ""


def node_facts(world: World, kind: type[f.NodeFact]) -> list[f.NodeFact]:
    return [fact for fact in world.facts if isinstance(fact, kind)]


def test_a_probe_that_fails_drains_the_node_at_the_first_failed_start() -> None:
    world = broken()
    job = world.submit()

    world.run_until(1)

    seen = world.seen_node("n1")
    assert seen.drained
    assert seen.reason == "it cannot start jobs: cannot make the control group"
    assert [fact.at_s for fact in node_facts(world, f.NodeDrained)] == [world.now_s - 1]
    world.run_until(100)
    assert world.state(job) == "done"


def test_a_probe_that_passes_drains_nothing() -> None:
    """Something of the job's is odd; its next attempt is elsewhere."""
    world = broken()
    world.machines["n1"].probe_fault = ""
    job = world.submit()

    world.run_until(100)

    assert not world.seen_node("n1").drained
    assert len(world.machines["n1"].probes) == 1
    assert world.state(job) == "done"


def test_a_drained_node_is_probed_with_longer_pauses_and_resumed_when_it_is_well() -> None:
    world = broken()
    world.submit()
    world.run_until(400)
    assert world.machines["n1"].probes == [0, 30, 90, 210]

    mend(world)
    world.run_until(500)

    assert world.machines["n1"].probes[4:] == [450]
    seen = world.seen_node("n1")
    assert (seen.drained, seen.reason, seen.faults) == (False, "", 0)
    (resumed,) = node_facts(world, f.NodeResumed)
    assert isinstance(resumed, f.NodeResumed)
    assert (resumed.by, resumed.automatic) == ("gsched", True)


def test_the_pause_has_an_end() -> None:
    world = broken()
    world.submit()

    world.run_until(2 * DAY_S)

    probes = world.machines["n1"].probes
    pauses = [after - before for before, after in pairwise(probes)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 3600


def flap(world: World) -> None:
    """Let the node break, be drained, be mended and be probed."""
    machine = world.machines["n1"]
    machine.launch_fault = "cannot make the control group"
    job = world.submit("nodes=1:ppn=4")
    world.run_for(1)
    assert world.seen_node("n1").drained
    world.delete(job)
    mend(world)
    world.run_for(3700)


def test_a_node_that_breaks_again_and_again_stays_drained() -> None:
    world = broken("n1")
    for _ in range(MAX_RESUMPTIONS):
        flap(world)
        assert not world.seen_node("n1").drained

    flap(world)

    seen = world.seen_node("n1")
    assert seen.drained
    assert seen.reason == (
        "it cannot start jobs: cannot make the control group; it was resumed 6 times within a "
        "day, so it stays drained until gnodes resume"
    )
    before = len(world.machines["n1"].probes)
    world.run_for(2 * DAY_S)
    assert world.seen_node("n1").drained
    assert len(world.machines["n1"].probes) == before


def test_an_operator_resumes_it_and_all_is_forgotten() -> None:
    world = broken("n1")
    for _ in range(MAX_RESUMPTIONS + 1):
        flap(world)

    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.ResumeNode()))
    flap(world)

    assert not world.seen_node("n1").drained
    assert len(world.seen_node("n1").probation.resumed_s) == 1


def test_the_limit_is_for_a_day() -> None:
    world = broken("n1")
    for _ in range(MAX_RESUMPTIONS):
        flap(world)
    world.run_for(DAY_S)

    flap(world)

    assert not world.seen_node("n1").drained


def test_a_node_that_lacked_what_jobs_use_up_is_resumed_as_often_as_it_takes() -> None:
    """Else a user whose jobs fill it now and then would have it drained for good."""
    world = broken("n1")
    world.machines["n1"].fault = LaunchFailure(
        stage=LaunchStage.FORK, subject=Subject.NODE, errno=errno.EAGAIN
    )

    for _ in range(3 * MAX_RESUMPTIONS):
        flap(world)
        assert not world.seen_node("n1").drained


def test_a_node_that_an_operator_drained_never_resumes_by_itself() -> None:
    """Also where gsched had drained it before, and after a reboot (J13)."""
    world = broken()
    world.submit()
    world.run_until(10)
    assert world.seen_node("n1").drained

    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="new disk")))
    mend(world)
    world.run_for(DAY_S)
    world.reboot("n1")
    world.run_for(DAY_S)

    seen = world.seen_node("n1")
    assert (seen.drained, seen.reason) == (True, "new disk")
    assert world.machines["n1"].probes == [0]


def test_j13_a_drained_node_that_comes_back_is_probed_at_once() -> None:
    world = broken()
    world.submit()
    world.run_until(1000)
    before = len(world.machines["n1"].probes)
    world.lose_power("n1")
    world.run_until(20_000)
    assert len(world.machines["n1"].probes) == before

    mend(world)
    world.connect("n1")
    world.run_for(0)

    assert len(world.machines["n1"].probes) == before + 1
    assert not world.seen_node("n1").drained


def test_different_users_drain_a_node_whose_probe_passes_but_it_is_resumed() -> None:
    world = broken("n1")
    world.machines["n1"].probe_fault = ""
    for who in (ALICE, BOB, ALICE):
        world.submit(by=who)
    world.run_until(1)
    assert world.seen_node("n1").drained
    assert "3 launches of 2 users failed in a row" in world.seen_node("n1").reason

    mend(world)
    world.run_until(60)

    assert not world.seen_node("n1").drained
    assert [fact.at_s - world.facts[0].at_s for fact in node_facts(world, f.NodeResumed)] == [30]


def test_a_probe_that_is_not_answered_is_asked_for_again() -> None:
    world = broken()
    world.lost[n.Probe] = 1
    world.submit()
    world.run_until(100)
    assert world.machines["n1"].probes == []
    assert not world.seen_node("n1").drained

    world.run_until(130)

    assert world.machines["n1"].probes == [120]
    assert world.seen_node("n1").drained


def test_an_answer_to_another_request_is_dropped() -> None:
    world = broken()
    world.submit()
    world.run_until(40)
    mend(world)

    world.head.probed("n1", n.Probed(request=1, passed=True), world.now_s)
    world.head.probed("n9", n.Probed(request=1, passed=True), world.now_s)

    assert world.seen_node("n1").drained
    assert world.head.oddities["probe_not_asked_for"] == 2


def test_probes_go_on_after_the_head_was_started_anew() -> None:
    world = broken()
    world.submit()
    world.run_until(40)

    world.restart_head()
    mend(world)
    world.run_until(200)

    assert not world.seen_node("n1").drained


def test_a_node_that_cannot_be_probed_waits_for_an_operator() -> None:
    world = broken()
    world.machines["n1"].can_probe = False
    world.disconnect("n1")
    world.connect("n1")
    for who in (ALICE, BOB, ALICE, BOB, ALICE, BOB):
        world.submit("nodes=1:ppn=2", by=who)
    world.run_until(60)
    assert world.seen_node("n1").drained
    mend(world)

    world.run_for(DAY_S)

    assert world.seen_node("n1").drained
    assert world.machines["n1"].probes == []


def test_gnodes_can_tell_when_the_next_probe_is_and_how_often_it_failed() -> None:
    world = broken()
    world.submit()
    world.run_until(100)

    row = node_row(world.seen_node("n1"), world.head.state, world.now_s)

    assert (row.drained, row.automatic, row.probes_failed, row.resumptions) == (True, True, 2, 0)
    assert row.probe_due_s - world.now_s == 110


def test_a_node_on_probation_can_be_removed() -> None:
    """It is not probed any more, and the head goes on."""
    world = broken()
    world.submit()
    world.run_until(100)
    assert world.seen_node("n1").drained
    world.disconnect("n1")

    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.RemoveNode()))

    assert "n1" not in world.head.state.nodes
    job = world.submit(runs_s=5.0)
    world.run_until(world.now_s + 5_000)
    assert world.state(job) == "done"
