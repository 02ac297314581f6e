"""DRS: which plan a training gets, who goes first, what is moved, and what people are told."""

import pytest
from msgspec import structs

from baselines.registry import TRAININGS
from gsched.config.policies import DrsConfig
from gsched.model.resources import Allocation
from gschedd.allocation.running import TrainingJobs, is_scattered
from gschedd.models.runtime import PaperSpeed
from gschedd.plan.elastic import allocate_on
from gschedd.plan.forecast import Forecast
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import SortedSpaces, Spaces
from gschedd.plan.training import Fabric, Layout, TrainingProfile, gpus_by_node
from gschedd.policies.training import drs
from gschedd.policies.training.drs.choice import Curve, choose
from gschedd.policies.training.drs.options import PlacementOption, form_of
from tests.support.spaces import space
from tests.support.training_jobs import (
    NOW_S,
    RESNET50,
    VGG16,
    World,
    check,
    elastic,
    gpu_nodes,
    group_of,
    profile,
    snapshot_of,
)

PAPER = TRAININGS["drs-paper"]

#: One sample a second on each GPU, whatever lies between them.
LINEAR = PaperSpeed(parameters=0, batch=1, step_time_s=1.0)
#: As fast on one GPU; across nodes it hardly gains.
CHATTY = PaperSpeed(parameters=1e9, batch=1, step_time_s=1.0)


def gpus_of(plan: Plan) -> dict[int, dict[str, int]]:
    return {start.job: gpus_by_node(start.allocation) for start in plan.starts}


def verdict_of(plan: Plan, job: int) -> Forecast:
    (found,) = [each for each in plan.verdicts if each.job == job]
    return found


def on(each: TrainingProfile, snapshot_nodes: dict[str, int], nodes: Spaces) -> Allocation:
    """Return an allocation of so many GPUs on each node, and take it."""
    assert each.request is not None
    found = allocate_on(form_of(each.request), nodes, snapshot_nodes)
    assert found is not None
    nodes.take(found)
    return found


# --- the plan for one training ---


def option(gpus: int, *, across: bool) -> PlacementOption:
    counts = (gpus - 1, 1) if across else (gpus,)
    return PlacementOption(gpus=gpus, layout=Layout(counts=counts), across=across)


def test_a_plan_across_nodes_is_taken_where_it_uses_up_a_fragment() -> None:
    """Some node has free GPUs, but fewer than it takes; else the plan on one node."""
    inside = Curve([(option(2, across=False), 1.0)])
    across = Curve([(option(2, across=True), 2.0)])

    def chosen(fewest: int) -> bool:
        found = choose(inside.choices(10, 100), across.choices(10, 100), fewest)
        assert found is not None
        (taken, _), meets = found
        assert meets
        return taken.across

    assert chosen(1)
    assert not chosen(2)


def test_a_plan_that_meets_the_deadline_goes_before_one_that_uses_up_a_fragment() -> None:
    """The one across nodes is too slow, and there is a fragment."""
    inside = Curve([(option(2, across=False), 1.0)])
    across = Curve([(option(2, across=True), 2.0)])
    found = choose(inside.choices(10, 12), across.choices(10, 12), 1)

    assert found is not None
    assert not found[0][0].across


def test_where_none_meets_the_deadline_the_same_rule_chooses_of_the_fastest() -> None:
    """Late either way: the fragment decides."""
    inside = Curve([(option(1, across=False), 5.0), (option(4, across=False), 2.0)])
    across = Curve([(option(4, across=True), 3.0)])

    late = choose(inside.choices(10, 1), across.choices(10, 1), 4)
    assert late is not None
    assert (late[0][0].gpus, late[0][0].across, late[1]) == (4, False, False)
    late = choose(inside.choices(10, 1), across.choices(10, 1), 3)
    assert late is not None
    assert (late[0][0].across, late[1]) == (True, False)
    assert choose((None, None), (None, None), 0) is None


@pytest.mark.parametrize(
    ("slack_s", "gpus"), [(1000, 1), (199, 1), (150, 1), (130, 2), (100, 2), (60, 3), (20, 4)]
)
def test_performance_decides_over_the_number_of_gpus(slack_s: float, gpus: int) -> None:
    """100 s on one GPU, or 50 on two, 33 on three, 25 on four; (slack - run time) / GPUs."""
    each = profile(7, work=100, speed=LINEAR, deadline_s=slack_s)
    plan = PAPER(snapshot_of(gpu_nodes(4), [each]))

    assert gpus_of(plan) == {7: {"n1": gpus}}


