"""Policies plan the same on a detached snapshot as on the live views of a head, among faults."""

import pytest

from baselines.kit.paper_model import PaperModel
from baselines.registry import ALL
from gschedd.core.head import Head
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.models.robust import RobustModel
from gschedd.plan.snapshot import Policy
from tests.fault_world.moves import MovingWorld
from tests.support.detached import AlsoDetached


@pytest.mark.parametrize("name", ALL.names)
def test_a_policy_plans_the_same_on_a_detached_snapshot(name: str) -> None:
    """Training jobs and other jobs come, move, fail and end, and the head learns of them."""
    asked = AlsoDetached(ALL.choose(name).plan)

    def make(state: State, settings: Settings, _: Policy) -> Head:
        model = PaperModel() if name == "paper" else RobustModel()
        return Head(state=state, settings=settings, policy=asked, model=model)

    MovingWorld(1, make_head=make).run()

    assert asked.asked > 20
