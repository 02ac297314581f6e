"""What `deadline` decides, on cases computed by hand."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.config.policies import DeadlineConfig
from gsched.model.resources import Allocation, Share
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training import deadline
from tests.support.spaces import space
from tests.support.training_jobs import NOW_S, elastic, gpu_nodes, profile, snapshot_of

#: Iterations a second: twice the GPUs are twice as fast up to four, eight are as fast as six.
EVEN = TableSpeed(rates=((1, 1.0), (2, 2.0), (4, 4.0), (8, 6.0)))


def training(
    job: int, work: float, deadline_s: float | None = None, **changes: object
) -> TrainingProfile:
    made = profile(
        job, work=work, deadline_s=deadline_s, speed=EVEN, request=elastic(1, 8), movable=True
    )
    return structs.replace(made, **changes)


def on(node: str, *indices: int) -> Allocation:
    return (Share(node=node, cpus=len(indices), slots=len(indices), gpu_indices=indices),)


def started(plan: Plan) -> Mapping[int, int]:
    return {each.job: sum(gpus_by_node(each.allocation).values()) for each in plan.starts}


def said(plan: Plan) -> Mapping[int, Forecast]:
    return {verdict.job: verdict for verdict in plan.verdicts}


def test_who_needs_least_goes_first_where_not_all_can_be_in_time() -> None:
    """Four GPUs for 1000 s hold 4000 of work: the small ones' 3600, not 3900 and one of them."""
    waiting = [training(1, 3900, 1000.0), *(training(n, 1200, 1000.0) for n in (2, 3, 4))]

    plan = deadline.plan(snapshot_of(gpu_nodes(4), waiting))

    assert {job for job, verdict in said(plan).items() if verdict.meets} == {2, 3, 4}
    assert "less GPU time" in said(plan)[1].why
    assert not said(plan)[1].firm


def test_a_guarantee_is_kept_whatever_comes() -> None:
    """The large one runs and was guaranteed its deadline; without that it is stopped."""
    large = training(1, 3900, 1000.0, guaranteed=True)
    small = [training(n, 1200, 1000.0) for n in (2, 3, 4)]
    seen = snapshot_of(gpu_nodes(4), small, [(large, on("n1", 0, 1, 2, 3))])

    kept = deadline.plan(seen)
    profiles = {**seen.profiles, 1: structs.replace(large, guaranteed=None)}
    stopped = deadline.plan(structs.replace(seen, profiles=profiles))

    assert kept.moves == ()
    assert [job for job, verdict in said(kept).items() if verdict.meets] == [1]
    assert [(move.job, move.allocation) for move in stopped.moves] == [(1, ())]
    assert {job for job, verdict in said(stopped).items() if verdict.meets} == {2, 3, 4}


def test_a_guarantee_is_kept_against_earlier_deadlines() -> None:
    """Three small ones that are due before it would take the GPU that the guaranteed one needs."""
    large = training(1, 1000, 1100.0, guaranteed=True)
    small = [training(n, 100, 500.0) for n in (2, 3, 4)]

    plan = deadline.plan(snapshot_of(gpu_nodes(1), [large, *small]))

    assert said(plan)[1].meets


def test_guarantees_are_kept_in_another_order_than_that_of_their_deadlines() -> None:
    """One GPU for 900 s would do for the first, but leaves four to the second: 4200 of its 4800.

    With all eight GPUs the second takes 800 s, and then the first 150 s.
    """
    narrow = training(1, 900, 999.0, guaranteed=True)
    wide = training(2, 4800, 1000.0, guaranteed=True)
    other = training(3, 100, 900.0)

    plan = deadline.plan(snapshot_of(gpu_nodes(8), [narrow, wide, other]))

    assert {job for job, verdict in said(plan).items() if verdict.meets} >= {1, 2}
    assert started(plan) == {2: 8}


def test_long_steps_break_no_guarantee() -> None:
    """In four steps the first job does not fit beside the others; in shorter ones all three do."""
    coarse = deadline.deadline(DeadlineConfig(steps_max=4, steps_min=2))
    waiting = [
        training(1, 2800, 600.0, guaranteed=True),
        training(2, 1200, 300.0, guaranteed=True),
        training(3, 2400, 2000.0, guaranteed=True),
    ]

    plan = coarse(snapshot_of(gpu_nodes(8), waiting))

    assert all(verdict.meets for verdict in said(plan).values())


