"""Power saving: idle nodes are powered down, and up again for jobs that wait."""

from collections.abc import Callable

import msgspec
import pytest

from gsched.errors import GschedError
from gsched.model.states import PowerState
from gsched.protocol import actions as a
from gsched.protocol.reservations import ReservationChange, ReservationTerms
from gschedd.core.requests import commands as c
from gschedd.core.views.nodes import node_row
from gschedd.plan.reserved import WithReservations
from gschedd.policies.queue import balance
from tests.support.world import ADMIN, BEGIN_S, BOB, Machine, World, node, settings

PROGRAMS = {"suspend_program": "/site/suspend", "resume_program": "/site/resume"}


def world_of(*machines: Machine, **changes: object) -> World:
    """Return a world that powers nodes down after 100 s, within 20 s, and up within 60 s."""
    times = {"suspend_after_s": 100.0, "suspend_timeout_s": 20.0, "resume_timeout_s": 60.0}
    config = settings(**{**PROGRAMS, **times, **changes})
    return World(*machines, config=config, policy=balance.plan)


def power(world: World, name: str) -> PowerState:
    return world.seen_node(name).power.state


def asleep(world: World, *names: str) -> None:
    """Let nodes be idle until they are powered down."""
    world.run_until(world.elapsed_s + 101)
    for name in names:
        assert power(world, name) is PowerState.POWERING_DOWN
        world.lose_power(name)
    world.run_until(world.elapsed_s + 21)
    assert {power(world, name) for name in names} == {PowerState.POWERED_DOWN}


def order(world: World, name: str, *, up: bool) -> None:
    world.do(c.ActOnNode(caller=ADMIN, node=name, action=a.PowerNode(up=up)))


def refusal(world: World, name: str, *, up: bool) -> GschedError:
    return world.refusal(c.ActOnNode(caller=ADMIN, node=name, action=a.PowerNode(up=up)))


def row(world: World, name: str) -> tuple[str, bool, str]:
    found = node_row(world.seen_node(name), world.head.state, world.now_s)
    return found.power, found.is_down, found.reason


def test_an_idle_node_is_powered_down_and_up_for_a_job_that_starts_when_it_registers() -> None:
    world = world_of(node("n1", cpus=4))
    world.submit(runs_s=30)
    world.run_until(129)
    assert world.switched == []

    world.run_until(131)
    assert world.switched == [(130, "n1", "down")]
    assert row(world, "n1") == ("powering_down", False, "idle for 00:01:40")
    world.lose_power("n1")
    assert power(world, "n1") is PowerState.POWERING_DOWN
    world.run_until(151)
    assert row(world, "n1") == ("powered_down", False, "idle for 00:01:40")

    world.run_until(500)
    job = world.submit("walltime=10")
    assert world.switched[1:] == [(500, "n1", "up")]
    assert "n1 is powering up: up by" in world.why(job)
    assert world.wait_of(job).predicted_start_s == BEGIN_S + 560
    assert row(world, "n1") == ("powering_up", False, f"for job {job}")
    world.run_until(530)
    world.connect("n1")
    assert power(world, "n1") is PowerState.ON
    assert world.started_s(job) == 530
    world.check_history()


def test_only_as_many_nodes_are_powered_up_as_jobs_need() -> None:
    names = [f"n{number}" for number in range(1, 7)]
    world = world_of(*(node(name, cpus=4) for name in names), exclude_nodes=("n[1-2]",))
    asleep(world, *names[2:])
    assert {name for _, name, _ in world.switched} == set(names[2:])

    wide = world.submit("nodes=3:ppn=4,walltime=900", runs_s=900)
    assert [name for _, name, to in world.switched if to == "up"] == ["n3"]
    small = [world.submit("nodes=1:ppn=2,walltime=900") for _ in range(2)]
    assert [name for _, name, to in world.switched if to == "up"] == ["n3", "n4"]
    world.run_for(10)
    world.connect("n3")
    assert set(world.machine_of(wide)) == {"n1", "n2", "n3"}
    world.connect("n4")
    assert [world.machine_of(job) for job in small] == [("n4",), ("n4",)]


