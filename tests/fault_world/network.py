"""A network that loses, delays, repeats and reorders: one connection for each node, as over TCP.

On one connection messages keep their order, and one that is under way is lost only when the
connection breaks. Repeated and late messages come from connections that are broken already, and
only while both processes are the ones that had them.
"""

import random
from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct

from gsched.protocol import node as n
from gschedd.sim.agenda import Agenda
from gschedd.sim.head import HeadProcess
from gschedd.sim.node import NodeProcess
from tests.fault_world.checks import check_durable

REDIAL_S: Final = (0.2, 5.0)  # from a broken connection to the next try, seconds
HEAD_PATIENCE_S: Final = (10.0, 20.0)  # silence after which the head gives a connection up
NODE_PATIENCE_S: Final = (10.0, 30.0)  # silence after which a node does
GHOST_S: Final = (0.0, 300.0)  # by how much a message of a broken connection may be late
#: Messages that may come late or twice; a handshake belongs to its connection.
REPEATABLE: Final = (n.Started, n.Exited, n.Heartbeat, n.Launch, n.StopAttempt, n.Retime, n.ExitAck)


class Way(Enum):
    """A direction of a path."""

    UP = "to the head"
    DOWN = "to the node"


class Weather(Struct, kw_only=True):
    """How the network is; changes for all connections at once.

    Attributes:
        delay_s: bounds of how long a message takes.
        ghosts: probability that a message that was lost with its connection comes late after all.
        repeats: probability that a delivered message comes again, late.
    """

    delay_s: tuple[float, float] = (0.0005, 0.02)
    ghosts: float = 0.0
    repeats: float = 0.0


class Connection:
    """One connection of a node; each end is closed by itself."""

    def __init__(self, wire: "Wire") -> None:
        self.name = wire.node.name
        self.boot_id = ""
        self.call = 0
        self.open_at_head = True
        self.open_at_node = True
        self._wire = wire
        self._incarnation = wire.node.incarnation
        self._epoch = wire.daemon.epoch
        self._last_s = {Way.UP: 0.0, Way.DOWN: 0.0}
        self._held: dict[Way, list[n.NodeMessage | n.HeadMessage | None]] = {
            Way.UP: [],
            Way.DOWN: [],
        }

    # --- the two ends ---

    def to_head(self, message: n.NodeMessage) -> None:
        """Send a message from the node."""
        if self.open_at_node:
            check_durable(message, self._wire.node.machine)
            self._send(Way.UP, message)

    def to_node(self, message: n.HeadMessage) -> None:
        """Send a message from the head."""
        if self.open_at_head:
            self._send(Way.DOWN, message)

    def hang_up(self) -> None:
        """The node closes it."""
        self.close_at_node(tell=True)

    def cut_off(self) -> None:
        """The head closes it."""
        self.close_at_head(tell=True)

    def close_at_node(self, *, tell: bool) -> None:
        """Close the node's end; ``tell``: the other end hears of it, if messages pass."""
        if not self.open_at_node:
            return
        self.open_at_node = False
        if tell:
            self._send(Way.UP, None)
        self._wire.ended_at_node(self)

    def close_at_head(self, *, tell: bool, reason: str = "connection closed") -> None:
        """Close the head's end."""
        if not self.open_at_head:
            return
        self.open_at_head = False
        if tell:
            self._send(Way.DOWN, None)
        self._wire.daemon.lost(self, reason)

    # --- on the way ---

    def _send(self, way: Way, message: n.NodeMessage | n.HeadMessage | None) -> None:
        """Put a message on its way; None is the end of the connection."""
        wire = self._wire
        at_s = max(self._last_s[way], wire.agenda.now_s + wire.delay_s())
        self._last_s[way] = at_s
        wire.agenda.at(at_s, self._arrive, way, message)

    def _arrive(self, way: Way, message: n.NodeMessage | n.HeadMessage | None) -> None:
        if self._wire.is_cut(way) or self._held[way]:
            self._held[way].append(message)
        else:
            self._deliver(way, message)

    def release(self, way: Way) -> None:
        """Deliver what was held while the path was cut: it is sent again and again until then."""
        held, self._held[way] = self._held[way], []
        for message in held:
            self._deliver(way, message)

    def _deliver(self, way: Way, message: n.NodeMessage | n.HeadMessage | None) -> None:
        is_open = self.open_at_head if way is Way.UP else self.open_at_node
        if message is None:
            if way is Way.UP:
                self.close_at_head(tell=False)
            else:
                self.close_at_node(tell=False)
        elif is_open:
            self._hand_over(message)
            if self._wire.happens(self._wire.weather.repeats):
                self._come_late(message)
        elif way is Way.UP and self.open_at_node:
            self._send(Way.DOWN, None)  # nobody listens there any more
        elif self._wire.happens(self._wire.weather.ghosts):
            self._come_late(message)

    def _come_late(self, message: n.NodeMessage | n.HeadMessage) -> None:
        if isinstance(message, n.Launch) and message.lease_s:
            return  # no frame of one connection is taken on another: its lease counts on that
        if isinstance(message, REPEATABLE):
            wire = self._wire
            wire.agenda.after(wire.chance.uniform(*GHOST_S), self._haunt, message)

    def _haunt(self, message: n.NodeMessage | n.HeadMessage) -> None:
        """Deliver a message of the past, if the processes are still those that had it."""
        wire = self._wire
        same_node = wire.node.agent is not None and wire.node.incarnation == self._incarnation
        same_head = wire.daemon.head is not None and wire.daemon.epoch == self._epoch
        if same_node and same_head:
            self._hand_over(message)

    def _hand_over(self, message: n.NodeMessage | n.HeadMessage) -> None:
        if isinstance(message, n.NodeMessage):
            self._wire.daemon.hear(self, message)
        else:
            self._wire.node.hear(message)