def test_one_that_would_be_late_gets_the_plan_that_ends_first() -> None:
    """And its verdict says by how much it will be late."""
    plan = PAPER(snapshot_of(gpu_nodes(4), [profile(7, work=100, speed=LINEAR, deadline_s=10)]))

    assert gpus_of(plan) == {7: {"n1": 4}}
    said = verdict_of(plan, 7)
    assert (said.meets, said.gpus) == (False, 4)
    assert said.end_s == pytest.approx(NOW_S + 25)
    assert said.why == "will end 00:00:15 after its deadline"


def test_a_training_without_a_deadline_starts_after_those_that_can_meet_theirs() -> None:
    """It gets what is left, and is never late."""
    waiting = [
        profile(1, work=100, speed=LINEAR),
        profile(2, work=100, speed=LINEAR, deadline_s=1000),
    ]
    plan = PAPER(snapshot_of(gpu_nodes(4), waiting))

    assert [start.job for start in plan.starts] == [2, 1]
    assert gpus_of(plan) == {2: {"n1": 1}, 1: {"n1": 3}}
    assert verdict_of(plan, 1).meets


def test_a_fixed_number_is_kept_although_one_gpu_would_be_faster() -> None:
    """VGG-16 on two GPUs is slower than on one; who requests two gets two."""
    asked = elastic(2, 2)
    each = profile(1, speed=VGG16, request=asked, deadline_s=1e6)
    plan = PAPER(snapshot_of(gpu_nodes(4), [each]))

    assert gpus_of(plan) == {1: {"n1": 2}}


def test_where_no_node_that_is_up_could_run_it_that_is_said() -> None:
    """All are closed, or too small."""
    shut = {"n1": space("n1", cpus=64, gpu_types=("",) * 4, open=False)}
    plan = drs.plan(snapshot_of(shut, [profile(1, deadline_s=100)]))

    assert "no node that is up can run it" in str(plan.waits[0].reason)


# --- the round ---


def test_the_narrowest_deadline_starts_first_and_late_ones_last() -> None:
    """Expected ones by time to spare, then the others by their ends."""
    waiting = [
        profile(1, work=100, speed=LINEAR, deadline_s=5),
        profile(2, work=50, speed=LINEAR, deadline_s=1),
        profile(3, work=100, speed=LINEAR, deadline_s=400),
        profile(4, work=100, speed=LINEAR, deadline_s=300),
    ]
    plan = PAPER(snapshot_of(gpu_nodes(16), waiting))

    assert [start.job for start in plan.starts] == [4, 3, 2, 1]


def test_each_start_is_decided_on_what_the_others_left() -> None:
    """The one with less time to spare takes three of four; the other would have liked two."""
    waiting = [
        profile(1, work=100, speed=LINEAR, deadline_s=130),
        profile(2, work=150, speed=LINEAR, deadline_s=120),
    ]
    plan = PAPER(snapshot_of(gpu_nodes(4), waiting))

    assert gpus_of(PAPER(snapshot_of(gpu_nodes(4), waiting[:1]))) == {1: {"n1": 2}}
    assert gpus_of(plan) == {2: {"n1": 3}, 1: {"n1": 1}}
    assert [verdict_of(plan, job).meets for job in (1, 2)] == [True, True]


def test_ties_between_equal_nodes_go_to_the_one_with_most_capacity_left() -> None:
    """Not by name."""
    nodes = {
        "n1": space("n1", cpus=64, gpu_types=("",) * 2),
        "n2": space("n2", cpus=64, gpu_types=("",) * 2),
    }
    nodes["n1"] = structs.replace(nodes["n1"], cpus=3)
    waiting = [profile(1, work=100, speed=LINEAR, deadline_s=1000)]

    assert gpus_of(drs.plan(snapshot_of(nodes, waiting))) == {1: {"n2": 1}}