def test_a_wide_job_is_not_overtaken_for_ever_by_jobs_on_nodes_that_are_up() -> None:
    """The reservation counts with a node that is powered up."""
    world = world_of(node("n1", cpus=4), node("n2", cpus=4), exclude_nodes=("n1",))
    asleep(world, "n2")
    world.submit("nodes=1:ppn=2,walltime=20", runs_s=20)
    wide = world.submit("nodes=2:ppn=4,walltime=100")
    world.run_for(1)
    long = world.submit("nodes=1:ppn=2,walltime=5000", runs_s=5000)
    world.run_for(5)

    assert world.started_s(long) is None
    world.run_for(40)
    assert power(world, "n2") is PowerState.POWERING_UP
    world.connect("n2")
    assert set(world.machine_of(wide)) == {"n1", "n2"}


def test_many_jobs_without_room_do_not_keep_others_from_their_nodes() -> None:
    world = world_of(node("n1", cpus=4, gpus=1), node("n2", cpus=4), exclude_nodes=("n1",))
    asleep(world, "n2")
    for _ in range(600):
        world.submit("nodes=1:gpus=1,walltime=9000", runs_s=9000)
    assert "up" not in {to for _, _, to in world.switched}

    world.submit("nodes=n2:ppn=4,walltime=10")

    assert world.switched[-1][1:] == ("n2", "up")


def test_a_node_that_does_not_come_up_is_drained_and_another_one_powered_up() -> None:
    world = world_of(node("n1", cpus=4), node("n2", cpus=4))
    asleep(world, "n1", "n2")
    begin_s = world.elapsed_s
    job = world.submit("nodes=1:ppn=4,walltime=10")
    world.run_until(begin_s + 61)

    assert [each[1:] for each in world.switched[2:]] == [("n1", "up"), ("n2", "up")]
    assert world.seen_node("n1").drained
    text = "it was powered up, and has not registered within 00:01:00"
    assert row(world, "n1") == ("", True, text)
    world.connect("n2")
    assert world.started_s(job) == begin_s + 61


def test_a_node_that_comes_up_too_late_is_probed_and_resumed() -> None:
    world = world_of(node("n1", cpus=4))
    asleep(world, "n1")
    job = world.submit("nodes=1:ppn=4,walltime=10")
    world.run_for(70)
    assert world.seen_node("n1").drained

    world.connect("n1")
    world.run_for(10)

    assert not world.seen_node("n1").drained
    assert world.started_s(job) is not None


def test_a_node_that_stays_connected_is_on_again() -> None:
    world = world_of(node("n1"))
    world.run_until(101)
    job = world.submit("walltime=5", runs_s=1)
    world.run_until(119)
    assert world.started_s(job) is None

    world.run_until(121)

    assert power(world, "n1") is PowerState.ON
    assert world.started_s(job) == 120
    world.run_until(230)
    assert [each[0] for each in world.switched] == [100, 221]


def test_it_is_not_powered_up_before_it_can_be_off() -> None:
    world = world_of(node("n1"))
    world.run_until(101)
    world.lose_power("n1")
    world.submit("walltime=5")
    assert "up" not in {to for _, _, to in world.switched}
    assert refusal(world, "n1", up=True).message.startswith("node n1 is powering down until")

    world.run_until(121)

    assert world.switched[1:] == [(120, "n1", "up")]


@pytest.mark.parametrize(
    "keep",
    [
        lambda world: world.do(
            c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="fans"))
        ),
        lambda world: world.do(
            c.ActOnNode(
                caller=ADMIN,
                node="n1",
                action=a.MaintainNode(from_s=world.now_s, to_s=world.now_s + 900, reason="switch"),
            )
        ),
        lambda world: world._take(world.head.has_problem("n1", "disk full", world.now_s)),
        lambda world: world.submit("walltime=2000", runs_s=2000),
    ],
    ids=["drained", "maintenance", "problem", "job"],
)
def test_a_node_that_is_not_idle_stays_on(keep: Callable[[World], object]) -> None:
    world = world_of(node("n1"))
    world.run_until(50)
    keep(world)
    world.run_until(500)
    assert world.switched == []