_SIZES = st.tuples(st.integers(1, 2000), st.integers(50, 3000))  # work, seconds to the deadline


@given(
    guaranteed=st.lists(_SIZES, min_size=1, max_size=4),
    others=st.lists(_SIZES, max_size=6),
    gpus=st.sampled_from([1, 2, 4, 8]),
)
def test_no_guarantee_that_can_be_kept_is_broken_for_others(
    guaranteed: list[tuple[int, int]], others: list[tuple[int, int]], gpus: int
) -> None:
    """Those that meet their deadlines beside each other meet them beside all others, too."""
    first = [
        training(number, work, float(due_s), guaranteed=True)
        for number, (work, due_s) in enumerate(guaranteed, 1)
    ]
    later = [
        training(number, work, float(due_s)) for number, (work, due_s) in enumerate(others, 11)
    ]

    alone = said(deadline.plan(snapshot_of(gpu_nodes(gpus), first)))
    beside = said(deadline.plan(snapshot_of(gpu_nodes(gpus), [*first, *later])))

    kept = {job for job, verdict in alone.items() if verdict.meets}
    assert kept <= {job for job, verdict in beside.items() if verdict.meets}


def test_a_guarantee_is_made_when_little_is_left() -> None:
    """A quarter of what a training needs, in the middle; or at once, if the site wants it."""
    waiting = [training(1, 100, 1000.0), training(2, 1000, 4000.0), training(3, 1000, 4000.0)]
    seen = snapshot_of(gpu_nodes(8), waiting)

    late = said(deadline.plan(seen))
    early = said(deadline.deadline(DeadlineConfig(guarantee_below=float("inf")))(seen))
    never = said(deadline.deadline(DeadlineConfig(guarantee_below=0.0))(seen))

    assert all(verdict.meets for verdict in late.values())
    assert {job for job, verdict in late.items() if verdict.firm} == {1}
    assert all(verdict.firm for verdict in early.values())
    assert not any(verdict.firm for verdict in never.values())


def test_a_job_that_would_take_the_cluster_for_hours_is_not_guaranteed_because_few_are_there() -> (
    None
):
    """It is the one in the middle, and has done four fifths; an hour of the cluster is the most."""
    large = training(1, 40_000, 60_000.0, total_work=200_000.0)
    small = training(1, 5_000, 60_000.0, total_work=200_000.0)

    first = said(deadline.plan(snapshot_of(gpu_nodes(2), [large])))[1]
    later = said(deadline.plan(snapshot_of(gpu_nodes(2), [small])))[1]

    assert (first.meets, first.firm, first.can_guarantee) == (True, False, True)
    assert (later.meets, later.firm) == (True, True)


def test_idle_gpus_go_to_where_they_do_most() -> None:
    """Both need one GPU only; eight are there, and four each are better than eight and none."""
    waiting = [training(1, 1000, 2000.0), training(2, 1000, 2000.0)]

    assert started(deadline.plan(snapshot_of(gpu_nodes(8), waiting))) == {1: 4, 2: 4}


def test_a_gpu_that_one_hardly_gains_from_goes_to_the_other() -> None:
    """Three GPUs: one each, and the third where it doubles the speed, not where it adds a fifth."""
    flat = training(1, 1000, 2000.0, speed=TableSpeed(rates=((1, 1.0), (2, 1.2), (4, 1.3))))

    plan = deadline.plan(snapshot_of(gpu_nodes(3), [flat, training(2, 1000, 2000.0)]))

    assert started(plan) == {1: 1, 2: 2}


def test_what_is_late_runs_on_what_is_left() -> None:
    """600 of work in 50 s need more than eight GPUs do: it starts, and is said to be late."""
    plan = deadline.plan(snapshot_of(gpu_nodes(8), [training(1, 600, 50.0)]))

    assert started(plan) == {1: 8}
    assert not said(plan)[1].meets
    assert said(plan)[1].end_s == pytest.approx(NOW_S + 100)
    assert "no longer be met" in said(plan)[1].why


