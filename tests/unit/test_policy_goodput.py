"""What the policy ``goodput`` decides where it differs from ``sia``, on cases computed by hand."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from msgspec import structs

from gsched.config.policies import GoodputConfig
from gsched.model.resources import Allocation, Share
from gschedd.allocation.adaptive.candidates import AdaptiveJob, Candidates, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.models.goodput.model import GoodputModel
from gschedd.models.goodput.records import BatchLimits, GradientNoise
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.space import FreeNode
from gschedd.plan.training import TrainingProfile, gpus_by_node
from gschedd.policies.training.goodput import goodput
from gschedd.policies.training.goodput.objective import (
    best_of,
    expected,
    problem_of,
    restarted,
    weights,
    with_noise,
)
from tests.support.adaptive import PowerGoodput, adaptive, typed_nodes
from tests.support.training_jobs import NOW_S, check, elastic, snapshot_of

#: A multiple of the round.
ROUND_S = math.ceil(NOW_S / 60.0) * 60.0
EVEN = PowerGoodput(speeds=(("a", 1.0), ("t", 1.0)))
HALF = PowerGoodput(speeds=(("a", 1.0),), exponent=0.5)


def on(node: str, *indices: int) -> Share:
    count = len(indices)
    return Share(node=node, cpus=count, slots=count, gpu_indices=indices)


def seen(
    nodes: Mapping[str, FreeNode],
    waiting: Iterable[TrainingProfile] = (),
    running: Iterable[tuple[TrainingProfile, Allocation]] = (),
) -> Snapshot:
    return structs.replace(snapshot_of(nodes, waiting, list(running)), now_s=ROUND_S)


def planned(snapshot: Snapshot, **settings: object) -> Plan:
    """Return the plan, after a check of all that every plan must keep to."""
    plan = goodput(structs.replace(GoodputConfig(), **settings))(snapshot)
    check(plan, snapshot)
    return plan


def gpus(snapshot: Snapshot, **settings: object) -> dict[int, int]:
    """Return how many GPUs each job has once the plan is carried out."""
    plan = planned(snapshot, **settings)
    places = {each.job: each.allocation for each in snapshot.running}
    places.update({start.job: start.allocation for start in plan.starts})
    places.update({move.job: move.allocation for move in plan.moves})
    return {job: sum(gpus_by_node(place).values()) for job, place in places.items() if place}


def candidates(*jobs: tuple[TrainingProfile, Allocation]) -> Candidates:
    """Return what jobs may have of a node of eight GPUs."""
    nodes = typed_nodes(n1=("a", 8))
    asked = [
        AdaptiveJob(
            job=each.job, profile=each.adaptive, request=elastic(1, 16), allocation=allocation
        )
        for each, allocation in jobs
        if each.adaptive is not None
    ]
    return candidates_of(asked, pool_of(nodes, [each for _, each in jobs]), nodes)


# --- the first allocation ---


def test_a_new_job_with_known_step_times_starts_on_several_gpus() -> None:
    snapshot = seen(typed_nodes(n1=("a", 8)), [adaptive(1, goodput=EVEN)])

    assert gpus(snapshot) == {1: 8}
    assert gpus(snapshot, start_gpus=2) == {1: 2}
    assert planned(snapshot).starts[0].why == "on 8 GPUs of type a"


def test_a_new_job_without_step_times_starts_on_its_minimum() -> None:
    """Assumed speeds count for nothing."""
    snapshot = seen(typed_nodes(n1=("a", 8)), [adaptive(1, goodput=Assumed())])

    assert gpus(snapshot) == {1: 1}


class Assumed(PowerGoodput, frozen=True, kw_only=True, cache_hash=True):
    """Assumes something, and has seen nothing."""

    speeds: tuple[tuple[str, float], ...] = (("a", 1.0),)

    def types(self) -> frozenset[str]:
        return frozenset()


def test_a_job_starts_on_its_minimum_where_that_is_more() -> None:
    assert gpus(seen(typed_nodes(n1=("a", 8)), [adaptive(1, goodput=EVEN, least=8)])) == {1: 8}


def test_several_new_jobs_share_what_there_is() -> None:
    waiting = [adaptive(job, goodput=EVEN) for job in (1, 2, 3, 4)]

    assert gpus(seen(typed_nodes(n1=("a", 8)), waiting)) == {1: 2, 2: 2, 3: 2, 4: 2}


# --- what is expected ---


def test_goodput_on_more_gpus_than_a_job_has_run_on_is_reduced() -> None:
    """It has run on two: twice as many cost a factor of 2^0.1."""
    found = candidates((adaptive(1, goodput=EVEN, reached=2), (on("n1", 0, 1),)))

    assert expected(found, GoodputConfig()) == pytest.approx([1.0, 2**0.8, 4**0.8 / 2**0.1])
    assert expected(found, GoodputConfig(caution=0.0)) == pytest.approx(found.goodput)


def test_a_job_without_measured_noise_is_assumed_to_have_some() -> None:
    known = GoodputModel(limits=BatchLimits(batch=64, batch_max=4096))
    job = AdaptiveJob(job=1, profile=profile_with(known), request=elastic(1, 8))
    measured = structs.replace(known, noise=GradientNoise(square_norm=2.0, variance=3.0))
    other = AdaptiveJob(job=2, profile=profile_with(measured), request=elastic(1, 8))

    assert with_noise(job, 4.0).profile.goodput == structs.replace(
        known, noise=GradientNoise(square_norm=1.0, variance=4.0)
    )
    assert with_noise(other, 4.0) is other


def profile_with(model: GoodputModel):  # type: ignore[no-untyped-def] # never None here
    made = adaptive(1).adaptive
    assert made is not None
    return structs.replace(made, goodput=model)


def test_the_speed_of_a_job_counts_as_a_part_of_its_best() -> None:
    """By hand: 1, 2 and 4 GPUs of which two are known; the square roots of the parts."""
    found = candidates((adaptive(1, goodput=HALF, reached=2, most=4, restart_s=0.0), ()))
    problem = problem_of(found, GoodputConfig(ageing=0.0))
    best = 2 / 2**0.1

    assert problem.cost == pytest.approx([-((1 / best) ** 0.5), -((2**0.5 / best) ** 0.5), -1.0])


# --- restarts ---


def test_a_restart_counts_by_its_time_over_the_time_that_is_left() -> None:
    """By hand: r = 3600 / 3630; 60 s of work at goodput 1, 30 s of restart: two thirds of it."""
    found = candidates((adaptive(1, goodput=HALF, reached=1, left=60.0), (on("n1", 0),)))
    ran = 3600 / 3630

    assert restarted(found, found.goodput) == pytest.approx(
        [1.0, 2**0.5 * ran / (1 + 30 * 2**0.5 / 60)]
    )


def test_a_job_near_its_end_is_not_restarted_for_more_gpus() -> None:
    def moves(left: float) -> int:
        running = [(adaptive(1, goodput=EVEN, reached=2, left=left), (on("n1", 0, 1),))]
        return len(planned(seen(typed_nodes(n1=("a", 8)), running=running)).moves)

    assert (moves(20.0), moves(2e4)) == (0, 1)


def test_the_first_start_of_a_job_is_no_restart() -> None:
    found = candidates((adaptive(1, goodput=EVEN, left=1.0, age_s=100.0), ()))

    assert restarted(found, found.goodput) == pytest.approx(found.goodput)


def test_a_preempted_job_pays_for_its_next_start() -> None:
    """By hand: as one that has GPUs and would change them."""
    found = candidates((adaptive(1, goodput=HALF, reached=1, most=1, left=60.0), ()))

    assert restarted(found, found.goodput) == pytest.approx([3600 / 3630 / (1 + 30 / 60)])


@pytest.mark.parametrize(("reached", "swaps"), [(1, 0), (0, 1)])
def test_a_preempted_job_does_not_take_turns_with_one_like_it(reached: int, swaps: int) -> None:
    """It is a little shorter, and would gain less than its restart costs; a new job gains it."""
    running = [(adaptive(1, goodput=EVEN, reached=1, most=1, left=1000.0), (on("n1", 0),))]
    other = adaptive(2, goodput=EVEN, reached=reached, most=1, left=990.0)
    plan = planned(seen(typed_nodes(n1=("a", 1)), [other], running))

    assert len(plan.moves) == swaps


def test_a_job_that_was_preempted_often_runs_where_gpus_are_idle() -> None:
    preempted = adaptive(1, goodput=EVEN, reached=1, most=1, age_s=300.0, restarts=20)

    assert gpus(seen(typed_nodes(n1=("a", 1)), [preempted])) == {1: 1}


# --- short jobs first, within a bound ---


def test_weights_are_powers_of_the_predicted_time_left_within_a_bound() -> None:
    """Times left on one GPU each: 100 s, 1000 s and 1e9 s; the fourth job does not know."""
    jobs = [
        (adaptive(job, goodput=EVEN, most=1, left=left), ())
        for job, left in enumerate([100.0, 1000.0, 1e9, None])
    ]
    found = candidates(*jobs)
    settings = GoodputConfig(short_first=0.1, weight_bound=1.5, ageing=0.0)

    assert weights(found, best_of(found, found.goodput), settings) == pytest.approx(
        [10**0.1, 1, 1 / 1.5, 1]
    )
    same = structs.replace(settings, short_first=0.0)
    assert weights(found, best_of(found, found.goodput), same) == pytest.approx([1.0] * 4)


def test_of_two_jobs_the_shorter_one_gets_more() -> None:
    """Six GPUs for two jobs that are alike but for their length: four and two."""
    for short, long in ((1, 2), (2, 1)):
        waiting = [
            adaptive(short, goodput=HALF, left=100.0),
            adaptive(long, goodput=HALF, left=100000.0),
        ]
        found = gpus(seen(typed_nodes(n1=("a", 4), n2=("a", 2)), waiting))
        assert found == {short: 4, long: 2}


def test_the_weight_of_a_long_job_is_bounded_so_that_it_keeps_a_share() -> None:
    """Of one short job and one that takes a million times as long."""
    waiting = [
        adaptive(1, goodput=HALF, left=100.0),
        adaptive(2, goodput=HALF, left=1e10),
    ]
    snapshot = seen(typed_nodes(n1=("a", 4)), waiting)

    assert gpus(snapshot, short_first=1.0) == {1: 2, 2: 2}
    assert gpus(snapshot, short_first=1.0, weight_bound=1e6) == {1: 4}


def test_the_older_of_two_jobs_gets_more() -> None:
    """An hour and fifteen hours: weights of 2^0.3 and 16^0.3."""
    jobs = [
        (adaptive(job, goodput=HALF, left=1000.0, age_s=3600.0 * hours), ())
        for job, hours in ((1, 1.0), (2, 15.0))
    ]
    found = candidates(*jobs)

    assert weights(found, best_of(found, found.goodput), GoodputConfig()) == pytest.approx(
        [2**0.3, 16**0.3]
    )
    for young, old in ((1, 2), (2, 1)):
        waiting = [
            adaptive(young, goodput=HALF, left=1000.0, age_s=3600.0),
            adaptive(old, goodput=HALF, left=1000.0, age_s=54000.0),
        ]
        nodes = typed_nodes(n1=("a", 4), n2=("a", 2))
        assert gpus(seen(nodes, waiting)) == {young: 2, old: 4}


def test_the_cost_of_waiting_is_never_reduced_by_the_weight() -> None:
    jobs = [
        (adaptive(job, goodput=EVEN, most=1, left=left), ()) for job, left in ((1, 1.0), (2, 100.0))
    ]
    problem = problem_of(candidates(*jobs), GoodputConfig(short_first=0.1, ageing=0.0))
    ratio = np.array([50.5, 0.505]) ** 0.1

    assert problem.waiting_cost == pytest.approx([0.1 * ratio[0], 0.1])
    assert problem.cost == pytest.approx(-ratio)


def test_a_job_that_was_guaranteed_its_deadline_is_not_left_without_gpus() -> None:
    waiting = [adaptive(job, goodput=EVEN, most=1) for job in (1, 2)]
    nodes = typed_nodes(n1=("a", 1))
    kept = [waiting[0], structs.replace(waiting[1], guaranteed=True)]

    assert gpus(seen(nodes, waiting)) == {1: 1}
    assert gpus(seen(nodes, kept)) == {2: 1}
    every = [structs.replace(each, guaranteed=True) for each in waiting]
    assert gpus(seen(nodes, every)) == {1: 1}, "one of them has to wait"
    assert str(planned(seen(nodes, every)).waits[0].reason) == (
        "other jobs gain more goodput from the GPUs"
    )
