"""Training jobs are moved while everything fails, from printed seeds: every guarantee holds.

A seed that fails is the whole story: ``scripts/sim-faults --policy NAME --seeds N`` tells it again.
"""

from collections.abc import Iterable
from functools import partial

import pytest

from gsched.errors import InvalidTransitionError
from gschedd.core import head as core_head
from gschedd.core.head import Head
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.plan.snapshot import Policy
from tests.fault_world.moves import NAMED, MovingWorld
from tests.fault_world.world import is_caught

PHASES_SEEDS = 7  # the first ones: in them every phase of a migration meets faults
SEEDS = 10
#: Seeds that have found something, with what that was.
FOUND = {
    33: "a training was deleted between its move and its first step, and the head died of that",
}
CANARY_SEEDS = 30  # among so many, each broken head must be caught


@pytest.mark.parametrize("seed", [*range(PHASES_SEEDS, SEEDS), *FOUND])
def test_guarantees_hold_whatever_moves(seed: int) -> None:
    """Places are exchanged, given up and lost; nothing is lost, doubled, overbooked or left."""
    live(MovingWorld(seed))


def live(world: MovingWorld) -> None:
    """Let a world live to its end."""
    story = world.run()

    assert story.jobs >= 15
    assert any(isinstance(fact, f.MigrationRequested) for fact in world.history.facts)


@pytest.mark.parametrize("policy", NAMED)
def test_guarantees_hold_with_every_policy(policy: str) -> None:
    """Those that sites may choose."""
    for seed in (1, 2):
        world = MovingWorld(seed, policy=policy)
        world.run()
        assert any(isinstance(fact, f.DeadlineJudged) for fact in world.history.facts)


def test_every_phase_of_a_move_meets_faults() -> None:
    """Guarantees hold; moves succeed, fail, lose their places, and end in the queue."""
    worlds = [MovingWorld(seed) for seed in range(PHASES_SEEDS)]
    for world in worlds:
        live(world)

    kinds = {type(fact) for world in worlds for fact in world.history.facts}
    assert {f.MigrationRequested, f.CheckpointTaken, f.MigrationAbandoned, f.TargetLost} <= kinds
    assert {f.TrainingResumed, f.JobRequeued, f.NodeDisconnected, f.JobAltered} <= kinds


class Forgetful(Head):
    """Forgets how far training jobs are."""

    def cycle(self, now_s: float) -> Step:
        """Let them begin anew."""
        for job in self.state.training_jobs.values():
            job.work_done = 0.0
        return super().cycle(now_s)


def test_a_head_that_forgets_checkpoints_is_caught() -> None:
    """By what a training that goes on is told."""

    def make(state: State, settings: Settings, policy: Policy) -> Head:
        return Forgetful(state=state, settings=settings, policy=policy)

    assert is_caught(partial(MovingWorld, make_head=make), range(CANARY_SEEDS), {"I12"})


def test_a_head_that_gives_a_move_up_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies of it."""
    monkeypatch.setattr(core_head, "is_overtaken", lambda _state, _fact: False)

    with pytest.raises(InvalidTransitionError):
        _live_all(reversed(range(CANARY_SEEDS)))  # from the last one: it is a rare story


def _live_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        MovingWorld(seed).run()