def test_a_fast_kind_of_nodes_is_not_slowed_down_by_another() -> None:
    """There are also plans within each kind, as the slowest GPU sets the pace."""
    nodes = {
        "a-old": space("a-old", cpus=64, gpu_types=("old",) * 2),
        "new1": space("new1", cpus=64, gpu_types=("new",) * 2),
        "new2": space("new2", cpus=64, gpu_types=("new",) * 2),
    }
    seen = snapshot_of(nodes, [profile(1, work=100, speed=LINEAR, deadline_s=13)])
    seen = structs.replace(seen, fabric=structs.replace(seen.fabric, devices={"new": 2.0}))

    assert gpus_of(drs.plan(seen)) == {1: {"new1": 2, "new2": 2}}
    assert verdict_of(drs.plan(seen), 1).meets


def aged(*, waited_s: float, least: int = 2) -> Snapshot:
    """Return a free node of four GPUs, a late training and three that can be in time."""
    asked, arrived_s = elastic(least, 4), NOW_S - waited_s
    late = profile(1, work=1000, speed=LINEAR, request=asked, deadline_s=-10, arrived_s=arrived_s)
    others = [profile(job, work=100, speed=LINEAR, deadline_s=400) for job in (2, 3, 4)]
    return snapshot_of(gpu_nodes(4), [late, *others])


def test_whoever_is_late_waits_behind_others_for_a_day_at_most() -> None:
    """Then it goes first; under the paper's variant it would go on waiting."""
    assert 1 not in gpus_of(drs.plan(aged(waited_s=86_000.0)))
    assert gpus_of(drs.plan(aged(waited_s=86_400.0))) == {1: {"n1": 4}}
    assert 1 not in gpus_of(PAPER(aged(waited_s=1e7)))


def test_nothing_starts_before_one_that_has_waited_longest_and_finds_no_place() -> None:
    """Else small ones would take each GPU that comes back; the others are told why."""
    nodes = Spaces(gpu_nodes(4))
    busy_one = profile(9, work=1000, speed=LINEAR, request=elastic(1, 1), deadline_s=1e6)
    allocation = on(busy_one, {"n1": 1}, nodes)
    idle = aged(waited_s=1e6, least=4)
    waiting = [idle.profiles[job] for job in (1, 2, 3, 4)]
    plan = drs.plan(snapshot_of(gpu_nodes(4), waiting, [(busy_one, allocation)]))

    assert plan.starts == ()
    reasons = {wait.first: str(wait.reason) for wait in plan.waits}
    assert all("job 1 is late, has waited longest" in reasons[job] for job in (2, 3, 4))
    assert reasons[1].startswith("no GPUs are free that it can use")
    nowhere = snapshot_of(gpu_nodes(3), waiting)
    assert len(drs.plan(nowhere).starts) == 3, "what no node could hold stops nobody"


def test_endless_arrivals_do_not_keep_a_late_one_waiting_for_ever() -> None:
    """A new training that can be in time comes with every end; the late one starts all the same."""
    started: dict[str, int] = {}
    patient = DrsConfig(patience_s=500.0)
    for name, policy in (("ours", drs.drs(patient)), ("paper", PAPER)):
        first = profile(1, work=100, speed=LINEAR, deadline_s=1)
        world = World.at(snapshot_of(gpu_nodes(1), [first]))
        world.waiting[2] = profile(2, work=100, speed=LINEAR, request=elastic(1, 1), deadline_s=150)
        for number in range(3, 30):
            world.act(policy)
            if 1 in world.running:
                started[name] = number
                break
            world.turn_to(world.next_end_s())
            due_s = world.now_s - NOW_S + 150
            each = profile(number, speed=LINEAR, request=elastic(1, 1), deadline_s=due_s, work=100)
            world.waiting[number] = each

    assert started == {"ours": 8}


# --- migration ---


