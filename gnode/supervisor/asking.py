"""The signal by which a job is asked to save its state for a migration: which processes take it.

It would kill a process that does not handle it, so it goes to those that do: they catch it, or
block it, as a program does that waits for it with ``sigwait`` or ``signalfd``. If no process does,
it is not sent, and the journal says so; the migration is off then.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gnode.supervisor import proc, spool
from gnode.supervisor.ending import Ending
from gnode.supervisor.journal import Journal

#: Between two looks at the processes of a job, none of which handles the signal yet; seconds.
LOOK_S: Final = 0.25
#: So long, and half of the grace period at most, young processes have to install a handler.
PATIENCE_S: Final = 10.0
#: A process is young for so long: a program that has to import a framework needs some time.
YOUNG_S: Final = 30.0


class SignalOrder(NamedTuple):
    """The signal that is to be sent, and the migration for which it is."""

    signal: int
    request: int
    since_s: float


class Asking:
    """One attempt's order to save its state, from its arrival until it is answered.

    Args:
        refused: the last migration of which the journal says that no process handled its signal.

    Attributes:
        due_s: when the processes are to be looked at, CLOCK_BOOTTIME; None: no order waits.
        refused: the last migration for which no process handled the signal; 0: none.
    """

    __slots__ = ("_blocking", "_order", "due_s", "refused")

    def __init__(self, refused: int = 0) -> None:
        self.refused = refused
        self.due_s: float | None = None
        self._order = SignalOrder(0, 0, 0.0)
        self._blocking: set[int] = set()

    def take(self, signal: int, request: int, ending: Ending, now_s: float) -> None:
        """Take an order; one that was carried out, or refused, before is left out."""
        if request <= max(ending.signalled, self.refused, self._order.request):
            return
        self._order = SignalOrder(signal, request, now_s)
        self._blocking = set()
        self.due_s = now_s

    def drop(self) -> None:
        """Leave the order out: the job has ended, or is being stopped."""
        self.due_s = None

    def step(
        self,
        members: Callable[[], set[int]],
        ending: Ending,
        journal: Journal,
        grace_s: float,
        now_s: float,
    ) -> None:
        """Look at a job's processes if that is due: send the signal, or say that none handles it.

        Args:
            members: all processes of the job.
            ending: of the job; it keeps the request for which the signal was sent.
            journal: for the answer.
            grace_s: of the job: how long it may take to save its state and exit.
            now_s: CLOCK_BOOTTIME.
        """
        if self.due_s is None or now_s < self.due_s:
            return
        if ending.reason is not None:
            self.drop()
            return
        pids = members()
        takers = self._takers(pids)
        patience_s = max(LOOK_S, min(PATIENCE_S, grace_s / 2))
        is_early = now_s < self._order.since_s + patience_s
        if not takers and is_early and (self._blocking or _has_young(pids, now_s)):
            self.due_s = now_s + LOOK_S
            return
        self.drop()
        signal, request, _ = self._order
        with contextlib.suppress(OSError):  # a full disk: the head waits for the grace period
            journal.write_answer(request, sent=bool(takers))
        if takers:
            ending.ask(request, now_s)
            proc.send(takers, signal)
        else:
            self.refused = request
            spool.log(f"no process of the job handles signal {signal}: it is not sent")

    def _takers(self, pids: set[int]) -> set[int]:
        """Return the processes that catch the signal; if none does, those that keep it blocked.

        A process also blocks signals for a moment while it starts another one, so it must have
        blocked this one at the look before, too.
        """
        caught = proc.handlers_of(pids, self._order.signal)
        if caught:
            return caught
        before, self._blocking = self._blocking, proc.blockers_of(pids, self._order.signal)
        return self._blocking & before


def _has_young(pids: Iterable[int], now_s: float) -> bool:
    """Return whether a process has just started, and may still install a handler."""
    ticks = max((proc.start_ticks(pid) for pid in pids), default=0)
    return now_s < ticks / os.sysconf("SC_CLK_TCK") + YOUNG_S