def test_no_drained_node_and_none_with_maintenance_to_come_is_powered_up() -> None:
    world = world_of(node("n1"), node("n2"), node("n3"))
    asleep(world, "n1", "n2", "n3")
    drain = a.DrainNode(reason="fans")
    window = a.MaintainNode(from_s=world.now_s + 50, to_s=world.now_s + 500, reason="switch")
    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=drain))
    world.do(c.ActOnNode(caller=ADMIN, node="n2", action=window))

    world.submit("walltime=60")

    assert [each[1:] for each in world.switched[3:]] == [("n3", "up")]
    assert row(world, "n1") == ("powered_down", False, "fans")


def reserve(world: World, *, after_s: float, **changes: object) -> float:
    """Reserve n1 for bob for 500 s; return when it begins, seconds after the world."""
    from_s = world.elapsed_s + after_s
    whose = {} if changes.get("maintenance") else {"users": ("bob",)}
    stated = {"from_s": BEGIN_S + from_s, "duration_s": 500.0, "node_names": ("n1",), **whose}
    terms = msgspec.convert({**stated, **changes}, ReservationTerms)
    body = ReservationChange(verb="create", name="course", terms=terms)
    world.do(c.ChangeReservation(caller=ADMIN, action=body))
    return from_s


def test_a_node_is_powered_up_in_time_for_a_reservation_and_stays_on_until_its_end() -> None:
    """So long before it as `resume_timeout_s`; the reservation's jobs start at its beginning."""
    world = world_of(node("n1"))
    world.head.policy = WithReservations(balance.plan)
    asleep(world, "n1")
    from_s = reserve(world, after_s=200)
    job = world.submit("walltime=60", by=BOB, reservation="course", runs_s=60)
    world.run_until(from_s - 61)
    assert power(world, "n1") is PowerState.POWERED_DOWN

    world.run_until(from_s - 59)
    assert world.switched[-1] == (from_s - 60, "n1", "up")
    assert row(world, "n1")[2] == "for reservation course"
    world.connect("n1")
    world.run_until(from_s + 499)
    assert world.started_s(job) == from_s
    assert world.switched[-1] == (from_s - 60, "n1", "up")
    world.run_until(from_s + 502)
    assert world.switched[-1] == (from_s + 500, "n1", "down")


def test_a_node_is_not_powered_down_if_it_could_not_be_up_again_for_a_reservation() -> None:
    world = world_of(node("n1"))
    world.run_until(50)
    reserve(world, after_s=125)
    world.run_until(174)

    assert world.switched == []


def test_no_drained_node_and_none_for_maintenance_is_powered_up_for_a_reservation() -> None:
    world = world_of(node("n1"), node("n2"))
    asleep(world, "n1", "n2")
    reserve(world, after_s=10, node_names=("n2",), maintenance=True)
    world.do(c.ActOnNode(caller=ADMIN, node="n1", action=a.DrainNode(reason="fans")))
    body = ReservationTerms(
        from_s=world.now_s + 10, duration_s=500, node_names=("n1",), users=("bob",)
    )
    change = ReservationChange(verb="create", name="other", terms=body)
    world.do(c.ChangeReservation(caller=ADMIN, action=change))
    world.run_until(world.elapsed_s + 100)

    assert {to for _, _, to in world.switched} == {"down"}


def test_no_more_nodes_a_minute_than_are_allowed() -> None:
    names = [f"n{number}" for number in range(1, 6)]
    world = world_of(*(node(name, cpus=1) for name in names), nodes_per_minute=2)
    world.run_until(300)
    assert [each[0] for each in world.switched if each[2] == "down"][:3] == [100, 100, 160]

    world = world_of(*(node(name, cpus=1) for name in names))
    asleep(world, *names)
    world.settings = settings(**{**PROGRAMS, "nodes_per_minute": 2})
    world.head.settings = world.settings
    begin_s = world.elapsed_s
    for _ in names:
        world.submit("walltime=10")
    world.run_for(130)
    ups = [at_s - begin_s for at_s, _, to in world.switched if to == "up"]
    assert ups == [0, 0, 60, 60, 120]


