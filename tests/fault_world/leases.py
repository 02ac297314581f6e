"""The fault world with leases: jobs of nodes that stay away start elsewhere without an operator.

Nodes are away for longer and for less long than the leases of their jobs: their daemons are dead,
their links are cut, or the whole machine sleeps. No job may live twice at any time, and what was
on a node that is away for long enough goes on elsewhere meanwhile.
"""

import random
from collections.abc import Callable
from typing import Final

from msgspec import structs

from gschedd.sim.node import NodeProcess
from tests.fault_world.network import Way
from tests.fault_world.users import Intent, draw_intent
from tests.fault_world.world import FaultWorld

LEASED: Final = 0.8  # of the jobs that may run again
LEASES_S: Final = (30.0, 45.0, 90.0)
AWAY_S: Final = (10.0, 25.0, 60.0, 120.0, 250.0, 500.0)


def draw_leased(chance: random.Random, number: int) -> Intent:
    """Return a random wish: mostly jobs with leases, short and longer than those."""
    plain = draw_intent(chance, number)
    asked, program = plain.asked, plain.program
    lease_s = chance.choice(LEASES_S) if asked.rerunnable and chance.random() < LEASED else 0.0
    places = asked.resources[0].partition(",walltime=")[0]
    work_s = chance.choice((program.work_s, chance.uniform(100.0, 500.0)))
    return structs.replace(
        plain,
        asked=structs.replace(asked, lease_s=lease_s, resources=(places,)),
        program=structs.replace(program, work_s=work_s),
    )


class LeaseWorld(FaultWorld):
    """One world of one seed in which jobs have leases."""

    def _draw(self, number: int) -> Intent:
        return draw_leased(self.chance, number)

    def _mishaps(self) -> list[tuple[Callable[[], None], float]]:
        kinds = ((self._suspend, 60), (self._cut_long, 60), (self._kill_gnode_long, 60))
        more: list[tuple[Callable[[], None], float]] = [
            (kind, self.chance.choice((0.5, 1.0, 3.0)) / every_s) for kind, every_s in kinds
        ]
        return [*super()._mishaps(), *more]

    def _suspend(self) -> None:
        """Let a machine sleep: neither its jobs nor its daemons run, and its clocks go on."""
        node = self._a_node()
        if node.machine.suspended:
            return
        node.suspend()
        self.wires[node.name].cut(*Way)
        self.agenda.after(self.chance.choice(AWAY_S), self._resume, node)

    def _resume(self, node: NodeProcess) -> None:
        if node.machine.suspended:
            node.resume()
        self.wires[node.name].mend(*Way)

    def _cut_long(self) -> None:
        wire = self.wires[self._a_node().name]
        wire.cut(*Way)
        self.agenda.after(self.chance.choice(AWAY_S), wire.mend, *Way)

    def _kill_gnode_long(self) -> None:
        node = self._a_node()
        if node.agent is not None:
            node.kill()
            self.wires[node.name].node_died(with_machine=False)
            self.agenda.after(self.chance.choice(AWAY_S), self._start_gnode, node)

    def _heal(self) -> None:
        for node in self.nodes:
            node.resume()
        super()._heal()
