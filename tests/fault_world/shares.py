"""The fault world with jobs that share GPUs, beside jobs that have whole ones.

Every node lets jobs share its GPUs but one, whose gnode knows nothing of it. How busy a GPU is
changes at random, so that jobs wait for that as well.
"""

import random
from collections.abc import Callable
from typing import Final

from msgspec import structs

from gnode.core import effects as do
from gnode.core.inputs import Admitted, LaunchFailed
from gsched.model.job import LaunchFailure
from gsched.model.resources import Gpu, Load
from gsched.model.states import LaunchStage, Subject
from gschedd.sim.node import NodeProcess
from tests.fault_world.users import Intent, draw_intent
from tests.fault_world.world import FaultWorld

SHARED: Final = 0.7  # of all jobs
ADMIT_S_MAX: Final = 12.0  # as long as a compiler and a start of the token daemon take
REFUSE_S: Final = 0.5
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
    """A node whose GPUs are as busy as somebody says, and whose runtime takes its time.

    Attributes:
        percent: of each GPU in the last minute.
        admit_s: how long the next admission takes, seconds; None: it is refused.
    """

    percent: tuple[float, ...] = ()
    admit_s: Callable[[], float | None] | None = None

    def load(self) -> Load:
        """Return how busy the machine is."""
        return structs.replace(super().load(), gpu_minute_percent=self.percent)

    def _admit_sharing(self, effect: do.AdmitSharing) -> None:
        wait_s = 0.0 if self.admit_s is None else self.admit_s()
        if wait_s is None:
            failure = LaunchFailure(stage=LaunchStage.DEVICE, subject=Subject.NODE)
            refused = LaunchFailed(key=effect.task.key, message="no daemon", failure=failure)
            self._agenda.after(REFUSE_S, self._answer, refused, self.incarnation)
        else:
            admitted = Admitted(task=effect.task)
            self._agenda.after(wait_s, self._answer, admitted, self.incarnation)

    def _answer(self, event: Admitted | LaunchFailed, incarnation: int) -> None:
        """Answer the gnode that has asked, if it still runs."""
        if incarnation == self.incarnation:
            self.post(event)


def let_share(node: NodeProcess, chance: random.Random, *, shares: bool) -> None:
    """Let jobs share the GPUs of a node, or let its gnode know nothing of that."""
    assert isinstance(node, BusyNode), "it was made for that"

    def admit_s() -> float | None:
        dice = chance.random()
        return None if dice < 0.02 else 0.0 if dice < 0.5 else chance.uniform(0, ADMIT_S_MAX)

    machine = node.machine
    machine.sharing = "modelled" if shares else ""
    node.admit_s = admit_s
    gpus = tuple(Gpu(index=gpu.index, memory_bytes=CARD_BYTES) for gpu in machine.inventory.gpus)
    machine.inventory = structs.replace(machine.inventory, gpus=gpus)


class ShareWorld(FaultWorld):
    """One world of one seed in which jobs share GPUs."""

    def __init__(self, seed: int, *, node: type[BusyNode] = BusyNode, **parts: object) -> None:
        super().__init__(seed, node=node, **parts)  # type: ignore[arg-type] # passed on as given

    def _draw(self, number: int) -> Intent:
        return draw_shared(self.chance, number)

    def _make_node(self, number: int, make: type[NodeProcess]) -> NodeProcess:
        node = super()._make_node(number, make)
        let_share(node, self.chance, shares=number != 3)
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
