"""What pollux decides, on cases computed by hand."""

import math
from collections.abc import Iterable

import pytest
from msgspec import structs

from baselines.pollux import Settings, plan
from baselines.pollux.rounds import problem_of, restart_factor, speedups
from gsched.model.resources import Allocation, Share
from gschedd.allocation.adaptive.candidates import AdaptiveJob, candidates_of
from gschedd.allocation.adaptive.cluster import pool_of
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.training import TrainingProfile, gpus_by_node
from tests.support.adaptive import PowerGoodput, adaptive, typed_nodes
from tests.support.training_jobs import NOW_S, check, elastic, snapshot_of

ROUND_S = math.ceil(NOW_S / 60.0) * 60.0
NODES = typed_nodes(n1=("a", 4), n2=("t", 4))
FAST = PowerGoodput(speeds=(("a", 3.0), ("t", 1.0)), exponent=1.0, several_nodes=1.0)
#: Gains nothing from a second GPU.
FLAT = PowerGoodput(speeds=(("a", 1.0), ("t", 1.0)), exponent=0.0)


def seen(
    waiting: Iterable[TrainingProfile],
    running: Iterable[tuple[TrainingProfile, Allocation]] = (),
    now_s: float = ROUND_S,
) -> Snapshot:
    return structs.replace(snapshot_of(NODES, waiting, list(running)), now_s=now_s)


def after(snapshot: Snapshot) -> dict[int, int]:
    """Return how many GPUs each job has once the plan is carried out."""
    found = plan(snapshot)
    check(found, snapshot)
    places = {each.job: each.allocation for each in snapshot.running}
    places.update({start.job: start.allocation for start in found.starts})
    places.update({move.job: move.allocation for move in found.moves})
    return {job: sum(gpus_by_node(place).values()) for job, place in places.items() if place}


def on(node: str, *indices: int) -> Share:
    return Share(node=node, cpus=len(indices), slots=len(indices), gpu_indices=indices)


def test_a_speedup_is_the_goodput_over_that_on_the_fair_share() -> None:
    """Eight GPUs for two jobs are four each; all types count as the mean of both."""
    profiles = [adaptive(1, goodput=FAST, reached=4), adaptive(2, goodput=FLAT, reached=4)]
    jobs = [
        AdaptiveJob(job=each.job, profile=each.adaptive, request=elastic(1, 8))
        for each in profiles
        if each.adaptive is not None
    ]
    candidates = candidates_of(jobs, pool_of(NODES, []), NODES)
    found = speedups(candidates, Settings())
    gpus = candidates.configurations.gpus[candidates.configuration]

    assert found[candidates.job == 0] == pytest.approx(gpus[candidates.job == 0] / 4)
    assert found[candidates.job == 1] == pytest.approx(1.0)
    assert problem_of(candidates, Settings()).waiting_cost == pytest.approx(1000.0)


def test_the_cost_of_a_restart_reduces_what_changes() -> None:
    """(T - n S) / (T + S)."""
    known = adaptive(1, age_s=570.0, restarts=4).adaptive
    assert known is not None
    assert restart_factor(known, 30.0) == pytest.approx(450 / 600)


def test_gpus_go_where_they_help_and_nobody_is_left_out() -> None:
    """The one that gains nothing has one, the other one a whole node."""
    flat = adaptive(1, goodput=FLAT, reached=8)
    fast = adaptive(2, goodput=FAST, reached=8)
    found = after(seen([flat, fast]))

    assert found[1] == 1
    assert found[2] >= 4


def test_types_count_alike() -> None:
    """A job that would be three times as fast elsewhere does not move there."""
    job = adaptive(1, goodput=FAST, most=4, reached=4)
    snapshot = seen([], [(job, (on("n2", 0, 1, 2, 3),))])

    assert not plan(snapshot).moves


def test_nothing_moves_between_rounds() -> None:
    """Half a minute after a round only what waits is decided about."""
    job = adaptive(1, goodput=FAST, reached=4)
    running = [(job, (on("n2", 0),))]

    assert plan(seen([], running)).moves
    assert not plan(seen([], running, now_s=ROUND_S + 30)).moves