def scattered(*, move_s: float = 0.0, deadline_s: float = 1e6, movable: bool = True) -> Snapshot:
    """Return three nodes with two of four GPUs in use, and one training that waits.

    On four GPUs of one node it takes 40 s, on two of them 70; it has 65.
    """
    nodes = Spaces(gpu_nodes(4, 4, 4, 1))
    running = []
    for job, name in ((1, "n1"), (2, "n2"), (3, "n3")):
        each = profile(
            job,
            work=1000,
            speed=LINEAR,
            request=elastic(2, 2),
            movable=movable,
            move_s=move_s,
            deadline_s=deadline_s,
        )
        running.append((each, on(each, {name: 2}, nodes)))
    assert 100 / CHATTY.rate(Layout(counts=(4,))) == pytest.approx(40)
    assert 100 / CHATTY.rate(Layout(counts=(2,))) == pytest.approx(70)
    waits = profile(9, work=100, speed=CHATTY, deadline_s=65)
    fabric = Fabric(between_bytes_s=1e9)
    return snapshot_of(gpu_nodes(4, 4, 4, 1), [waits], running, fabric=fabric)


def test_the_trigger_is_more_than_half_of_the_nodes_at_most_half_used() -> None:
    """Three of four; two are not enough, and a node with three of four in use is none."""
    seen = scattered()

    assert is_scattered(seen)
    fewer = structs.replace(
        seen, nodes={**seen.nodes, "n3": structs.replace(seen.nodes["n3"], gpus=())}
    )
    assert not is_scattered(fewer)


def test_the_paper_moves_all_together_and_starts_afterwards() -> None:
    """Best fit in order of job ids: the first stays, the others join."""
    plan = PAPER(scattered())

    check(plan, scattered())
    assert plan.starts == ()
    assert {move.job: gpus_by_node(move.allocation) for move in plan.moves} == {
        2: {"n1": 2},
        3: {"n2": 2},
    }
    assert "being consolidated" in str(plan.waits[0].reason)


def test_the_paper_places_the_largest_first() -> None:
    """One, two and two GPUs on a node each: both pairs share a node, and the single one goes."""
    nodes = Spaces(gpu_nodes(4, 4, 4))
    running = []
    for job, (name, gpus) in enumerate((("n1", 1), ("n2", 2), ("n3", 2)), 1):
        each = profile(job, speed=LINEAR, request=elastic(gpus, gpus), deadline_s=1e6, movable=True)
        running.append((each, on(each, {name: gpus}, nodes)))
    waits = profile(9, speed=LINEAR, deadline_s=1e6)
    seen = snapshot_of(gpu_nodes(4, 4, 4), [waits], running)

    assert {move.job: gpus_by_node(move.allocation) for move in PAPER(seen).moves} == {
        1: {"n2": 1},
        2: {"n1": 2},
        3: {"n1": 2},
    }


def test_without_migration_nothing_is_moved() -> None:
    assert drs.drs(DrsConfig(moves_max=0))(scattered()).moves == ()


def test_the_paper_waits_until_all_have_arrived() -> None:
    """Then it is as if the moves had taken no time; a node that is down holds nobody up."""
    seen = scattered()
    leaving = [structs.replace(job, leaving=job.job == 2) for job in seen.running]
    moving = structs.replace(seen, running=leaving)

    assert PAPER(moving).starts == ()
    down = {**seen.nodes, "n2": structs.replace(seen.nodes["n2"], open=False)}
    assert PAPER(structs.replace(moving, nodes=down)).moves != (), "it goes on without it"


def test_ours_moves_only_what_lets_a_deadline_be_met() -> None:
    """One node is emptied, for the training that then fits in time."""
    plan = drs.plan(scattered())

    check(plan, scattered())
    assert len(plan.moves) == 1
    assert "make room" in str(plan.waits[0].reason)
    easy = scattered()
    relaxed = structs.replace(easy.profiles[9], deadline_s=NOW_S + 1e6)
    easy = structs.replace(easy, profiles={**easy.profiles, 9: relaxed})
    assert drs.plan(easy).moves == ()


def test_ours_makes_nobody_late_by_a_move() -> None:
    """They would be done just in time; a second's move is too much for them."""
    on_time = scattered(deadline_s=500.0)

    assert drs.plan(on_time).moves != ()
    assert drs.plan(scattered(deadline_s=500.0, move_s=1.0)).moves == ()


def test_ours_does_not_move_for_one_that_the_move_makes_late() -> None:
    """It has 25 s to spare."""
    assert drs.plan(scattered(move_s=20.0)).moves != ()
    assert drs.plan(scattered(move_s=30.0)).moves == ()


