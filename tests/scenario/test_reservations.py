"""Reservations: nodes and GPUs that are kept for some users in a window of time."""

from typing import Any, Literal

import pytest

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.reservation import AtEnd, Recurrence
from gsched.protocol import actions as a
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.question import question_of
from gschedd.core.forecast.start import answer_to
from gschedd.core.requests import commands as c
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Caller
from gschedd.core.views.reservations import reservation_rows
from gschedd.plan.reserved import WithReservations
from gschedd.plan.snapshot import Policy
from gschedd.policies.queue import balance, fifo
from tests.support.saving import Program
from tests.support.world import ADMIN, ALICE, BEGIN_S, BOB, World, node

POLICIES = [WithReservations(fifo.plan), WithReservations(balance.plan)]


def terms(**changes: Any) -> ReservationTerms:
    """Return what is stated of one for bob on node n1, from 100 s to 200 s after the beginning."""
    stated: dict[str, Any] = {
        "from_s": BEGIN_S + 100.0,
        "to_s": BEGIN_S + 200.0,
        "node_names": ("n1",),
        "users": ("bob",),
    }
    stated.update(changes)
    return ReservationTerms(**stated)


def change(
    verb: Literal["create", "alter", "delete"] = "create", name: str = "r", **changes: Any
) -> c.ChangeReservation:
    stated = terms(**changes) if verb == "create" else ReservationTerms(**changes)
    body = ReservationChange(verb=verb, name=name, terms=stated)
    return c.ChangeReservation(caller=ADMIN, action=body)


def one_node(*, policy: Policy | None = None, cpus: int = 4, gpus: int = 0) -> World:
    return World(node("n1", cpus=cpus, gpus=gpus), policy=policy or POLICIES[0])


@pytest.mark.parametrize("policy", POLICIES, ids=["fifo", "balance"])
def test_jobs_of_others_do_not_start_where_they_would_reach_into_it(policy: Policy) -> None:
    world = one_node(policy=policy)
    world.do(change())
    short = world.submit("walltime=90")
    long = world.submit("walltime=150")
    endless = world.submit()

    world.run_until(50)

    assert world.started_s(short) == 0
    assert (world.started_s(long), world.started_s(endless)) == (None, None)
    assert "reservation r of n1 from " in world.why(long)
    assert "its walltime does not end before" in world.why(long)
    world.run_until(300)
    assert (world.started_s(long), world.started_s(endless)) == (200, 200)


@pytest.mark.parametrize("policy", POLICIES, ids=["fifo", "balance"])
def test_a_job_in_it_starts_only_in_its_time_and_on_its_nodes(policy: Policy) -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=policy)
    world.do(change())
    mine = world.submit("walltime=50", by=BOB, reservation="r", runs_s=50)
    second = world.submit("nodes=1:ppn=4,walltime=50", by=BOB, reservation="r", runs_s=40)
    too_long = world.submit("walltime=150", by=BOB, reservation="r")

    world.run_until(99)
    assert world.started_s(mine) is None
    assert "reservation r begins at" in world.why(mine)
    world.run_until(120)
    assert (world.started_s(mine), world.machine_of(mine)) == (100, ("n1",))
    assert "ends at" in world.why(too_long)
    assert world.wait_of(second).predicted_start_s == BEGIN_S + 150
    world.run_until(250)
    assert world.started_s(second) == 150
    assert world.started_s(too_long) is None
    assert "there is no reservation r" in world.why(too_long)
    world.alter(too_long, by=BOB, reservation="")
    world.run_until(260)
    assert world.started_s(too_long) == 250


