"""What sia decides, on cases computed by hand."""

import math
from collections.abc import Iterable, Mapping

import pytest
from msgspec import structs

from gsched.config.policies import SiaConfig
from gsched.model.resources import Allocation, Share
from gsched.model.states import Placement
from gsched.model.training import Batching, Scaling
from gschedd.allocation.adaptive.candidates import AdaptiveJob, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.allocation.adaptive.deciding import is_round
from gschedd.allocation.adaptive.objective import restart_factor
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training.sia import sia
from gschedd.policies.training.sia.objective import costs
from tests.support.adaptive import PowerGoodput, adaptive, typed_nodes
from tests.support.training_jobs import NOW_S, check, elastic, snapshot_of

#: A multiple of the round.
ROUND_S = math.ceil(NOW_S / 60.0) * 60.0
FAST = PowerGoodput(speeds=(("a", 4.0), ("t", 1.0)))
EVEN = PowerGoodput(speeds=(("a", 1.0), ("t", 1.0)))
#: Gains nothing from a second GPU.
FLAT = PowerGoodput(speeds=(("a", 1.0), ("t", 1.0)), exponent=0.0)


def on(node: str, *indices: int) -> Share:
    count = len(indices)
    return Share(node=node, cpus=count, slots=count, gpu_indices=indices)


def seen(
    nodes: Mapping[str, FreeNode],
    waiting: Iterable[TrainingProfile] = (),
    running: Iterable[tuple[TrainingProfile, Allocation]] = (),
    *,
    now_s: float = ROUND_S,
) -> Snapshot:
    made = snapshot_of(nodes, waiting, list(running))
    return structs.replace(made, now_s=now_s)


def planned(snapshot: Snapshot, **settings: object) -> Plan:
    """Return the plan, after a check of all that every plan must keep to."""
    plan = sia(structs.replace(SiaConfig(), **settings))(snapshot)
    check(plan, snapshot)
    assert plan.again_s is None or plan.again_s > snapshot.now_s
    return plan


def gpus(plan: Plan, snapshot: Snapshot) -> dict[int, dict[str, int]]:
    """Return how many GPUs each job has on each node once a plan is carried out."""
    places = {each.job: each.allocation for each in snapshot.running}
    places.update({start.job: start.allocation for start in plan.starts})
    places.update({move.job: move.allocation for move in plan.moves})
    return {job: gpus_by_node(place) for job, place in places.items() if place}


def after(snapshot: Snapshot, **settings: object) -> dict[int, dict[str, int]]:
    return gpus(planned(snapshot, **settings), snapshot)


# --- configurations ---


def test_a_new_job_starts_on_its_minimum_of_the_best_type() -> None:
    """Six GPUs are free; it gets one, on which it is four times as fast."""
    plan = planned(seen(typed_nodes(n1=("t", 4), n2=("a", 2)), [adaptive(1, goodput=FAST)]))

    assert gpus(plan, seen({})) == {1: {"n2": 1}}
    assert plan.starts[0].why == "on 1 GPU of type a"
    assert plan.starts[0].batching == Batching(per_gpu=1001)


def test_a_job_grows_to_twice_the_most_it_has_run_on() -> None:
    nodes = typed_nodes(n1=("a", 8), n2=("a", 8))
    running = [(adaptive(1, goodput=EVEN, reached=2), (on("n1", 0, 1),))]
    snapshot = seen(nodes, running=running)
    plan = planned(snapshot)

    assert gpus(plan, snapshot) == {1: {"n1": 4}}
    assert plan.moves[0].why == "4 GPUs of type a instead of 2 GPUs of type a"
    assert plan.moves[0].batching == Batching(per_gpu=1004)


def test_a_job_on_whole_nodes_takes_whole_nodes() -> None:
    nodes = typed_nodes(n1=("a", 8), n2=("a", 8), n3=("a", 8), n4=("a", 8))
    running = [(adaptive(1, goodput=EVEN, reached=8, most=64), (on("n2", *range(8)),))]
    snapshot = seen(nodes, [adaptive(2, goodput=EVEN)], running=running)
    found = after(snapshot)

    assert sorted(found[1].values()) == [8, 8]
    assert sum(found[2].values()) == 1
    assert not found[1].keys() & found[2].keys()


