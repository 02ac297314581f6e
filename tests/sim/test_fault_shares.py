"""Jobs share GPUs while everything fails, from printed seeds: no GPU is given to more than it has.

A seed that fails is the whole story: ``scripts/sim-faults --policy shares --seeds N`` tells it
again.
"""

from collections import Counter

import pytest
from msgspec import structs

from gsched.model.resources import Share
from gschedd.core.state import facts as f
from gschedd.plan.sharing import SharedGpu
from gschedd.plan.space import FreeNode
from gschedd.plan.space import take as take_all
from tests.fault_world.mixed import MixedWorld
from tests.fault_world.shares import ShareWorld
from tests.fault_world.world import is_caught

SHARED_SEEDS = 6  # the first ones: in them GPUs are really shared
SEEDS = 20
MIXED_SEEDS = 8
CANARY_SEEDS = 5  # among so many, each broken guarantee must be found


@pytest.mark.parametrize("seed", range(SHARED_SEEDS, SEEDS))
def test_guarantees_hold_while_gpus_are_shared(seed: int) -> None:
    """Beside jobs with whole GPUs, and with a node that cannot share."""
    story = ShareWorld(seed).run()

    assert story.jobs >= 15
    assert story.attempts > 0


def test_guarantees_hold_while_jobs_migrate_and_share_gpus() -> None:
    """And they really do over these seeds, onto GPUs of nodes where jobs have shares."""
    seen: set[str] = set()
    for seed in range(MIXED_SEEDS):
        world = MixedWorld(seed)
        assert world.run().attempts > 0
        seen |= {type(fact).__name__ for fact in world.history.facts}
        for fact in world.history.facts:
            if isinstance(fact, f.AttemptAssigned):
                seen |= {"share" for each in fact.allocation if each.gpu_shares}
                seen |= {
                    "second" for each in fact.allocation if each.gpu_indices and fact.attempt > 1
                }

    assert seen >= {"share", "second", "CheckpointTaken"}


def test_gpus_are_really_shared_in_these_worlds() -> None:
    """Guarantees hold; by several jobs at once, of both classes, and on no node that cannot."""
    most, classes = 0, set()
    for seed in range(SHARED_SEEDS):
        world = ShareWorld(seed)
        assert world.run().jobs >= 15
        on: Counter[tuple[str, int]] = Counter()
        held: dict[int, list[tuple[str, int]]] = {}
        for fact in world.history.facts:
            if isinstance(fact, f.AttemptAssigned):
                shares = [(each.node, part) for each in fact.allocation for part in each.gpu_shares]
                assert all(node != "n3" for node, _ in shares)
                classes |= {part.share_class for _, part in shares}
                held[fact.job] = [(node, part.index) for node, part in shares]
                on.update(held[fact.job])
                most = max(most, *on.values(), 0)
            elif isinstance(fact, f.AttemptEnded):
                on.subtract(held.pop(fact.job))

    assert most >= 3
    assert classes == {"high", "low"}


def test_a_head_that_gives_a_gpu_to_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It believes that every share fits."""
    monkeypatch.setattr(SharedGpu, "holds", lambda _self, _share: True)

    assert is_caught(ShareWorld, range(CANARY_SEEDS), {"I6"})


def test_a_head_that_forgets_shares_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with shares on it looks free to it."""

    def forgetful(space: FreeNode, share: Share) -> FreeNode:
        return take_all(space, structs.replace(share, gpu_shares=()))

    monkeypatch.setattr("gschedd.core.state.ledger.take", forgetful)

    assert is_caught(ShareWorld, range(CANARY_SEEDS), {"I6", "I13"})