def test_the_number_of_moves_is_bounded() -> None:
    """Two jobs on each node: with one move at once, no node can be emptied."""
    nodes = Spaces(gpu_nodes(8, 8, 8))
    running = []
    for job, name in enumerate(("n1", "n1", "n2", "n2", "n3", "n3"), 1):
        each = profile(job, work=1000, speed=LINEAR, request=elastic(2, 2), movable=True)
        running.append((each, on(each, {name: 2}, nodes)))
    rate = CHATTY.rate(Layout(counts=(8,)))
    waits = profile(9, work=1000, speed=CHATTY, deadline_s=1000 / rate + 1)
    fabric = Fabric(between_bytes_s=1e9)
    seen = snapshot_of(gpu_nodes(8, 8, 8), [waits], running, fabric=fabric)

    assert len(drs.plan(seen).moves) == 2
    assert drs.drs(DrsConfig(moves_max=1))(seen).moves == ()
    assert drs.plan(structs.replace(seen, moves_max=1)).moves == (), "one of two would be in vain"


def test_what_cannot_be_moved_stays() -> None:
    """Not movable, or being stopped."""
    seen = scattered(movable=False)

    assert PAPER(seen).moves == drs.plan(seen).moves == ()
    leaving = [structs.replace(job, leaving=True) for job in seen.running]
    assert not TrainingJobs.of(structs.replace(scattered(), running=leaving)).movable


def test_a_late_one_waits_for_gpus_that_are_coming_back() -> None:
    """As long as that lets it be in time, and no longer."""
    nodes = Spaces(gpu_nodes(4))
    other = profile(1, work=1000, speed=LINEAR, request=elastic(3, 3))
    allocation = on(other, {"n1": 3}, nodes)
    waits = profile(9, work=100, speed=LINEAR, deadline_s=40)
    seen = snapshot_of(gpu_nodes(4), [waits], [(other, allocation)])
    coming = structs.replace(
        seen, running=[structs.replace(job, leaving=True) for job in seen.running]
    )

    assert gpus_of(drs.plan(seen)) == {9: {"n1": 1}}
    plan = drs.plan(coming)
    assert plan.starts == ()
    assert "being released" in str(plan.waits[0].reason)
    relaxed = structs.replace(waits, deadline_s=NOW_S + 200)
    in_time = structs.replace(coming, profiles={**coming.profiles, 9: relaxed})
    assert gpus_of(drs.plan(in_time)) == {9: {"n1": 1}}
    hopeless = structs.replace(waits, deadline_s=NOW_S + 20)
    late = structs.replace(coming, profiles={**coming.profiles, 9: hopeless})
    assert gpus_of(drs.plan(late)) == {9: {"n1": 1}}


# --- what people are told ---


def busy(*, deadline_s: float | None, ends_s: float = 100.0) -> Snapshot:
    """Return a full node, and a training of 100 s on one GPU that waits for it."""
    nodes = Spaces(gpu_nodes(4))
    other = profile(1, work=4 * ends_s, speed=LINEAR, request=elastic(4, 4), deadline_s=1e6)
    allocation = on(other, {"n1": 4}, nodes)
    waits = profile(9, work=100, speed=LINEAR, deadline_s=deadline_s)
    return snapshot_of(gpu_nodes(4), [waits], [(other, allocation)])


def test_a_wait_says_what_the_deadline_takes_and_when_it_should_start() -> None:
    """In words that stay true until the next plan, and in figures for those that read them."""
    plan = drs.plan(busy(deadline_s=160))
    (wait,) = plan.waits

    assert str(wait.reason) == (
        "no GPUs are free that it can use; its deadline is 1970-01-12 13:49:20 UTC; "
        "1 GPU now would meet it, and 4 GPUs would end it soonest, in 00:00:25; "
        "expected to start 1970-01-12 13:48:20 UTC on 2 GPUs and to end 1970-01-12 13:49:10 UTC"
    )
    assert wait.predicted_start_s == pytest.approx(NOW_S + 100)
    said = verdict_of(plan, 9)
    assert (said.meets, said.gpus) == (True, 2)
    assert said.end_s == pytest.approx(NOW_S + 150)