def test_a_job_that_waits_in_it_delays_no_job_elsewhere() -> None:
    """Each has an order of its own: the first that waits in one is not the first of all."""
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=POLICIES[1])
    world.do(change())
    world.run_until(100)
    world.submit("nodes=1:ppn=4,walltime=90", by=BOB, reservation="r", runs_s=90)
    waits = world.submit("nodes=1:ppn=4,walltime=50", by=BOB, reservation="r")
    world.submit("nodes=1:ppn=4", runs_s=1000)
    blocked = world.submit("nodes=1:ppn=4,walltime=50")
    world.run_until(110)

    assert world.started_s(waits) is None
    assert world.wait_of(blocked).reserved
    assert not world.wait_of(waits).reserved


def test_it_is_unknown_to_other_users() -> None:
    """What they may not see is refused with the words of one that does not exist."""
    world = one_node()
    world.do(change())
    world.do(
        change(
            name="mine",
            node_names=("n1",),
            users=("alice",),
            from_s=BEGIN_S + 300.0,
            to_s=BEGIN_S + 400.0,
        )
    )
    job = world.submit("walltime=50", reservation="mine")

    def refused(name: str, *, alter: bool) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            _ = world.alter(job, reservation=name) if alter else world.submit(reservation=name)
        return f"{caught.value.message} {caught.value.hint}".replace(repr(name), "NAME")

    words = "unknown reservation NAME reservations: mine"
    for alter in (False, True):
        assert refused("r", alter=alter) == refused("nix", alter=alter) == words
    world.do(change("delete", name="mine"))
    assert refused("r", alter=False) == "unknown reservation NAME reservations: there are none"
    world.alter(job, name="other")  # it names none that is there, and waits as it is
    with pytest.raises(NotPermittedError, match="admin may not use reservation r"):
        world.submit(reservation="r", by=ADMIN)


def test_a_rerunnable_job_in_the_way_is_requeued_at_its_beginning() -> None:
    world = one_node()
    long = world.submit("nodes=1:ppn=4", runs_s=1000)
    world.run_until(10)
    world.do(change())
    mine = world.submit("walltime=50", by=BOB, reservation="r", runs_s=10)

    world.run_until(130)

    assert world.started_s(mine) is not None
    assert world.state(long) == "queued"
    assert "reservation r has begun" in world.job(long).requeue_reason
    world.run_until(220)
    assert world.started_s(long) == 200


@pytest.mark.parametrize(
    ("may", "expected"),
    [("rerun", ["checkpoint", "requeue"]), ("not rerun", ["checkpoint"])],
)
def test_a_job_in_a_reservation_s_way_has_one_event_per_preemption_mode(
    may: str, expected: list[str]
) -> None:
    """It never saves its state, is asked again and again, and is requeued if it may be."""
    world, rerunnable = one_node(), may == "rerun"
    silent = Program(runs_s=1e6, saves_s=None)
    long = world.submit("nodes=1:ppn=4", program=silent, movable=True, rerunnable=rerunnable)
    world.run_until(10)
    world.do(change(to_s=BEGIN_S + 10_000.0))

    world.run_until(5000)

    told = [fact for fact in world.told(f.JobPreempted, long) if isinstance(fact, f.JobPreempted)]
    assert [fact.way for fact in told] == expected
    assert {fact.why for fact in told} == {"reservation r has begun"}
    assert world.job(long).preemptions == 1
    assert len(world.told(f.MigrationRequested, long)) == (1 if rerunnable else 3)
    lost_gpu_s = world.job(long).preempted_gpu_s
    assert lost_gpu_s == 0, "it has no GPU"
    assert told[-1].lost_s == (pytest.approx(400, abs=5) if rerunnable else 0)


@pytest.mark.parametrize("how", ["not rerunnable", "ignore_jobs"])
def test_it_waits_for_a_job_that_does_not_give_way(how: str) -> None:
    world = one_node()
    long = world.submit("nodes=1:ppn=4", runs_s=150, rerunnable=how == "ignore_jobs")
    world.run_until(10)
    world.do(change(ignore_jobs=how == "ignore_jobs"))
    mine = world.submit("walltime=40", by=BOB, reservation="r")

    world.run_until(190)

    assert world.started_s(long) == 0
    assert world.started_s(mine) == 150