@pytest.mark.parametrize(("large_came_s", "first"), [(100, 2), (20_000, 1)])
def test_of_those_that_are_late_who_waited_longest_for_what_it_needs_goes_first(
    large_came_s: float, first: int
) -> None:
    """One GPU: 10 of work for 50 s, beside 1000 of work: for 100 s it waits on, for 20000 not."""
    large = training(1, 1000, -10.0, arrived_s=NOW_S - large_came_s)
    small = training(2, 10, -10.0, arrived_s=NOW_S - 50)

    plan = deadline.plan(snapshot_of(gpu_nodes(1), [large, small]))

    assert started(plan) == {first: 1}


def test_what_was_just_started_is_left_alone() -> None:
    """It would be stopped for the small ones; only half a minute later it is."""
    large = training(1, 3900, 1000.0)
    small = [training(n, 1200, 1000.0) for n in (2, 3, 4)]
    seen = snapshot_of(gpu_nodes(4), small, [(large, on("n1", 0, 1, 2, 3))])
    running = [structs.replace(each, started_s=NOW_S - 10) for each in seen.running]

    plan = deadline.plan(structs.replace(seen, running=running))

    assert plan.moves == ()
    assert plan.again_s == NOW_S + 20


def test_a_job_that_starts_is_planned_with_more_gpus_later() -> None:
    """On four GPUs it takes 1000 s of 950: with the other four after its start it is in time.

    Another job would need those: it is predicted to be late, since the first one is guaranteed.
    """
    first = training(1, 4000, 950.0, guaranteed=True, movable=False, movable_later=True)
    other = training(2, 3500, 890.0)
    seen = snapshot_of(gpu_nodes(8), [other], [(first, on("n1", 0, 1, 2, 3))])
    running = [structs.replace(each, starting=True) for each in seen.running]

    verdicts = said(deadline.plan(structs.replace(seen, running=running)))

    assert verdicts[1].meets
    assert not verdicts[2].meets


@pytest.mark.parametrize(("since_s", "meets"), [(2.0, False), (20.0, True)])
def test_a_job_does_nothing_until_its_migration_is_over(*, since_s: float, meets: bool) -> None:
    """400 of work on four GPUs take 100 s of 105; its migration takes 10 s from its new start."""
    moved = training(1, 400, 105.0, total_work=4000.0, move_s=10.0)
    seen = snapshot_of(gpu_nodes(4), (), [(moved, on("n1", 0, 1, 2, 3))])
    running = [structs.replace(each, started_s=NOW_S - since_s) for each in seen.running]

    verdicts = said(deadline.plan(structs.replace(seen, running=running)))

    assert verdicts[1].meets is meets


@pytest.mark.parametrize(("left_s", "migrates"), [(105.0, 0), (2000.0, 1)])
def test_a_job_does_not_make_room_for_others_if_that_costs_its_deadline(
    *, left_s: float, migrates: int
) -> None:
    """Both nodes are half empty and the third job needs four GPUs; a migration takes 10 s.

    If nobody has 10 s to spare, it gets two GPUs of each node.
    """
    near = [training(job, 200, left_s, total_work=900.0, move_s=10.0, gpus=(2,)) for job in (1, 2)]
    wide = training(3, 1000, 255.0, gpus=(4,))
    seen = snapshot_of(
        gpu_nodes(4, 4), [wide], [(near[0], on("n1", 0, 1)), (near[1], on("n2", 0, 1))]
    )

    plan = deadline.plan(seen)

    assert len(plan.moves) == migrates
    assert started(plan) == ({} if migrates else {3: 4})


def test_a_job_on_more_nodes_than_it_needs_starts_beside_one_that_took_the_other_nodes() -> None:
    """The CPU of n3 is for one GPU only. On n1 and n2 job 2 leaves no GPU of type a to job 1."""
    nodes = {
        "n1": space("n1", gpu_types=("a",)),
        "n2": space("n2", gpu_types=("a",)),
        "n3": space("n3", cpus=1, gpu_types=("b", "b")),
    }
    narrow = training(1, 1000, request=elastic(1, 1, gpu_type="a"), gpus=(1,))
    wide = training(2, 20, 1e6, request=elastic(2, 2), gpus=(2,))

    plan = deadline.plan(snapshot_of(nodes, [narrow, wide]))

    assert started(plan) == {1: 1, 2: 2}


def test_without_training_jobs_nothing_is_said() -> None:
    assert deadline.plan(snapshot_of(gpu_nodes(4))) == Plan()