def test_those_that_wait_are_expected_one_after_the_other() -> None:
    """Each takes what the one before it has given back, in order of their deadlines."""
    seen = busy(deadline_s=None)
    whole = elastic(4, 4)
    waiting = [
        profile(job, work=100, speed=LINEAR, request=whole, deadline_s=due_s)
        for job, due_s in ((7, 1000), (8, 500))
    ]
    profiles = {1: seen.profiles[1], **{each.job: each for each in waiting}}
    groups = [group_of(each) for each in waiting]
    plan = drs.plan(structs.replace(seen, groups=groups, profiles=profiles))

    starts_s = {wait.first: wait.predicted_start_s for wait in plan.waits}
    assert starts_s == {8: pytest.approx(NOW_S + 100), 7: pytest.approx(NOW_S + 125)}
    assert verdict_of(plan, 7).end_s == pytest.approx(NOW_S + 150)


def test_what_was_worked_out_of_nodes_is_forgotten_when_they_change() -> None:
    """A head keeps its nodes from plan to plan; the words are as if it did not."""
    seen = busy(deadline_s=20)
    kept = SortedSpaces()
    kept["n1"] = seen.nodes["n1"]
    head = structs.replace(seen, nodes=kept)
    assert drs.plan(head) == drs.plan(seen)

    small = space("n2", cpus=1, gpu_types=("",) * 8)
    for change in (structs.replace(kept["n1"], open=False), small):
        kept[change.name] = change

        assert drs.plan(head) == drs.plan(structs.replace(seen, nodes=dict(kept)))
    faster = structs.replace(head, fabric=Fabric(devices={"": 2.0}))
    assert drs.plan(faster) == drs.plan(structs.replace(faster, nodes=dict(kept)))


def test_one_that_will_be_late_is_told_so_while_it_waits() -> None:
    """Long before its deadline has passed."""
    said = verdict_of(drs.plan(busy(deadline_s=110)), 9)

    assert not said.meets
    assert said.end_s == pytest.approx(NOW_S + 125)
    assert said.why == "will end 00:00:15 after its deadline"


def test_a_deadline_that_is_past_or_out_of_reach_is_called_so() -> None:
    """The words do not guarantee what cannot be."""
    past = str(drs.plan(busy(deadline_s=-5)).waits[0].reason)
    assert f"its deadline was {moment(NOW_S - 5)}" in past
    words = str(drs.plan(busy(deadline_s=20)).waits[0].reason)
    assert "even 4 GPUs would take 00:00:25 from now" in words
    firm = [
        verdict_of(drs.plan(busy(deadline_s=each)), 9).firm for each in (-5, 20, 110, 160, None)
    ]
    assert firm == [True, True, False, False, False], "what is only expected is no guarantee"
    assert "it has no deadline" in str(drs.plan(busy(deadline_s=None)).waits[0].reason)


def test_what_runs_is_told_its_end() -> None:
    """Also when nothing waits: whoever will be late by then is told before."""
    seen = structs.replace(busy(deadline_s=10), groups=())
    said = verdict_of(drs.plan(seen), 1)

    assert said.meets
    assert said.end_s == pytest.approx(NOW_S + 100)
    late = structs.replace(seen.profiles[1], deadline_s=NOW_S + 60)
    said = verdict_of(drs.plan(structs.replace(seen, profiles={1: late})), 1)
    assert (said.meets, said.why) == (False, "will end 00:00:40 after its deadline")


def test_a_start_says_why() -> None:
    """How many GPUs, where, and what that means for the deadline."""
    waiting = [profile(1, work=100, speed=LINEAR, deadline_s=300)]
    (start,) = drs.plan(snapshot_of(gpu_nodes(4), waiting)).starts

    assert start.why == "1 GPU of one node: done in 00:01:40, 00:03:20 before its deadline"


def test_resnet_is_planned_in_the_time_that_the_model_says() -> None:
    """The verdict's end is equation 1 on the plan that is taken."""
    training = profile(1, work=50_000, speed=RESNET50, deadline_s=120)
    plan = PAPER(snapshot_of(gpu_nodes(4, 4), [training]))
    (start,) = plan.starts
    counts = gpus_by_node(start.allocation)
    layout = snapshot_of(gpu_nodes(4, 4)).fabric.layout(counts)

    assert verdict_of(plan, 1).end_s == pytest.approx(NOW_S + 50_000 / RESNET50.rate(layout))
