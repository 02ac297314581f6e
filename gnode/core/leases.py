"""Leases: what a node may run on while it does not reach the head, and how it requests more time.

The node sends a number, the head sends it back. A lease is renewed from the moment at which the
number was *sent*: then the head was there, whenever its answer comes. A renewal that was sent after
a lease had expired does not bring it back: the head may have started the job elsewhere.

Each supervisor ends its own attempt when its lease has expired, gnode or no gnode; it reads the
last renewal from the spool. gnode itself only kills what a supervisor does not end.
"""

from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gnode.core.effects import Effect, KeepRenewal, SendToHead, Warn
from gnode.core.inputs import LaunchOrder
from gnode.core.task import AttemptKey
from gsched.protocol.node import Renew

#: Renewals in the length of the shortest lease, and the longest time between two, seconds.
RENEWALS: Final = 6
LONGEST_S: Final = 10.0
#: What a supervisor may take beyond lease and grace before gnode kills its attempt, seconds.
OBEY_S: Final = 10.0


class Leased(Protocol):
    """An attempt with a lease (`gnode.core.table.NodeAttempt`); ``renewed_s``: its last renewal."""

    key: AttemptKey
    renewed_s: float

    @property
    def lease_s(self) -> float:
        """Return the length of its lease, seconds."""

    @property
    def lease_over_s(self) -> float:
        """Return when its lease has expired and its processes should be gone."""


A = TypeVar("A", bound=Leased)


@dataclass(slots=True)
class NodeLeases(Generic[A]):
    """How far a node's leases reach. All moments are on the clock of ``now_s``, which never jumps.

    Attributes:
        is_connected: a head renews leases now.
        renewed_s: when the newest number that the head has sent back was sent; None: none was.
        attempts: live attempts whose task has a lease that has not expired long ago.
        held: launches that wait for a renewal: they must not begin on a lease that is almost over.
    """

    is_connected: bool = False
    renewed_s: float | None = None
    attempts: dict[AttemptKey, A] = field(default_factory=dict)
    held: list[LaunchOrder] = field(default_factory=list)
    _number: int = 0
    _sent_s: dict[int, float] = field(default_factory=dict)
    _due_s: float | None = None

    def fresh_s(self, lease_s: float, now_s: float) -> float | None:
        """Return the last renewal if it leaves an attempt more than half of its lease, or None."""
        renewed_s = self.renewed_s
        return renewed_s if renewed_s is not None and now_s < renewed_s + lease_s / 2 else None

    def next_alarm_s(self) -> float | None:
        """Return when `on_alarm` has something to do; None for never."""
        if not self.attempts and not self.held:
            return None
        times = [attempt.lease_over_s + OBEY_S for attempt in self.attempts.values()]
        if self.is_connected and self._due_s is not None:
            times.append(self._due_s)
        return min(times, default=None)

    def connected(self, now_s: float) -> list[Effect]:
        """Take in that a head is connected."""
        self.is_connected = True
        return self._ask(now_s) if self.attempts else []

    def disconnected(self) -> None:
        """Take in that there is no connection: no answer comes, and held launches come again."""
        self.is_connected = False
        self.held.clear()
        self._sent_s.clear()
        self._due_s = None

    def hold(self, order: LaunchOrder, now_s: float) -> list[Effect]:
        """Keep a launch until its lease is renewed."""
        self.held.append(order)
        return self._ask(now_s)

    def plan(self, now_s: float) -> None:
        """See to it that a lease that is shorter than those before is renewed often enough."""
        if self.is_connected and self.attempts:
            soon_s = now_s + self._interval_s()
            if self._due_s is None or self._due_s > soon_s:
                self._due_s = soon_s

    def on_alarm(self, now_s: float) -> list[Effect]:
        """Ask for a renewal if it is time."""
        is_due = self._due_s is not None and self._due_s <= now_s
        return self._ask(now_s) if is_due and (self.attempts or self.held) else []

    def take_late(self, now_s: float) -> list[A]:
        """Return, once each, the attempts that should have ended long ago."""
        if not self.attempts:
            return []
        late = [each for each in self.attempts.values() if each.lease_over_s + OBEY_S <= now_s]
        for attempt in late:
            del self.attempts[attempt.key]
        return late

    def renewed(self, number: int) -> list[Effect]:
        """Renew the leases that had not expired when a number was sent."""
        sent_s = self._sent_s.get(number)
        if sent_s is None:
            return [Warn(text="a renewal of leases that was not asked for is ignored")]
        self._sent_s = {later: at_s for later, at_s in self._sent_s.items() if later > number}
        self.renewed_s = sent_s if self.renewed_s is None else max(sent_s, self.renewed_s)
        keys: list[AttemptKey] = []
        for attempt in self.attempts.values():
            if attempt.renewed_s < sent_s <= attempt.renewed_s + attempt.lease_s:
                attempt.renewed_s = sent_s
                keys.append(attempt.key)
        return [KeepRenewal(keys=tuple(keys), renewed_s=sent_s)] if keys else []

    def take_held(self) -> list[LaunchOrder]:
        """Return the launches that have waited for a renewal."""
        held, self.held = self.held, []
        return held

    def _ask(self, now_s: float) -> list[Effect]:
        if not self.is_connected:
            return []
        self._number += 1
        self._sent_s[self._number] = now_s
        self._due_s = now_s + self._interval_s()
        return [SendToHead(message=Renew(number=self._number))]

    def _interval_s(self) -> float:
        leases_s = [each.lease_s for each in self.attempts.values() if each.lease_s]
        leases_s.extend(order.launch.lease_s for order in self.held)
        return min([LONGEST_S, *(lease_s / RENEWALS for lease_s in leases_s)])
