"""The fault world in which the next attempts of training jobs are prepared while the present ones
run.

Processes come to their gates early, late or never, and die there. What waits at a gate is no
attempt that lives: it may be beside one, owns no GPU, and its memory counts.
"""

import random
from collections.abc import Callable
from typing import Final

from msgspec import structs

from gnode.core import effects as do
from gnode.core.task import AttemptKey
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state.settings import Settings
from tests.fault_world.moves import MovingWorld, TrainingNode, draw_training
from tests.fault_world.users import Intent
from tests.support.site import changed

PREPARE_TIMEOUT_S: Final = 10.0
READY: Final = 0.9  # of the training jobs call `elastic.ready`


class WarmNode(TrainingNode):
    """A node whose prepared processes wait early, late or never."""

    def _ready(self, key: AttemptKey) -> None:
        if self.chance.random() < 0.9:
            delay_s = self.chance.uniform(0, 1.2 * PREPARE_TIMEOUT_S)
            self._agenda.after(delay_s, self._ready_late, key, self.incarnation)

    def _ready_late(self, key: AttemptKey, incarnation: int) -> None:
        if incarnation == self.incarnation:
            super()._ready(key)

    def _send(self, effect: do.SendToHead) -> None:
        said = effect.message
        if isinstance(said, n.TrainingProgress):
            ready = random.Random(said.job).random() < READY
            effect = do.SendToHead(message=structs.replace(said, ready=ready))
        super()._send(effect)


def draw_prepared(chance: random.Random, number: int) -> Intent:
    """Return a random wish: training jobs under torchrun, some with memory of their own."""
    wish = draw_training(chance, number)
    if wish.asked.training is None:
        return wish
    memory = chance.choice(("", "", ":mem=1gb", ":mem=4gb"))
    resources = tuple(
        each.replace(":ncpus=1", f":ncpus=1{memory}") for each in wish.asked.resources
    )
    asked = structs.replace(
        wish.asked, launch="torchrun", arguments=("train.py",), resources=resources, movable=True
    )
    return structs.replace(wish, asked=asked)


class WarmWorld(MovingWorld):
    """One world of one seed in which attempts are prepared."""

    def __init__(self, seed: int, *, policy: str = "", node: type[WarmNode] = WarmNode) -> None:
        super().__init__(seed, policy=policy, node=node)

    def _make_settings(self) -> Settings:
        return changed(super()._make_settings(), warm=True, prepare_timeout_s=PREPARE_TIMEOUT_S)

    def _draw(self, number: int) -> Intent:
        return draw_prepared(self.chance, number)

    def _mishaps(self) -> list[tuple[Callable[[], None], float]]:
        rate = self.chance.choice((0.5, 1.0, 3.0)) / 15
        return [*super()._mishaps(), (self._kill_prepared, rate)]

    def _kill_prepared(self) -> None:
        """Let processes die at their gate."""
        for node in self.nodes:
            machine = node.machine
            gated = [key for key, process in machine.processes.items() if process.gated]
            if gated and not machine.suspended:
                key = self.chance.choice(gated)
                machine._end(key, machine.processes[key], kind=OutcomeKind.EXITED)