def test_a_job_that_was_never_heard_of_stays_on_its_minimum() -> None:
    """It has run on eight GPUs, and said nothing."""
    silent = adaptive(1, goodput=structs.replace(EVEN, speeds=()), reached=8)
    ids = candidates_of(
        [AdaptiveJob(job=1, profile=known(silent), request=elastic(1, 16))],
        pool_of(typed_nodes(n1=("a", 8))),
        typed_nodes(n1=("a", 8)),
    )

    assert len(ids.job) == 0, "this goodput knows no type"
    silent_model = structs.replace(
        silent, adaptive=structs.replace(known(silent), goodput=Silent())
    )
    assert after(seen(typed_nodes(n1=("a", 8)), [silent_model])) == {1: {"n1": 1}}


class Silent(PowerGoodput, frozen=True, kw_only=True, cache_hash=True):
    """Assumes something, and has seen nothing."""

    speeds: tuple[tuple[str, float], ...] = (("a", 1.0),)

    def types(self) -> frozenset[str]:
        return frozenset()


def known(profile: TrainingProfile):  # type: ignore[no-untyped-def] # never None here
    assert profile.adaptive is not None
    return profile.adaptive


def test_a_rigid_job_gets_its_number_on_the_type_that_is_best_for_all() -> None:
    """Three GPUs are no power of two; both want type a, which has room for one of them."""
    rigid = adaptive(1, goodput=FAST, least=3, most=3, scaling=Scaling.RIGID)
    other = adaptive(2, goodput=EVEN, least=3, most=3, scaling=Scaling.RIGID)
    nodes = typed_nodes(n1=("t", 4), n2=("a", 4))

    assert after(seen(nodes, [rigid, other])) == {1: {"n2": 3}, 2: {"n1": 3}}


def test_a_model_on_several_gpus_grows_by_whole_replicas() -> None:
    """Two GPUs of a for each replica, four of t: so its minimum is two, or four."""
    split = adaptive(1, goodput=EVEN, reached=2, most=8, replica_gpus={"a": 2, "t": 4})
    ids = candidates_of(
        [AdaptiveJob(job=1, profile=known(split), request=elastic(1, 8))],
        pool_of(typed_nodes(n1=("a", 8), n2=("t", 8))),
        typed_nodes(n1=("a", 8), n2=("t", 8)),
    )
    table = ids.configurations

    assert [(table.type_of(i), int(table.gpus[i])) for i in ids.configuration] == [
        ("a", 2),
        ("a", 4),
        ("t", 4),
    ]


def test_requests_bound_the_types_and_the_nodes() -> None:
    nodes = typed_nodes(n1=("t", 2), n2=("a", 2), n3=("a", 2))
    typed = adaptive(1, goodput=FAST, request=elastic(1, 4, gpu_type="t"))
    profiled = adaptive(2, goodput=FAST, gpu_types=frozenset({"t"}))
    packed = structs.replace(elastic(4, 4), placement=Placement.PACK)

    assert after(seen(nodes, [typed, profiled])) == {1: {"n1": 1}, 2: {"n1": 1}}
    plan = planned(seen(nodes, [adaptive(3, goodput=EVEN, least=4, most=4, request=packed)]))
    assert (
        str(plan.waits[0].reason)
        == "no GPUs that it can use are free, or held by jobs that can migrate"
    )


# --- objective ---


def test_costs_are_powers_of_normalised_goodputs_with_the_cost_of_a_restart() -> None:
    """By hand: one GPU of t gives 1, of a 4; two of a 4 * 2^0.8; r = (3600 - 2 * 30) / 3630."""
    running = adaptive(1, goodput=FAST, reached=1, restarts=2)
    nodes = typed_nodes(n1=("a", 2), n2=("t", 1))
    found = candidates_of(
        [
            AdaptiveJob(
                job=1, profile=known(running), request=elastic(1, 16), allocation=(on("n2", 0),)
            )
        ],
        pool_of(nodes),
        nodes,
    )
    factor = (3600 - 60) / 3630

    assert found.current.tolist() == [False, False, True]
    assert costs(found, SiaConfig()) == pytest.approx(
        [(factor * 4) ** -0.5, (factor * 4 * 2**0.8) ** -0.5, 1.0]
    )
    assert costs(found, SiaConfig(p=0.5, restart_factor=False)) == pytest.approx(
        [-(4**0.5), -((4 * 2**0.8) ** 0.5), -1.0]
    )


@pytest.mark.parametrize(
    ("age_s", "restarts", "factor"),
    [(10.0, 0, 1.0), (30.0, 0, 0.5), (300.0, 5, 150 / 330), (300.0, 20, 0.0)],
)
def test_the_restart_factor_is_the_published_one(
    age_s: float, restarts: int, factor: float
) -> None:
    profile = known(adaptive(1, age_s=age_s, restarts=restarts, restart_s=30.0))

    assert restart_factor(profile) == pytest.approx(factor)


