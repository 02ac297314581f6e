"""A user may allow a training any number of GPUs: what is planned is what there is."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from baselines.registry import ALL, TRAININGS
from gschedd.core.state.state import State
from gschedd.core.training.profile import TrainingProfiles, gpu_counts
from tests.support.world import World, inventory, node


class Planned(World):
    """A world whose training jobs are planned."""

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)


def wide(world: World) -> int:
    """Submit a training that would take any number of GPUs."""
    return world.submit(
        "select=1:ncpus=1:ngpus=1,place=free,walltime=1000",
        runs_s=900.0,
        places_max=100_000,
        deadline_after_s=1e6,
    )


def call_count(action: Callable[[], object]) -> int:
    """Return how many functions an action calls: its cost, on any machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def test_nobody_plans_for_more_gpus_than_there_are() -> None:
    """Also after a node has come."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose("drs").plan)
    job = wide(world)
    profiles = TrainingProfiles(world.head.state, world.settings, world.now_s)
    assert profiles[job].gpus == (1, 2, 3, 4)

    world.replace_hardware("a", inventory(cpus=8, gpus=6))

    profiles = TrainingProfiles(world.head.state, world.settings, world.now_s)
    assert profiles[job].gpus == (1, 2, 3, 4, 5, 6)


def test_a_request_that_is_too_large_for_what_is_here_keeps_its_least_number() -> None:
    """It waits for a node that has yet to come."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose("drs").plan)
    request = world.head.state.jobs[wide(world)].spec.request

    assert gpu_counts(request, 0) == (1,)


@pytest.mark.parametrize("policy", sorted(TRAININGS))
def test_a_wide_range_costs_no_policy_more(policy: str) -> None:
    """Its plan takes about as many calls as for as many GPUs as there are."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose(policy).plan)

    calls = call_count(lambda: wide(world))

    assert world.head.policy_failure is None
    assert calls < 20_000
