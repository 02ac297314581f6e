"""The fault world with jobs that share GPUs, beside jobs that have whole ones.

Every node lets jobs share its GPUs but one, whose gnode knows nothing of it. How busy a GPU is
changes at random, so that jobs wait for that as well.
"""

import random
from collections.abc import Callable
from typing import Final

from msgspec import structs

from gsched.model.resources import Gpu, Load
from gschedd.sim.node import NodeProcess
from tests.fault_world.users import Intent, draw_intent
from tests.fault_world.world import FaultWorld

SHARED: Final = 0.7  # of all jobs
GIB: Final = 1024**3
CARD_BYTES: Final = 16 * GIB
#: Two nodes with two GPUs each can hold any of them.
SHARES: Final = (
    *("30%", "50%:4gb", "25%:12gb", "10%:1gb:low", "100%"),
    *("40%:8gb:high", "60%:2gb:high", "10%:high"),
)


def draw_shared(chance: random.Random, number: int) -> Intent:
    """Return a random wish: mostly jobs that share a GPU."""
    plain = draw_intent(chance, number)
    if chance.random() > SHARED:
        return plain
    _, comma, walltime = plain.asked.resources[0].partition(",walltime")
    resources = f"nodes=1,gpu_share={chance.choice(SHARES)}" + f"{comma and ',walltime'}{walltime}"
    return structs.replace(plain, asked=structs.replace(plain.asked, resources=(resources,)))


class BusyNode(NodeProcess):
    """A node whose GPUs are as busy as somebody says.

    Attributes:
        percent: of each GPU in the last minute.
    """

    percent: tuple[float, ...] = ()

    def load(self) -> Load:
        """Return how busy the machine is."""
        return structs.replace(super().load(), gpu_minute_percent=self.percent)


class ShareWorld(FaultWorld):
    """One world of one seed in which jobs share GPUs."""

    def __init__(self, seed: int, *, node: type[BusyNode] = BusyNode, **parts: object) -> None:
        super().__init__(seed, node=node, **parts)  # type: ignore[arg-type] # passed on as given

    def _draw(self, number: int) -> Intent:
        return draw_shared(self.chance, number)

    def _make_node(self, number: int, make: type[NodeProcess]) -> NodeProcess:
        node = super()._make_node(number, make)
        machine = node.machine
        machine.sharing = "" if number == 3 else "modelled"
        gpus = tuple(
            Gpu(index=gpu.index, memory_bytes=CARD_BYTES) for gpu in machine.inventory.gpus
        )
        machine.inventory = structs.replace(machine.inventory, gpus=gpus)
        return node

    def _mishaps(self) -> list[tuple[Callable[[], None], float]]:
        return [*super()._mishaps(), (self._change_use, 1 / 20)]

    def _change_use(self) -> None:
        node = self._a_node()
        assert isinstance(node, BusyNode), "it was made here"
        count = len(node.machine.inventory.gpus)
        node.percent = tuple(self.chance.choice((0.0, 50.0, 95.0)) for _ in range(count))

    def _heal(self) -> None:
        for node in self.nodes:
            assert isinstance(node, BusyNode), "it was made here"
            node.percent = ()
        super()._heal()
