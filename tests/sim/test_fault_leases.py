"""Jobs with leases start elsewhere while nodes are away, from printed seeds: none runs twice.

A seed that fails is the whole story: ``scripts/sim-faults --policy leases --seeds N`` tells it
again.
"""

import pytest
from msgspec import structs

from gnode.core import leases
from gschedd.core.state import facts as f
from gschedd.core.state.settings import Settings
from tests.fault_world.leases import LeaseWorld
from tests.fault_world.world import is_caught

BOTH_SEEDS = 6  # the first ones: in them leases expire on both sides
SEEDS = 20
CANARY_SEEDS = 10  # among so many, each broken guarantee must be found


@pytest.mark.parametrize("seed", range(BOTH_SEEDS, SEEDS))
def test_guarantees_hold_while_leases_expire(seed: int) -> None:
    """Links are cut, daemons dead, machines asleep, for longer and for less long than a lease."""
    story = LeaseWorld(seed).run()

    assert story.jobs >= 15


def test_leases_expire_on_both_sides() -> None:
    """Guarantees hold; nodes end attempts, and the head starts them elsewhere before it hears."""
    worlds = [LeaseWorld(seed) for seed in range(BOTH_SEEDS)]
    for world in worlds:
        assert world.run().jobs >= 15

    ends = [
        fact.record
        for world in worlds
        for fact in world.history.facts
        if isinstance(fact, f.PartEnded)
    ]
    assert [record for record in ends if record.stop_reason == "lease"]
    assert [record for record in ends if "has expired there" in record.message]


class Hasty(LeaseWorld):
    """Its head lets leases expire before its nodes do."""

    def _make_settings(self) -> Settings:
        return structs.replace(super()._make_settings(), lease_margin_s=-1000.0)


class Careless(LeaseWorld):
    """Its supervisors do not look at leases."""

    def _begin(self) -> None:
        super()._begin()
        for machine in self.machines:
            machine._look_at_lease = _look_away  # type: ignore[method-assign] # that is the fault


def _look_away(key: object, process: object) -> None:
    process.ending.lease_until_s = None  # type: ignore[attr-defined] # a modelled supervisor
    del key


@pytest.mark.parametrize("kind", [Hasty, Careless])
def test_a_lease_that_is_not_kept_is_caught(
    kind: type[LeaseWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is started anew although it lives; gnode must not save it, either."""
    monkeypatch.setattr(leases, "OBEY_S", 1e9)

    assert is_caught(kind, range(CANARY_SEEDS), {"I3", "I4", "I7"})
