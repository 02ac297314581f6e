"""Leases: a job of a node that never returns starts elsewhere, without an operator.

A node that does not reach the head ends what it has a lease for, ``lease_s`` after it was last
renewed. The head knows when it last can have renewed anything there: when the connection was lost,
or when the head itself was started. So much later, with the grace, the time of a kill and the drift
of clocks on top, the attempt's part is over, whatever has become of the node: proof of death.

All this is measured on a clock that never jumps (`Clock.monotonic_s`), and only here: facts, alarms
and deadlines keep to the wall clock. Nothing of it is durable: after a restart the head waits anew.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gsched.model.states import NodeState, PartState
from gsched.model.units import format_duration
from gschedd.core.state import facts as f
from gschedd.core.state.lost import lost_part
from gschedd.core.state.records import Attempt, Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State

#: By how much two clocks may drift apart: far more than time services correct (500 ppm).
DRIFT: Final = 0.01
_LIVE: Final = frozenset({PartState.PENDING, PartState.RUNNING})


def patience_s(attempt: Attempt, settings: Settings) -> float:
    """Return how long after the last word of a node its part of an attempt is over, seconds."""
    most_s = attempt.lease_s + attempt.lease_grace_s
    return most_s * (1 + DRIFT) + settings.lease_margin_s


class Leases:
    """The nodes that do not answer, and since when, on the steady clock.

    Only nodes of which the head knows by a fact that they are not connected are in here. A node of
    which that has just become known is timed when the clock is looked at next, so a little late.
    """

    #: The facts that `note` takes in.
    NOTED: Final = frozenset({f.NodeDisconnected, f.NodeRegistered, f.NodeRemoved})

    def __init__(self, state: State) -> None:
        self._state = state
        self._since_s: dict[str, float | None] = {
            name: None for name, node in state.nodes.items() if node.state is NodeState.UNREACHABLE
        }
        self._untimed = dict.fromkeys(self._since_s)
        self._due_s: float | None = None
        self._wall_ahead_s = 0.0

    def note(self, fact: f.AnyFact) -> None:
        """Take in a fact that was applied."""
        match fact:
            case f.NodeDisconnected():
                self._since_s[fact.node] = self._untimed[fact.node] = None
            case f.NodeRegistered() | f.NodeRemoved():
                for nodes in (self._since_s, self._untimed):
                    nodes.pop(fact.node, None)
            case _:
                pass

    def wait_anew(self) -> None:
        """Let all that was waited count for nothing."""
        self._since_s = dict.fromkeys(self._since_s)
        self._untimed = dict.fromkeys(self._since_s)

    def next_due_s(self) -> float | None:
        """Return when `expired` has something to do, on the steady clock; 0: at once."""
        return 0.0 if self._untimed else self._due_s

    def expired(self, settings: Settings, now_s: float, steady_s: float) -> list[f.AnyFact]:
        """Return the ends of all parts whose leases have expired on nodes that do not answer."""
        self._wall_ahead_s = now_s - steady_s
        due_s = self.next_due_s()
        if due_s is None or due_s > steady_s:
            return []
        untimed, self._untimed = self._untimed, {}
        self._since_s.update(dict.fromkeys(untimed, steady_s))
        facts: list[f.AnyFact] = []
        nodes: Iterable[str] = untimed  # of the others nothing is due
        if self._due_s is not None and self._due_s <= steady_s:
            nodes, self._due_s = self._since_s, None
        for node in nodes:
            for job, attempt in self._leased_on(node):
                at_s = self._end_s(node, attempt, settings)
                if at_s is not None and at_s <= steady_s:
                    facts.append(_lost(job, attempt, node, now_s))
                elif at_s is not None:
                    self._due_s = at_s if self._due_s is None else min(at_s, self._due_s)
        return facts

    def requeued_s(self, job: Job, settings: Settings) -> float | None:
        """Return when a job's lease has expired on all nodes that do not answer.

        In seconds since the epoch; None: it has no lease, or that is unknown.
        """
        attempt = job.attempt
        if attempt is None or not attempt.lease_s:
            return None
        ends_s: list[float] = []
        for node, part in attempt.parts.items():
            if node in self._since_s and part.state in _LIVE:
                at_s = self._end_s(node, attempt, settings)
                if at_s is None:
                    return None
                ends_s.append(at_s)
        return max(ends_s) + self._wall_ahead_s if ends_s else None

    def _end_s(self, node: str, attempt: Attempt, settings: Settings) -> float | None:
        since_s = self._since_s[node]
        return None if since_s is None else since_s + patience_s(attempt, settings)

    def _leased_on(self, node: str) -> Iterator[tuple[Job, Attempt]]:
        for job in self._state.by_node.get(node, {}).values():
            attempt = job.current_attempt
            if attempt.lease_s and attempt.parts[node].state in _LIVE:
                yield job, attempt


def _lost(job: Job, attempt: Attempt, node: str, now_s: float) -> f.PartEnded:
    lease = format_duration(attempt.lease_s)
    message = f"{node} is unreachable, and the job's lease of {lease} has expired there"
    return lost_part(job, node, now_s=now_s, message=message)