def test_a_job_that_was_just_restarted_stays_although_more_is_free() -> None:
    """It would gain 2^0.8 from twice the GPUs, and has run for half of its time only."""
    restarted = adaptive(1, goodput=EVEN, reached=2, age_s=100.0, restarts=2)
    snapshot = seen(typed_nodes(n1=("a", 8)), running=[(restarted, (on("n1", 0, 1),))])

    assert planned(snapshot).moves == ()
    assert len(planned(snapshot, restart_factor=False).moves) == 1


@pytest.mark.parametrize(("restart_factor", "swaps"), [(True, 0), (False, 1)])
def test_a_preempted_job_does_not_take_turns_with_one_like_it(
    *, restart_factor: bool, swaps: int
) -> None:
    """By its last measurement it would run faster by a hundredth; its restart costs more."""
    a_little_faster = PowerGoodput(speeds=(("a", 4.04), ("t", 1.0)))
    running = [(adaptive(1, goodput=FAST, reached=1, most=1), (on("n1", 0),))]
    preempted = adaptive(2, goodput=a_little_faster, reached=1, most=1, restarts=1)
    plan = planned(
        seen(typed_nodes(n1=("a", 1)), [preempted], running), restart_factor=restart_factor
    )

    assert len(plan.moves) == swaps


@pytest.mark.parametrize("p", [-2.0, -0.5, 0.5])
def test_a_job_that_was_preempted_often_runs_where_gpus_are_idle(p: float) -> None:
    """It has spent all of its time on restarts; the best type is still the best one."""
    preempted = adaptive(1, goodput=FAST, reached=1, most=1, age_s=300.0, restarts=20)
    snapshot = seen(typed_nodes(n1=("t", 1), n2=("a", 1)), [preempted])

    assert after(snapshot, p=p) == {1: {"n2": 1}}


def test_a_job_that_has_never_run_pays_for_no_restart() -> None:
    """However long it has waited: the first start is none."""
    waiting = adaptive(1, goodput=FAST, reached=0, most=1, age_s=40.0)
    nodes = typed_nodes(n1=("a", 1))
    found = candidates_of(
        [AdaptiveJob(job=1, profile=known(waiting), request=elastic(1, 16))], pool_of(nodes), nodes
    )

    assert costs(found, SiaConfig()) == pytest.approx([1.0])


def test_a_job_gives_way_to_one_that_gains_more_from_the_type() -> None:
    """The first is as fast on t; r of an hour costs it less than the other gains."""
    running = [(adaptive(1, goodput=EVEN, reached=1, most=1), (on("n1", 0),))]
    snapshot = seen(
        typed_nodes(n1=("a", 1), n2=("t", 1)), [adaptive(2, goodput=FAST, most=1)], running
    )
    plan = planned(snapshot)

    assert gpus(plan, snapshot) == {1: {"n2": 1}}
    assert plan.moves[0].why == "1 GPU of type t instead of 1 GPU of type a"
    assert str(plan.waits[0].reason) == "waiting for 1 GPU being released by running jobs"


def test_more_jobs_than_gpus_share_what_there_is() -> None:
    """Shrinking costs 1 + r^-0.5, staying lambda + 2^-0.4; one of them has to wait."""
    running = [(adaptive(1, goodput=EVEN, reached=2), (on("n1", 0, 1),))]
    snapshot = seen(typed_nodes(n1=("a", 2)), [adaptive(2, goodput=EVEN)], running)

    assert planned(snapshot).moves == ()
    assert str(planned(snapshot).waits[0].reason) == "other jobs gain more goodput from the GPUs"
    assert sum(after(snapshot, lambda_n=1.3)[1].values()) == 1


def test_a_job_that_was_guaranteed_its_deadline_is_not_left_without_gpus() -> None:
    """They gain alike, and the second one holds a guarantee."""
    first = adaptive(1, goodput=FLAT, most=1)
    second = adaptive(2, goodput=FLAT, most=1)
    nodes = typed_nodes(n1=("a", 1))

    assert list(after(seen(nodes, [first, second]))) == [1], "ties go to the earlier"
    kept = structs.replace(second, guaranteed=True)
    assert list(after(seen(nodes, [first, kept]))) == [2]


# --- rounds ---


