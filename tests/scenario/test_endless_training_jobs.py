"""Training jobs that would run for ages: a mistake in a number harms nobody but who made it."""

import pytest

from baselines.registry import ALL, TRAININGS
from gsched.cli.times import format_clock
from gsched.errors import InvalidRequestError
from gsched.model.training import Training
from gschedd.core.state.state import State
from tests.support.world import World, node

#: Beyond any calendar: 1e30 seconds, and more than a double can hold.
AGES = (
    Training(iterations=1e30, rates=((1, 1.0), (2, 2.0))),
    Training(iterations=1e300, rates=((1, 1e-300), (2, 1e-290))),
    Training(parameters=1e300, samples=1e300, batch=1.0, epochs=1e300, step_time_s=1.0),
)


class Planned(World):
    """A world whose training jobs are planned."""

    def _fresh_state(self) -> State:
        return State({"batch": 0}, plans_training=True)


@pytest.mark.parametrize("training", AGES)
def test_its_deadline_is_refused_in_words(training: Training) -> None:
    """Not by a moment that no calendar has."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose("drs").plan)

    with pytest.raises(InvalidRequestError, match=r"after the year 2200|cannot run"):
        world.submit(
            "select=1:ncpus=1:ngpus=1", places_max=2, training=training, deadline_after_s=100.0
        )


@pytest.mark.parametrize("policy", sorted(TRAININGS))
@pytest.mark.parametrize("training", AGES)
def test_others_are_planned_beside_it(training: Training, policy: str) -> None:
    """It came before any node had, so that nothing could be said of it."""
    world = Planned(node("a", cpus=8, gpus=4), policy=ALL.choose(policy).plan, connect=False)
    world.submit("select=1:ncpus=1:ngpus=1", places_max=2, training=training)
    world.submit("select=1:ncpus=1:ngpus=1,walltime=100", deadline_after_s=1e6, runs_s=50.0)

    world.connect("a")
    world.run_for(200.0)

    assert world.head.policy_failure is None
    assert not world.head.oddities["policy_failed"]


def test_an_end_beyond_every_calendar_can_be_shown() -> None:
    """By all commands that show moments."""
    for end_s in (1e12, 1e30, 1e300):
        assert format_clock(end_s, now_s=0.0).startswith("9999-12-3")
