"""Attempts are prepared while others train, and everything fails, from printed seeds.

Nothing of a prepared attempt lives before its launch, and nothing is launched that was prepared for
something else. A seed that fails is the whole story: ``scripts/sim-faults --policy warm --seeds N``
tells it again.
"""

import pytest

from gnode.core.task import AttemptKey
from gschedd.core.attempts import assign
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.sim.machine import Process, SimMachine
from tests.fault_world.warm import WarmWorld
from tests.fault_world.world import is_caught

WAYS_SEEDS = 8  # the first ones: in them a prepared attempt goes every way
SEEDS = 10
#: Seeds that have found something, with what that was.
FOUND = {
    327: "memory of a prepared attempt was given to a job that came before another one had left",
}
CANARY_SEEDS = 10  # among so many, each broken guarantee must be found


@pytest.mark.parametrize("seed", [*range(WAYS_SEEDS, SEEDS), *FOUND])
def test_guarantees_hold_while_attempts_are_prepared(seed: int) -> None:
    """Processes wait early, late or never, and die at the gate; daemons, links, machines fail."""
    story = WarmWorld(seed).run()

    assert story.jobs >= 15


def test_every_way_of_a_prepared_attempt_is_gone() -> None:
    """Guarantees hold; launched warm; cold for its end, its lateness and a lost connection."""
    worlds = [WarmWorld(seed) for seed in range(WAYS_SEEDS)]
    for world in worlds:
        assert world.run().jobs >= 15

    facts = [fact for world in worlds for fact in world.history.facts]
    warm = [fact for fact in facts if isinstance(fact, f.PartStarted) and fact.warm]
    assert len(warm) >= 10
    reasons = " ".join(fact.reason for fact in facts if isinstance(fact, f.MigrationPrepared))
    for why in ("on n", "within 10 s", "was lost"):
        assert why in reasons
    cold = {fact.cold for fact in facts if isinstance(fact, f.MigrationRequested)}
    assert "its script does not call elastic.ready()" in cold
    assert [reason for reason in cold if "memory" in reason]


class Gateless(WarmWorld):
    """Its machines have no gates: a prepared job trains at once."""

    def _begin(self) -> None:
        super()._begin()
        for machine in self.machines:
            machine._open_gate = _let_through(machine)  # type: ignore[method-assign] # that is the fault


def _let_through(machine: SimMachine):  # type: ignore[no-untyped-def] # as the method
    def go_on(key: AttemptKey, process: Process) -> None:
        if process.gated:
            process.gated = False
            machine._work(key, process)

    return go_on


def test_a_gate_that_does_not_hold_is_caught() -> None:
    """Two attempts of a job live, which is what all of this must never bring about."""
    assert is_caught(Gateless, range(CANARY_SEEDS), {"I3"})


def test_a_head_that_uses_a_prepared_number_again_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that was prepared for one place might be launched for another one."""

    def next_attempt(job: Job) -> int:
        return job.attempts + 1

    monkeypatch.setattr(assign, "next_attempt", next_attempt)

    assert is_caught(WarmWorld, range(CANARY_SEEDS), {"I9"})
