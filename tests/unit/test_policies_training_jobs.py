"""What edf, fifowhole, themis and elasticflow decide, on cases computed by hand."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from baselines import edf, fifowhole, themis
from gsched.model.resources import Allocation, Share
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy, RunningJob, Snapshot
from gschedd.plan.space import Spaces
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training import elasticflow
from tests.support.spaces import space
from tests.support.training_jobs import NOW_S, elastic, gpu_nodes, profile, snapshot_of

#: Iterations a second: twice the GPUs are twice as fast up to four, eight are as fast as six.
EVEN = TableSpeed(rates=((1, 1.0), (2, 2.0), (4, 4.0), (8, 6.0)))
#: One that hardly gains from a second GPU.
FLAT = TableSpeed(rates=((1, 1.0), (2, 1.2), (4, 1.3), (8, 1.3)))


def training(
    job: int, work: float, deadline_s: float | None = None, **changes: object
) -> TrainingProfile:
    made = profile(
        job, work=work, deadline_s=deadline_s, speed=EVEN, request=elastic(1, 8), movable=True
    )
    return structs.replace(made, **changes)


def on(node: str, *indices: int) -> Allocation:
    count = len(indices)
    return (Share(node=node, cpus=count, slots=count, gpu_indices=indices),)


def gpus(plan: Plan, running: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return how many GPUs each training has once a plan is carried out."""
    counts = dict(running or {})
    places = [(start.job, start.allocation) for start in plan.starts]
    places += [(move.job, move.allocation) for move in plan.moves]
    counts.update({job: sum(gpus_by_node(place).values()) for job, place in places})
    return counts


def said(plan: Plan) -> dict[int, Forecast]:
    return {verdict.job: verdict for verdict in plan.verdicts}


def begun(snapshot: Snapshot, ago_s: float) -> Snapshot:
    """Return a snapshot in which everything runs for so long."""
    running = [structs.replace(each, started_s=NOW_S - ago_s) for each in snapshot.running]
    return structs.replace(snapshot, running=running)


# --- the whole cluster to one ---


def test_edf_gives_all_gpus_to_the_earliest_deadline() -> None:
    """600 of work take 100 s on eight GPUs; the next one ends 50 s after that, and is late."""
    waiting = [training(1, 300, 140.0), training(2, 600, 110.0)]

    plan = edf.plan(snapshot_of(gpu_nodes(4, 4), waiting))

    assert gpus(plan) == {2: 8}
    assert [wait.first for wait in plan.waits] == [1]
    assert said(plan)[2] == Forecast(job=2, meets=True, end_s=NOW_S + 100, gpus=8, firm=False)
    assert (said(plan)[1].meets, said(plan)[1].end_s) == (False, NOW_S + 150)


def test_fifowhole_takes_them_as_they_came() -> None:
    """However early the other deadline is."""
    waiting = [
        training(1, 300, 50.0, arrived_s=NOW_S - 1),
        training(2, 600, 110.0, arrived_s=NOW_S - 2),
    ]

    assert gpus(fifowhole.plan(snapshot_of(gpu_nodes(8), waiting))) == {2: 8}


@pytest.mark.parametrize("policy", [edf.plan, fifowhole.plan])
def test_one_at_a_time_interrupts_nothing(policy: Policy) -> None:
    """Half of the cluster is idle, and a more urgent training waits."""
    running = training(1, 400, 1000.0)
    seen = snapshot_of(gpu_nodes(8), [training(2, 6, 2.0)], [(running, on("n1", 0, 1, 2, 3))])

    plan = policy(seen)

    assert (plan.starts, plan.moves) == ((), ())
    assert said(plan)[1].end_s == NOW_S + 100
    assert said(plan)[2].end_s == NOW_S + 101


def others_job(job: int, allocation: Allocation, end_s: float) -> RunningJob:
    """Return a job that is no training job and holds GPUs."""
    return RunningJob(job=job, allocation=allocation, started_s=NOW_S - 60, end_s=end_s)