def test_running_jobs_are_decided_about_at_rounds_only() -> None:
    nodes = typed_nodes(n1=("a", 8))
    running = [(adaptive(1, goodput=EVEN, reached=2), (on("n1", 0, 1),))]
    waiting = [adaptive(2, goodput=EVEN)]
    between = seen(nodes, waiting, running, now_s=ROUND_S + 30)
    plan = planned(between)

    assert (plan.moves, plan.tunes) == ((), ())
    assert [start.job for start in plan.starts] == [2]
    assert plan.again_s == ROUND_S + 60
    assert len(planned(seen(nodes, waiting, running)).moves) == 1


@pytest.mark.parametrize(
    ("late_s", "round_now"), [(0.0, True), (2.9, True), (3.1, False), (59.9, False)]
)
def test_a_round_may_be_a_little_late(late_s: float, *, round_now: bool) -> None:
    nodes = typed_nodes(n1=("a", 8))
    assert is_round(seen(nodes, now_s=ROUND_S + late_s), 60.0) is round_now


def test_a_round_goes_on_while_moves_of_it_are_left() -> None:
    between = seen(typed_nodes(n1=("a", 8)), now_s=ROUND_S + 30.0)
    assert is_round(structs.replace(between, moves_left=True), 60.0)


@pytest.mark.parametrize(("ran_s", "moves"), [(-1.0, 1), (0.0, 0), (2.0, 0)])
def test_a_job_that_has_started_in_a_round_stays_where_it_is(ran_s: float, moves: int) -> None:
    """Else two jobs could take a GPU from each other in each cycle of the round."""
    snapshot = seen(
        typed_nodes(n1=("a", 8)),
        running=[(adaptive(1, goodput=EVEN, reached=2), (on("n1", 0, 1),))],
        now_s=ROUND_S + 2.0,
    )
    running = [structs.replace(each, started_s=ROUND_S + ran_s) for each in snapshot.running]
    plan = planned(structs.replace(snapshot, running=running))

    assert len(plan.moves) == moves


def test_jobs_that_cannot_migrate_keep_what_they_have() -> None:
    """One that is not movable, one that is starting, one that is being stopped."""
    nodes = typed_nodes(n1=("a", 4))
    profiles = [adaptive(job, goodput=EVEN, reached=1) for job in (1, 2, 3)]
    profiles[0] = structs.replace(profiles[0], movable=False)
    snapshot = seen(nodes, running=[(p, (on("n1", at),)) for at, p in enumerate(profiles)])
    states = [{}, {"starting": True}, {"leaving": True}]
    changed = [
        structs.replace(each, **more) for each, more in zip(snapshot.running, states, strict=True)
    ]
    plan = planned(structs.replace(snapshot, running=changed))

    assert (plan.starts, plan.moves, plan.tunes) == ((), (), ())


def test_jobs_that_stay_are_told_how_to_split_their_samples() -> None:
    snapshot = seen(
        typed_nodes(n1=("a", 1)), running=[(adaptive(1, goodput=EVEN, reached=1), (on("n1", 0),))]
    )
    plan = planned(snapshot)

    assert plan.moves == ()
    assert [(tune.job, tune.batching) for tune in plan.tunes] == [(1, Batching(per_gpu=1001))]


def test_gpus_that_are_reserved_are_left_to_other_jobs() -> None:
    nodes = typed_nodes(n1=("a", 2), n2=("a", 2))
    waiting = [adaptive(job, goodput=EVEN) for job in range(1, 6)]

    assert len(after(seen(nodes, waiting), reserved_gpus={"a": 3})) == 1
    assert len(after(seen(nodes, waiting))) == 4


def test_jobs_that_gain_most_move_first() -> None:
    """Where only some may move at once, these are the first ones of the plan."""
    little = structs.replace(EVEN, exponent=0.6)
    nodes = typed_nodes(n1=("a", 8))
    running = [
        (adaptive(job, goodput=goodput, reached=2), (on("n1", 2 * job, 2 * job + 1),))
        for job, goodput in enumerate([little, EVEN])
    ]
    plan = planned(seen(nodes, running=running))

    assert [move.job for move in plan.moves] == [1, 0]


def test_other_types_of_training_jobs_are_none_of_its_business() -> None:
    """Without any adaptive training there is nothing to decide."""
    plain = structs.replace(adaptive(1), adaptive=None)

    assert planned_of_nothing(seen(typed_nodes(n1=("a", 1)), [plain])) == Plan(again_s=ROUND_S + 60)
    assert planned_of_nothing(seen(typed_nodes(n1=("a", 1)))) == Plan()


def planned_of_nothing(snapshot: Snapshot) -> Plan:
    return sia(SiaConfig())(snapshot)