def test_a_job_that_still_runs_at_its_end_is_requeued_or_cancelled() -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=POLICIES[0])
    world.do(change())
    world.do(change(name="s", node_names=("n2",), at_end=AtEnd.CANCEL))
    kept = world.submit(by=BOB, reservation="r", runs_s=1000)
    ended = world.submit(by=BOB, reservation="s", runs_s=1000)

    world.run_until(300)

    assert world.state(kept) == "queued"
    outcome = world.done[ended].outcome
    assert outcome is not None
    assert "reservation s has ended" in outcome.message
    assert not world.head.state.reservations


def test_a_part_of_a_node_is_kept() -> None:
    """GPUs with their part of the CPUs; the other GPUs are for everybody."""
    world = World(node("n1", cpus=8, gpus=4), policy=POLICIES[1])
    world.do(change(node_names=None, gpus=2))
    (share,) = world.head.state.reservations["r"].shares
    assert (share.gpu_indices, share.cpus, share.exclusive) == ((0, 1), 4, False)
    others = [world.submit("nodes=1:ppn=1:gpus=1", runs_s=1000) for _ in range(3)]
    mine = world.submit("nodes=1:ppn=4:gpus=2,walltime=50", by=BOB, reservation="r", runs_s=20)
    wide = world.submit("nodes=1:ppn=3", runs_s=1000)

    world.run_until(150)

    assert [world.started_s(job) for job in others] == [0, 0, None]
    assert world.started_s(mine) == 100
    assert world.started_s(wide) is None, "two CPUs are left beside those that are kept"
    world.run_until(210)
    assert world.started_s(others[2]) == 200


def test_a_magnetic_reservation_takes_matching_jobs() -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=POLICIES[1])
    world.do(change(magnetic=True))
    world.run_until(100)
    world.submit("nodes=1:ppn=4", runs_s=1000)
    mine = world.submit("nodes=1:ppn=4,walltime=50", by=BOB)
    other = world.submit("nodes=1:ppn=4,walltime=50")
    long = world.submit("nodes=1:ppn=4,walltime=500", by=BOB)
    world.run_until(110)

    assert (world.started_s(mine), world.machine_of(mine)) == (100, ("n1",))
    assert world.job(mine).current_attempt.reservation == "r"
    assert (world.started_s(other), world.started_s(long)) == (None, None)


def test_it_is_given_back_when_nobody_uses_it() -> None:
    world = one_node()
    world.do(change(to_s=BEGIN_S + 1000, release_unused_s=60.0))
    mine = world.submit("walltime=50", by=BOB, reservation="r", runs_s=50)
    other = world.submit("walltime=900")

    world.run_until(400)

    assert world.started_s(mine) == 100
    assert world.started_s(other) == 210, "60 s after the last job in it"


def test_a_recurring_one_has_its_next_window() -> None:
    world = one_node()
    world.do(change(recur=Recurrence.DAILY))
    mine = world.submit("walltime=50", by=BOB, reservation="r", runs_s=5)
    world.run_until(201)
    again = world.submit("walltime=50", by=BOB, reservation="r", runs_s=5)
    other = world.submit("walltime=90000")
    world.run_until(86_400 + 150)

    assert (world.started_s(mine), world.started_s(again)) == (100, 86_500)
    assert world.started_s(other) is None, "it would reach into one of its windows"


