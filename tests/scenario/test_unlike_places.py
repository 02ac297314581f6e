"""Training jobs whose places are not alike are planned like any other job, beside every policy."""

import pytest

from baselines.registry import ALL, TRAININGS
from gsched.model.states import JobState
from gschedd.core.state.state import State
from tests.support.world import World, node


class Planned(World):
    """A world whose training jobs are planned."""

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)


@pytest.mark.parametrize("policy", sorted(TRAININGS))
def test_one_with_two_kinds_of_places_starts(policy: str) -> None:
    """On an idle node that has room for all of them."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose(policy).plan)

    job = world.submit(
        "select=1:ncpus=1:ngpus=1+1:ncpus=1:ngpus=2,walltime=1000", deadline_after_s=1e6
    )

    assert not world.head.oddities["plan_refused"]
    assert world.job(job).state is JobState.RUNNING
