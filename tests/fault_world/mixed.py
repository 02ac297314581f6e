"""The fault world with jobs that share GPUs beside training jobs that migrate between whole ones.

A migration needs whole GPUs elsewhere, and a share may have come onto each of them meanwhile; a
share needs a GPU that a training job has just left, or is about to take.
"""

import random
from typing import Final

from gschedd.sim.node import NodeProcess
from tests.fault_world.moves import MovingWorld, TrainingNode, draw_training
from tests.fault_world.shares import BusyNode, draw_shared, let_share
from tests.fault_world.users import Intent

SHARING: Final = 0.5  # of all jobs


class MixedNode(BusyNode, TrainingNode):
    """A node for both."""


def draw_mixed(chance: random.Random, number: int) -> Intent:
    """Return a random wish: a share of a GPU, a training job, or neither."""
    draw = draw_shared if chance.random() < SHARING else draw_training
    return draw(chance, number)


class MixedWorld(MovingWorld):
    """One world of one seed in which jobs share GPUs and others migrate, at random."""

    def __init__(self, seed: int, *, node: type[MixedNode] = MixedNode, **parts: object) -> None:
        super().__init__(seed, node=node, **parts)  # type: ignore[arg-type] # passed on as given

    def _draw(self, number: int) -> Intent:
        return draw_mixed(self.chance, number)

    def _make_node(self, number: int, make: type[NodeProcess]) -> NodeProcess:
        node = super()._make_node(number, make)
        let_share(node, self.chance, shares=number != 3)
        return node