def with_others(snapshot: Snapshot, others: list[RunningJob]) -> Snapshot:
    free = Spaces(snapshot.nodes)
    for other in others:
        free.take(other.allocation)
    nodes = {each.name: each for each in free}
    return structs.replace(snapshot, nodes=nodes, running=[*snapshot.running, *others])


@pytest.mark.parametrize("policy", [edf.plan, fifowhole.plan])
def test_one_at_a_time_counts_on_the_gpus_that_other_jobs_leave(policy: Policy) -> None:
    """Others hold four of eight for 50 s, then all that waits can have eight.

    The first starts on the four that are free; the second has four until 50 s and so is told the
    end on four, the third starts after them and is told the end on eight.
    """
    nodes = gpu_nodes(8)
    others = others_job(9, on("n1", 0, 1, 2, 3), NOW_S + 50)
    waiting = [training(1, 80, 1000.0), training(2, 80, 2000.0), training(3, 60, 3000.0)]
    seen = with_others(snapshot_of(nodes, waiting), [others])

    plan = policy(seen)

    assert gpus(plan) == {1: 4}
    ends_s = [said(plan)[job].end_s for job in (1, 2, 3)]
    assert ends_s == [NOW_S + 20, NOW_S + 40, NOW_S + 55]
    assert [said(plan)[job].gpus for job in (1, 2, 3)] == [4, 4, 4]


@pytest.mark.parametrize("policy", [edf.plan, fifowhole.plan])
def test_one_at_a_time_waits_for_the_gpus_of_other_jobs(policy: Policy) -> None:
    """Nothing is free for 100 s: it ends 10 s after that, too late for its deadline."""
    seen = with_others(
        snapshot_of(gpu_nodes(8), [training(1, 60, 105.0)]),
        [others_job(9, on("n1", *range(8)), NOW_S + 100)],
    )

    plan = policy(seen)

    assert plan.starts == ()
    assert (said(plan)[1].meets, said(plan)[1].end_s) == (False, NOW_S + 110)
    assert "other jobs" in str(plan.waits[0].reason)


# --- each as much as it can use, by deadline ---


def test_edf_scaled_takes_from_later_deadlines() -> None:
    """The new one takes all eight, although four are almost as good; the other is suspended."""
    running = training(1, 400, 1000.0)
    seen = snapshot_of(
        gpu_nodes(8), [training(2, 130, 100.0, speed=FLAT)], [(running, on("n1", 0, 1, 2, 3))]
    )

    plan = edf.plan_scaled(seen)

    assert gpus(plan, {1: 4}) == {1: 0}
    assert plan.starts == (), "half of what it takes is not vacated yet"
    assert said(plan)[2] == Forecast(job=2, meets=True, end_s=NOW_S + 100, gpus=8, firm=False)
    assert said(plan)[1].end_s == pytest.approx(NOW_S + 100 + 400 / 6)


# --- finish-time fairness ---


def test_themis_lifts_who_is_worst_off() -> None:
    """Alike, but one has waited for 400 s: its rho stays the higher one up to four GPUs.

    Alone both take 100 s. On one GPU rho is 6 for the new one, 10 for the other; on two 7, on four
    5.5: then the new one goes to two.
    """
    waiting = [training(1, 600), training(2, 600, arrived_s=NOW_S - 400)]

    plan = themis.plan(snapshot_of(gpu_nodes(6), waiting))

    assert gpus(plan) == {2: 4, 1: 2}


def test_themis_lends_gpus_for_a_time() -> None:
    """Before the lease ends nobody is touched; then it is auctioned among all."""
    running = training(1, 6000, arrived_s=NOW_S - 600)
    seen = snapshot_of(gpu_nodes(8), [training(2, 600)], [(running, on("n1", *range(8)))])

    early, late = themis.plan(begun(seen, 1199)), themis.plan(begun(seen, 1200))

    assert (early.starts, early.moves) == ((), ())
    assert early.again_s is not None
    assert NOW_S + 1 <= early.again_s <= NOW_S + 1 + 300
    assert gpus(late, {1: 8})[1] == 4


