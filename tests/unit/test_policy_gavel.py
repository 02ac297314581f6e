"""What gavel decides, on cases computed by hand."""

import math
from collections.abc import Iterable

import pytest
from msgspec import structs

from baselines.gavel import plan
from baselines.gavel.rounds import least_columns, shares
from gsched.model.resources import Allocation, Share
from gsched.model.training import Scaling
from gschedd.allocation.adaptive.candidates import AdaptiveJob, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import TrainingProfile, gpus_by_node
from tests.support.adaptive import PowerGoodput, adaptive, typed_nodes
from tests.support.training_jobs import NOW_S, check, elastic, snapshot_of

ROUND_S = math.ceil(NOW_S / 360.0) * 360.0
NODES = typed_nodes(n1=("a", 2), n2=("t", 2))
#: Steps a second on one GPU of each type: samples are 1,001 a step there.
FAST = PowerGoodput(speeds=(("a", 4.0), ("t", 1.0)), exponent=1.0, several_nodes=1.0)
EVEN = PowerGoodput(speeds=(("a", 1.0), ("t", 1.0)), exponent=1.0, several_nodes=1.0)


def rigid(job: int, goodput: PowerGoodput, gpus: int = 1, done: float = 0.0) -> TrainingProfile:
    """Return a job on a fixed number of GPUs, of which a part is done."""
    made = adaptive(
        job, goodput=goodput, least=gpus, most=gpus, reached=gpus, scaling=Scaling.RIGID
    )
    return structs.replace(made, work=100_000.0 - done, total_work=100_000.0)


def seen(
    waiting: Iterable[TrainingProfile],
    running: Iterable[tuple[TrainingProfile, Allocation]] = (),
    now_s: float = ROUND_S,
) -> Snapshot:
    return structs.replace(snapshot_of(NODES, waiting, list(running)), now_s=now_s)


def after(snapshot: Snapshot) -> dict[int, dict[str, int]]:
    """Return how many GPUs each job has on each node once the plan is carried out."""
    found = plan(snapshot)
    check(found, snapshot)
    return gpus(found, snapshot)


def gpus(found: Plan, snapshot: Snapshot) -> dict[int, dict[str, int]]:
    places = {each.job: each.allocation for each in snapshot.running}
    places.update({start.job: start.allocation for start in found.starts})
    places.update({move.job: move.allocation for move in found.moves})
    return {job: gpus_by_node(place) for job, place in places.items() if place}


def on(node: str, *indices: int) -> Share:
    return Share(node=node, cpus=len(indices), slots=len(indices), gpu_indices=indices)


def test_shares_of_time_have_the_largest_sum_of_steps() -> None:
    """Two of three jobs that are faster on type a have it; the third has the other type."""
    profiles = [rigid(1, FAST), rigid(2, EVEN), rigid(3, FAST)]
    jobs = [
        AdaptiveJob(job=each.job, profile=each.adaptive, request=elastic(1, 1))
        for each in profiles
        if each.adaptive is not None
    ]
    candidates = candidates_of(jobs, pool_of(NODES, []), NODES)
    columns = least_columns(candidates)
    types = [
        (int(job), candidates.configurations.type_of(int(configuration)))
        for job, configuration in zip(
            candidates.job[columns], candidates.configuration[columns], strict=True
        )
    ]

    assert types == [(0, "a"), (0, "t"), (1, "a"), (1, "t"), (2, "a"), (2, "t")]
    assert shares(candidates, columns) == pytest.approx([1, 0, 0, 1, 1, 0])


def test_each_job_has_its_number_on_the_type_of_its_share() -> None:
    """Two GPUs of type a go to the job that gains from them."""
    assert after(seen([rigid(1, EVEN, 2), rigid(2, FAST, 2)])) == {1: {"n2": 2}, 2: {"n1": 2}}


def test_whoever_has_had_less_goes_first() -> None:
    """Of two GPUs one job is to have one all the time, another both for half of it.

    The first goes first, until it has had more of its time than the other one.
    """
    only = PowerGoodput(speeds=(("a", 1.0),), exponent=1.0)
    fresh, old = rigid(1, only), rigid(1, only, done=90_000.0)

    assert after(seen([fresh, rigid(2, only, 2)])) == {1: {"n1": 1}}
    assert after(seen([rigid(2, only, 2)], [(old, (on("n1", 0),))])).get(1) is None


def test_nothing_moves_between_rounds() -> None:
    """A minute after a round only what waits is decided about."""
    ran = rigid(1, FAST, 2, done=90.0)
    snapshot = seen([rigid(2, FAST, 2)], [(ran, (on("n1", 0, 1),))], now_s=ROUND_S + 60)
    found = plan(snapshot)

    assert not found.moves
    assert gpus(found, snapshot) == {1: {"n1": 2}, 2: {"n2": 2}}
    assert found.again_s == ROUND_S + 360
