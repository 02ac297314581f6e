"""Every policy that plans training jobs counts with the time until their first steps."""

import pytest
from msgspec import structs

from baselines import edf, fifowhole, themis
from baselines.registry import TRAININGS
from gsched.model.resources import Allocation, Share
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Policy
from gschedd.plan.training import TrainingProfile
from gschedd.policies.training import deadline, drs, elasticflow
from tests.support.training_jobs import NOW_S, elastic, gpu_nodes, profile, snapshot_of

#: 100 iterations take 100 s on one GPU, 50 s on two, 25 s on four.
EVEN = TableSpeed(rates=((1, 1.0), (2, 2.0), (4, 4.0)))
POLICIES: dict[str, Policy] = {
    "deadline": deadline.plan,
    "drs": drs.plan,
    "drs-paper": TRAININGS["drs-paper"],
    "edf": edf.plan,
    "edf-scaled": edf.plan_scaled,
    "elasticflow": elasticflow.plan,
    "fifowhole": fifowhole.plan,
    "themis": themis.plan,
}
CHOOSE = ("deadline", "drs", "drs-paper", "elasticflow")


def training(job: int, most: int, deadline_s: float, **changes: object) -> TrainingProfile:
    """Return a training of 100 iterations that takes 30 s until its first one."""
    made = profile(job, work=100.0, deadline_s=deadline_s, speed=EVEN, request=elastic(1, most))
    return structs.replace(made, startup_s=30.0, whole_startup_s=30.0, **changes)


def said(plan: Plan, job: int) -> Forecast:
    """Return what a plan says of a training."""
    return next(verdict for verdict in plan.verdicts if verdict.job == job)


def gpus(plan: Plan, job: int) -> int:
    """Return how many GPUs a training starts on."""
    return sum(
        len(share.gpu_indices)
        for start in plan.starts
        if start.job == job
        for share in start.allocation
    )


def on(*indices: int) -> Allocation:
    """Return an allocation of GPUs of the first node."""
    count = len(indices)
    return (Share(node="n1", cpus=count, slots=count, gpu_indices=indices),)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("deadline_s", "meets"), [(131.0, True), (120.0, False)])
def test_one_that_starts_ends_after_its_start_and_its_steps(
    name: str, deadline_s: float, *, meets: bool
) -> None:
    """On the only GPU; the steps alone would be in time in both cases."""
    plan = POLICIES[name](snapshot_of(gpu_nodes(1), [training(1, 1, deadline_s)]))

    assert gpus(plan, 1) == 1
    assert said(plan, 1).meets is meets
    end_s = said(plan, 1).end_s
    # who was refused is told no end by elasticflow
    assert end_s == pytest.approx(NOW_S + 130.0) or (name == "elasticflow" and not meets)


@pytest.mark.parametrize("name", POLICIES)
def test_one_that_runs_has_what_is_left_of_its_start_to_come(name: str) -> None:
    """20 s of it, with the GPU that it has and cannot leave."""
    running = training(1, 1, 119.0, movable=False)
    running = structs.replace(running, startup_s=20.0)

    plan = POLICIES[name](snapshot_of(gpu_nodes(1), [], [(running, on(0))]))

    verdict = next((each for each in plan.verdicts if each.job == 1), None)
    if verdict is None:  # themis speaks only of those that it may change
        assert name in {"themis", "edf-scaled"}
        return
    assert verdict.end_s == pytest.approx(NOW_S + 120.0)
    assert verdict.meets is False


@pytest.mark.parametrize("name", CHOOSE)
def test_as_many_gpus_are_taken_as_the_start_leaves_time_for(name: str) -> None:
    """In 85 s: two GPUs would do for the steps in 55 s, one for none; in 135 s one is enough.

    The others of four are taken by one that needs them, or nobody would be modest.
    """
    for deadline_s, wanted in ((135.0, 1), (85.0, 2)):
        rival = training(2, 2, 82.0)
        nodes = gpu_nodes(wanted, 2)
        plan = POLICIES[name](snapshot_of(nodes, [training(1, 4, deadline_s), rival]))
        assert said(plan, 1).meets, (name, deadline_s)
        assert (gpus(plan, 1), gpus(plan, 2)) == (wanted, 2), (name, deadline_s)


@pytest.mark.parametrize("name", ["drs", "drs-paper"])
def test_how_early_a_plan_is_counts_from_its_start(name: str) -> None:
    """With 165 s: 35 s early on one GPU, 85 s on two, 42 for each of them; that is better.

    By the steps alone it were 65 s on one and 57 s for each of two.
    """
    plan = POLICIES[name](snapshot_of(gpu_nodes(2), [training(1, 2, 165.0)]))

    assert gpus(plan, 1) == 2


@pytest.mark.parametrize("name", CHOOSE)
def test_what_waits_behind_one_that_starts_counts_with_both_starts(name: str) -> None:
    """The first one's GPU comes back after 130 s, so the second is in time from 260 s on.

    For `deadline`, which sums up what is free over steps of a minute and more, a little later.
    """
    first = training(1, 1, 131.0, movable=False)
    for deadline_s, meets in ((255.0, False), (400.0 if name == "deadline" else 265.0, True)):
        seen = snapshot_of(gpu_nodes(1), [training(2, 1, deadline_s)], [(first, on(0))])
        plan = POLICIES[name](seen)
        assert said(plan, 1).meets
        assert said(plan, 2).meets is meets, (name, deadline_s)


def test_fairness_counts_the_start_of_both_sides() -> None:
    """The small one has 4 s of steps: alone it would take 34 s, and it will take 54 s from arrival.

    Compared with 4 s it would look far worse off than the large one, which has waited much longer,
    and get the GPU first.
    """
    small = structs.replace(training(1, 4, 1e6), work=4.0, total_work=4.0, arrived_s=NOW_S - 20)
    large = structs.replace(training(2, 4, 1e6), work=400.0, total_work=400.0)
    large = structs.replace(large, arrived_s=NOW_S - 600)

    plan = themis.plan(snapshot_of(gpu_nodes(1), [small, large]))

    assert [start.job for start in plan.starts] == [2]