class Wire:
    """The path between a node and the head, and the node's attempts to be connected."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        chance: random.Random,
        daemon: HeadProcess,
        node: NodeProcess,
        weather: Weather,
    ) -> None:
        self.agenda = agenda
        self.chance = chance
        self.daemon = daemon
        self.node = node
        self.weather = weather
        self._cuts = {Way.UP: 0, Way.DOWN: 0}
        self._turn = 0
        self._dialling = False
        self.connections: list[Connection] = []

    def delay_s(self) -> float:
        """Return how long the next message takes."""
        return self.chance.uniform(*self.weather.delay_s)

    def happens(self, probability: float) -> bool:
        """Return whether something of that probability happens."""
        return probability > 0 and self.chance.random() < probability

    # --- cuts ---

    def is_cut(self, way: Way) -> bool:
        """Return whether nothing passes that way now."""
        return self._cuts[way] > 0

    @property
    def is_whole(self) -> bool:
        """Return whether messages pass both ways."""
        return not any(self._cuts.values())

    def cut(self, *ways: Way) -> None:
        """Let nothing pass any more; either end notices after a while, as it hears nothing."""
        for way in ways:
            self._cuts[way] += 1
        self._turn += 1
        self.await_silence(at_node=True)

    def mend(self, *ways: Way) -> None:
        """Let messages pass again, if all cuts of a way are mended; what was held comes now."""
        for way in ways:
            self._cuts[way] = max(0, self._cuts[way] - 1)  # all may have been mended meanwhile
        if self.is_whole:
            self._turn += 1
        for connection in list(self.connections):
            for way in ways:
                if not self.is_cut(way):
                    connection.release(way)
        self.forget()

    def await_silence(self, *, at_node: bool) -> None:
        """Close the ends of all connections after a while, unless all is well again by then."""
        self._after_patience(HEAD_PATIENCE_S, self._silent_at_head)
        if at_node:
            self._after_patience(NODE_PATIENCE_S, self._silent_at_node)

    def _after_patience(
        self, patience_s: tuple[float, float], action: Callable[[list[Connection], int], None]
    ) -> None:
        self.agenda.after(
            self.chance.uniform(*patience_s), action, list(self.connections), self._turn
        )

    def _silent_at_head(self, connections: list[Connection], turn: int) -> None:
        for connection in connections:
            if turn == self._turn or not connection.open_at_node:
                connection.close_at_head(tell=True, reason="it says nothing any more")

    def _silent_at_node(self, connections: list[Connection], turn: int) -> None:
        for connection in connections:
            if turn == self._turn or not connection.open_at_head:
                connection.close_at_node(tell=True)

    def forget(self) -> None:
        """Drop connections of which nothing is left."""
        self.connections = [c for c in self.connections if c.open_at_head or c.open_at_node]

    # --- connecting ---

    def dial(self) -> None:
        """Connect the node, or try again after a while; nothing if it is connected or down."""
        if self._dialling or self.node.agent is None or self.node.link is not None:
            return
        self._dialling = True
        self.agenda.after(self.delay_s(), self._dialled)

    def _dialled(self) -> None:
        self._dialling = False
        if self.node.agent is None or self.node.link is not None:
            return
        self.forget()
        connection = Connection(self)
        challenge = self.daemon.offer(connection) if self.is_whole else None
        if challenge is None:
            self.agenda.after(self.chance.uniform(*REDIAL_S), self.dial)
            return
        self.connections.append(connection)
        self.node.link = connection
        self.node.offer(challenge.cluster, challenge.epoch, challenge.epoch_id)

    def ended_at_node(self, connection: Connection) -> None:
        """Take in that the node has lost a connection."""
        if self.node.link is connection:
            self.node.link = None
            self.node.disconnected()
            self.agenda.after(self.chance.uniform(*REDIAL_S), self.dial)

    # --- processes that die ---

    def head_died(self) -> None:
        """The machine of the head says on its behalf that its connections are over."""
        for connection in list(self.connections):
            connection.close_at_head(tell=True)

    def node_died(self, *, with_machine: bool) -> None:
        """A node daemon was killed; if its whole machine died, nobody says so."""
        self.node.link = None
        for connection in list(self.connections):
            connection.close_at_node(tell=not with_machine)
        if with_machine:
            self.await_silence(at_node=False)