def test_themis_does_not_call_a_job_late_that_may_still_get_gpus() -> None:
    """All GPUs are lent. Alone 600 of work take 100 s, so at 150 s it is too late from 50 s on."""
    running = training(1, 6000, arrived_s=NOW_S - 600)
    seen = snapshot_of(
        gpu_nodes(8),
        [training(2, 600, 150.0), training(3, 600, 99.0)],
        [(running, on("n1", *range(8)))],
    )

    plan = themis.plan(begun(seen, 10))

    assert said(plan)[2].unsure_until_s == pytest.approx(NOW_S + 50)
    assert said(plan)[3].unsure_until_s is None
    assert not said(plan)[3].meets


# --- minimum satisfactory shares ---


def test_elasticflow_gives_what_a_deadline_needs_and_then_what_is_idle_to_who_gains_most() -> None:
    """Both need two GPUs. With the four that are left one is twice as fast, the other hardly."""
    waiting = [training(1, 200, 100.0), training(2, 110, 100.0, speed=FLAT)]

    plan = elasticflow.plan(snapshot_of(gpu_nodes(8), waiting))

    assert gpus(plan) == {1: 4, 2: 4}
    assert gpus(elasticflow.plan(snapshot_of(gpu_nodes(6), waiting))) == {1: 4, 2: 2}
    assert said(plan)[1] == Forecast(job=1, meets=True, end_s=NOW_S + 100, gpus=4)


def test_elasticflow_refuses_who_would_make_another_late() -> None:
    """All four GPUs are needed until 100 s by one that is guaranteed to be in time."""
    running = training(1, 400, 100.0, guaranteed=True)
    new = training(2, 50, 60.0)
    seen = snapshot_of(gpu_nodes(4), [new], [(running, on("n1", 0, 1, 2, 3))])

    plan = elasticflow.plan(seen)

    assert (plan.starts, plan.moves) == ((), ())
    assert said(plan)[1].meets
    assert not said(plan)[2].meets
    assert "cannot be met" in str(plan.waits[0].reason)
    later = structs.replace(new, deadline_s=NOW_S + 120)
    plan = elasticflow.plan(snapshot_of(gpu_nodes(4), [later], [(running, on("n1", 0, 1, 2, 3))]))
    assert said(plan)[2] == Forecast(job=2, meets=True, end_s=NOW_S + 112.5, gpus=4)


def test_elasticflow_takes_back_what_was_only_idle() -> None:
    """A new one needs four GPUs: the other goes back to the two that it needs itself."""
    running = training(1, 200, 100.0, guaranteed=True)
    seen = snapshot_of(gpu_nodes(6), [training(2, 400, 100.0)], [(running, on("n1", 0, 1, 2, 3))])

    plan = elasticflow.plan(seen)

    assert gpus(plan, {1: 4})[1] == 2
    assert said(plan)[2].gpus == 4
    assert said(plan)[2].meets


def test_elasticflow_lets_who_was_just_resized_keep_its_number_for_a_slot() -> None:
    """Growing is worth it only then; until then it wants to be asked again."""
    running = training(1, 200, 400.0, guaranteed=True, move_s=10.0)
    seen = snapshot_of(gpu_nodes(8), (), [(running, on("n1", 0))])

    early, late = elasticflow.plan(begun(seen, 239)), elasticflow.plan(begun(seen, 240))

    assert early.moves == ()
    assert early.again_s == NOW_S + 1
    assert gpus(late, {1: 1}) == {1: 8}
    assert late.again_s is None


def test_elasticflow_does_not_move_for_less_than_a_move_costs() -> None:
    """60 of work take 15 s on four GPUs and 10 s on eight, but the move takes 5 s."""
    running = training(1, 60, 400.0, guaranteed=True, move_s=5.0)
    seen = begun(snapshot_of(gpu_nodes(8), (), [(running, on("n1", 0, 1, 2, 3))]), 900)

    assert elasticflow.plan(seen).moves == ()
    cheap = structs.replace(running, move_s=4.0)
    seen = begun(snapshot_of(gpu_nodes(8), (), [(cheap, on("n1", 0, 1, 2, 3))]), 900)
    assert gpus(elasticflow.plan(seen)) == {1: 8}