def test_another_node_is_chosen_when_one_fails() -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=POLICIES[0])
    world.do(change(node_names=None, nodes=1))
    assert [share.node for share in world.head.state.reservations["r"].shares] == ["n1"]

    world.run_until(10)
    world.disconnect("n1")
    world.run_until(60)
    assert [share.node for share in world.head.state.reservations["r"].shares] == ["n1"]
    world.run_until(90)
    assert [share.node for share in world.head.state.reservations["r"].shares] == ["n2"]
    mine = world.submit("walltime=50", by=BOB, reservation="r")
    world.run_until(120)
    assert (world.started_s(mine), world.machine_of(mine)) == (100, ("n2",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"from_s": BEGIN_S - 1000, "to_s": BEGIN_S + 9}, "is in the past"),
        ({"to_s": BEGIN_S + 100}, "not after its beginning"),
        ({"to_s": None, "duration_s": 0.0}, "not after its beginning"),
        ({"to_s": None}, "needs either its end or its duration"),
        ({"node_names": ("n9",)}, "unknown node 'n9'"),
        ({"node_names": None}, "holds either nodes or GPUs"),
        ({"gpus": 1}, "holds either nodes or GPUs"),
        ({"node_names": None, "nodes": 2}, "2 nodes requested, and 1 of 1 are free"),
        ({"node_names": None, "gpus": 9}, "9 GPUs requested, and 4 are free"),
        ({"node_names": None, "gpus": 1, "gpu_type": "t4"}, "1 GPU t4 requested, and 0 are free"),
        ({"users": None}, "is for nobody"),
        ({"maintenance": True}, "it has no users"),
        ({"release_unused_s": 5.0}, "after a minute at the earliest"),
        ({"recur": Recurrence.DAILY, "to_s": BEGIN_S + 90_000}, "its next window would begin"),
        ({"from_s": BEGIN_S + 1e9, "to_s": BEGIN_S + 1e9 + 1}, "more than five years"),
        ({"zone": "Mars/Base"}, "unknown time zone"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    world = World(node("n1", cpus=8, gpus=4))

    assert message in world.refusal(change(**changes)).message
    assert not world.head.state.reservations


def test_two_do_not_hold_the_same() -> None:
    world = World(node("n1", cpus=8, gpus=4))
    world.do(change(recur=Recurrence.DAILY))
    tomorrow: dict[str, Any] = {"from_s": BEGIN_S + 86_400 + 150, "to_s": BEGIN_S + 86_400 + 160}

    assert "node n1 is in reservation r from" in world.refusal(change(name="s")).message
    assert "which overlaps" in world.refusal(change(name="s", **tomorrow)).message
    assert "0 are free" in world.refusal(change(name="s", node_names=None, gpus=1)).message
    world.do(change(name="s", from_s=BEGIN_S + 200, to_s=BEGIN_S + 300))
    assert "overlaps" in world.refusal(change("alter", "s", from_s=BEGIN_S + 150)).message


def test_only_operators_change_it() -> None:
    world = one_node()
    body = ReservationChange(verb="create", name="r", terms=terms())

    refusal = world.refusal(c.ChangeReservation(caller=ALICE, action=body))

    assert "only an operator can create, alter and delete reservations" in refusal.message
    boss = Caller(user="boss", uid=1003, gid=1, administrator=True)
    world.do(c.ChangeReservation(caller=boss, action=body))


def test_it_can_be_altered_and_deleted() -> None:
    world = one_node()
    world.do(change())
    world.do(change("alter", to_s=BEGIN_S + 150, users=("bob", "carol")))
    kept = world.head.state.reservations["r"]
    assert (kept.to_s, kept.users) == (BEGIN_S + 150, ("bob", "carol"))
    other = world.submit("walltime=500")
    world.run_until(20)
    assert world.started_s(other) is None

    world.do(change("delete"))
    world.run_until(21)

    assert world.started_s(other) == 20
    assert "unknown reservation 'r'" in world.refusal(change("delete")).message


def test_a_restarted_head_keeps_it() -> None:
    world = one_node()
    world.do(change())
    mine = world.submit("walltime=50", by=BOB, reservation="r", runs_s=50)
    other = world.submit("walltime=500")
    for at_s in (50, 100, 120):
        world.run_until(at_s)
        world.restart_head()
    world.run_until(210)

    assert world.started_s(mine) is not None
    assert (world.started_s(mine), world.started_s(other)) == (100, 200)


def predicted_s(world: World, job: int) -> float | None:
    """Return when a job is predicted to start, seconds after the world's beginning."""
    seen = snapshot(world.head.state, world.settings, world.now_s)
    question = question_of(
        world.job(job), state=world.head.state, settings=world.settings, seen=seen
    )
    start_s = answer_to(question, world.policy).starts[job].start_s
    return None if start_s is None else start_s - BEGIN_S


def test_predicted_starts_know_of_it() -> None:
    """Of a job in it, of those that wait for its end, and of one that gives way."""
    world = one_node(policy=POLICIES[1])
    world.submit("nodes=1:ppn=4", runs_s=1000)
    world.run_until(10)
    world.do(change())
    mine = world.submit("nodes=1:ppn=4,walltime=50", by=BOB, reservation="r", runs_s=50)
    second = world.submit("nodes=1:ppn=4,walltime=30", by=BOB, reservation="r", runs_s=30)
    world.run_until(20)

    assert (predicted_s(world, mine), predicted_s(world, second)) == (100, 150)
    world.run_until(120)
    assert predicted_s(world, 1) == 200
    world.run_until(160)
    assert (world.started_s(mine), world.started_s(second)) == (100, 150)


def unknown_words(world: World, job: int) -> str:
    """Return why it is unknown when a job starts."""
    seen = snapshot(world.head.state, world.settings, world.now_s)
    question = question_of(
        world.job(job), state=world.head.state, settings=world.settings, seen=seen
    )
    return answer_to(question, world.policy).starts[job].start_unknown


def test_why_a_job_waits_whose_walltime_is_longer_than_its_reservation() -> None:
    world = one_node()
    world.do(change())
    long = world.submit("walltime=150", by=BOB, reservation="r")
    world.run_until(20)

    assert "begins at" in world.why(long)
    assert "which is less than its walltime" in world.why(long)
    no_window = "reservation r has no window in which it could start and end"
    assert unknown_words(world, long) == no_window
    world.run_until(120)
    assert "before its walltime would end" in world.why(long)
    world.do(change("delete"))
    world.submit("nodes=1:ppn=4", runs_s=1000)
    world.run_until(140)
    assert "there is no reservation r" in world.why(long)
    assert unknown_words(world, long) == no_window


def test_an_array_that_waits_for_it_is_listed_once() -> None:
    """And no longer when all of its elements have started."""
    world = one_node()
    world.do(change())
    array = world.submit("walltime=30", by=BOB, reservation="r", array="0-6", runs_s=25)

    def listed() -> tuple[tuple[int, ...], int]:
        (row,) = reservation_rows(world.head.state, world.settings, ADMIN)
        return row.waiting, len(row.running)

    world.run_until(50)
    assert listed() == ((array,), 0)
    world.run_until(110)
    assert listed() == ((array,), 4)
    world.run_until(135)
    assert listed() == ((), 3)


def test_a_job_in_it_is_not_extended_beyond_its_end_nor_another_one_into_it() -> None:
    world = World(node("n1", cpus=4), node("n2", cpus=4), policy=POLICIES[0])
    world.do(change())
    other = world.submit("nodes=n1,walltime=90", runs_s=90)
    mine = world.submit("walltime=40", by=BOB, reservation="r", runs_s=200)

    def longer(job: int, by: Caller, to: str) -> c.ActOnJob:
        alteration = a.Alteration(resources=(f"walltime={to}",))
        return c.ActOnJob(caller=by, job=job, action=a.AlterJob(alteration=alteration))

    world.run_until(10)
    assert "run into reservation r of n1" in world.refusal(longer(other, ALICE, "150")).message
    world.run_until(110)
    assert "which ends at" in world.refusal(longer(mine, BOB, "150")).message
    world.do(longer(mine, BOB, "90"))