def test_a_node_that_a_waiting_job_will_use_is_not_powered_down() -> None:
    """A job that waits for one more node keeps the idle ones up that it will use."""
    world = world_of(node("n1", cpus=1), node("n2", cpus=1), resume_timeout_s=3000.0)
    asleep(world, "n1", "n2")
    world.submit("nodes=2:ppn=1,walltime=10")
    world.run_for(1)
    world.connect("n1")
    world.run_for(1000)
    assert power(world, "n1") is PowerState.ON
    assert power(world, "n2") is PowerState.POWERING_UP
    assert [each[1:] for each in world.switched[2:]] == [("n1", "up"), ("n2", "up")]


def test_a_restarted_head_goes_on_and_repeats_what_was_under_way() -> None:
    world = world_of(node("n1"), node("n2"), node("n3"), node("n4"), exclude_nodes=("n4",))
    world.submit("nodes=n2,walltime=1000", runs_s=65)
    world.submit("nodes=n3,walltime=1000", runs_s=1000)
    world.run_until(101)
    world.lose_power("n1")
    world.run_until(166)
    assert power(world, "n1") is PowerState.POWERED_DOWN
    assert power(world, "n2") is PowerState.POWERING_DOWN
    job = world.submit("nodes=n1,walltime=10")
    before = len(world.switched)

    world.restart_head()
    world.run_until(167)

    assert world.switched[before:] == [(166, "n1", "up"), (166, "n2", "down")]
    assert power(world, "n2") is PowerState.POWERING_DOWN
    world.lose_power("n2")
    world.connect("n1")
    assert world.started_s(job) == 167
    world.run_until(190)
    assert power(world, "n2") is PowerState.POWERED_DOWN
    world.restart_head()
    world.run_until(250)
    assert power(world, "n2") is PowerState.POWERED_DOWN
    assert world.started_s(2) == 0
    world.check_history()


def test_a_node_that_came_up_while_no_head_ran_is_not_drained() -> None:
    world = world_of(node("n1"))
    asleep(world, "n1")
    job = world.submit("walltime=10")
    world.now_s += 500
    world.restart_head()
    world.run_for(1)
    assert not world.seen_node("n1").drained
    world.connect("n1")
    assert world.started_s(job) == world.elapsed_s


def test_a_node_that_somebody_else_powers_up_is_on() -> None:
    world = world_of(node("n1"))
    asleep(world, "n1")
    world.connect("n1")
    assert row(world, "n1") == ("", False, "")
    world.run_for(50)
    assert world.started_s(world.submit("walltime=5")) is not None


def test_an_operator_powers_nodes_down_and_up() -> None:
    world = world_of(node("n1"), node("n2"))
    world.submit("nodes=n2,walltime=50", runs_s=1000)
    assert "has 1 job, so it is not powered down" in refusal(world, "n2", up=False).message
    order(world, "n1", up=False)
    order(world, "n1", up=False)
    world.lose_power("n1")
    world.run_until(30)
    assert row(world, "n1") == ("powered_down", False, "requested by admin")
    order(world, "n1", up=True)
    order(world, "n1", up=True)
    world.connect("n1")
    assert [each[1:] for each in world.switched] == [("n1", "down"), ("n1", "up")]

    plain = World(node("n1"))
    assert "no programs power nodes" in refusal(plain, "n1", up=False).message
    plain.run_until(10_000)
    assert plain.switched == []


def test_without_its_programs_nothing_is_switched_and_what_is_down_can_come_back() -> None:
    world = world_of(node("n1"))
    world.run_until(101)
    world.lose_power("n1")
    world.head.settings = settings()
    world.run_until(200)
    job = world.submit("walltime=10")
    world.run_until(900)
    assert power(world, "n1") is PowerState.POWERED_DOWN
    assert len(world.switched) == 1
    world.connect("n1")
    assert world.started_s(job) == 900