def test_elasticflow_lets_the_refused_use_what_nobody_needs() -> None:
    """They are suspended as soon as somebody with a guarantee needs it."""
    refused = training(1, 900, 10.0, guaranteed=False)

    alone = elasticflow.plan(snapshot_of(gpu_nodes(4), [refused]))
    assert gpus(alone) == {1: 4}
    seen = snapshot_of(gpu_nodes(4), [training(2, 400, 100.0)], [(refused, on("n1", 0, 1, 2, 3))])
    assert gpus(elasticflow.plan(seen)) == {1: 0}


def test_elasticflow_counts_what_other_jobs_hold_until_they_end() -> None:
    """Four of eight GPUs come back at 50 s: 200 on four, 300 on eight are done by 100 s."""
    other = RunningJob(
        job=9, allocation=on("n1", 4, 5, 6, 7), started_s=NOW_S - 5, end_s=NOW_S + 50
    )

    def meets(work: float) -> bool:
        seen = snapshot_of(gpu_nodes(8), [training(1, work, 100.0)])
        nodes = {
            name: structs.replace(space, gpus=space.gpus[:4]) for name, space in seen.nodes.items()
        }
        plan = elasticflow.plan(structs.replace(seen, nodes=nodes, running=[other]))
        return bool(said(plan)[1].meets)

    assert meets(500)
    assert not meets(501)


def test_elasticflow_starts_one_that_got_nothing_beside_others_that_got_fewer_in_the_end() -> None:
    """Six GPUs of n1 have three CPUs: two jobs would take all of these and those of n2.

    What the first of them cannot have goes to job 1, then it gets fewer itself: a CPU is left.
    """
    nodes = {
        "n1": space("n1", cpus=4, gpu_types=("",) * 8),
        "n2": space("n2", cpus=4, gpu_types=("",) * 2),
    }
    running = training(1, 1000, request=elastic(1, 1, gpus=2), gpus=(2,))
    its_own = (Share(node="n1", cpus=1, slots=1, gpu_indices=(0, 1)),)
    waiting = [
        training(job, 1000, 1e6, request=elastic(1, 4), gpus=(1, 2, 3, 4)) for job in (2, 3, 4)
    ]

    plan = elasticflow.plan(snapshot_of(nodes, waiting, [(running, its_own)]))

    assert gpus(plan) == {2: 2, 3: 2, 4: 1}
    assert plan.moves == ()


@pytest.mark.parametrize("policy", [elasticflow.plan, edf.plan_scaled])
def test_who_cannot_be_moved_keeps_what_it_has_until_it_is_done(policy: Policy) -> None:
    """Four of eight GPUs for 50 s more: 500 of work are done by 100 s beside it, 501 are not."""
    fixed = training(1, 200, 900.0, movable=False)

    for work, meets in ((500, True), (501, False)):
        seen = snapshot_of(
            gpu_nodes(8), [training(2, work, 100.0)], [(fixed, on("n1", 0, 1, 2, 3))]
        )
        assert said(policy(seen))[2].meets is meets


def test_in_slots_all_that_arrived_are_admitted_together_or_none() -> None:
    """Each alone would be in time, both are not; before the end of the slot nothing is said."""
    waiting = [training(1, 300, 100.0), training(2, 300, 100.0)]
    seen = snapshot_of(gpu_nodes(4), waiting)
    slot_s = NOW_S + (-NOW_S % 240.0)

    early = elasticflow.plan_in_slots(structs.replace(seen, now_s=slot_s - 1))
    assert (early.starts, early.verdicts, early.again_s) == ((), (), slot_s)
    assert len(early.waits) == 2
    profiles = {
        job: structs.replace(each, deadline_s=slot_s + 100) for job, each in seen.profiles.items()
    }
    plan = elasticflow.plan_in_slots(structs.replace(seen, now_s=slot_s, profiles=profiles))
    assert {job: verdict.meets for job, verdict in said(plan).items()} == {1: False, 2: False}
    assert plan.again_s == slot_s + 240
    one_by_one = elasticflow.plan(structs.replace(seen, now_s=slot_s, profiles=profiles))
    assert {job: verdict.meets for job, verdict in said(one_by_one).items()} == {1: True, 2: False}
