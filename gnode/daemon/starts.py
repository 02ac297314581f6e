"""Finds out what supervisors have written down, and wakes them for a command."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from gnode.core.effects import AwaitAnswer
from gnode.core.inputs import Input, SupervisorAnswered, SupervisorSeen
from gnode.core.task import AttemptKey
from gnode.daemon.spool import NodeSpool
from gnode.supervisor import proc

# A supervisor needs a few ms to start its job, and much longer only on a dead file server. A job
# that is over by the first look is reported by its end, which is half the work for everybody.
FIRST_LOOK_S = 0.05
LONGEST_LOOK_S = 1.0
#: How long the answer to an order is looked for: a supervisor of an older version gives none.
ANSWER_S = 60.0
BETWEEN_LOOKS_S = 0.002  # looks that are due at nearly the same time are one


class _Look(NamedTuple):
    """When an attempt is looked at next, after which pause, and for how long it was looked for."""

    due_s: float
    pause_s: float
    waited_s: float


class Looks:
    """Looks again and again at the records of attempts, ever less often.

    It has one timer: most attempts are forgotten before their first look.

    Args:
        look: takes an attempt and for how long it was looked for, seconds; returns whether that is
            enough.
    """

    def __init__(self, look: Callable[[AttemptKey, float], bool]) -> None:
        self._look = look
        self._planned: dict[AttemptKey, _Look] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = 0.0

    def begin(self, key: AttemptKey) -> None:
        """Look for something of an attempt until it is there or `forget` is called."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + FIRST_LOOK_S
        self._planned[key] = _Look(due_s, FIRST_LOOK_S, FIRST_LOOK_S)
        if self._timer is None or due_s < self._rings_s:
            self._ring_at(due_s, loop)

    def forget(self, key: AttemptKey) -> bool:
        """Stop looking; return whether it was still being looked for."""
        return self._planned.pop(key, None) is not None

    def close(self) -> None:
        """Stop looking for all."""
        self._planned.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _ring_at(self, due_s: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = max(due_s, loop.time() + BETWEEN_LOOKS_S)
        self._timer = loop.call_at(self._rings_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        due = [key for key, planned in self._planned.items() if planned.due_s <= now_s]
        try:
            for key in due:
                planned = self._planned.pop(key)
                if not self._look(key, planned.waited_s):
                    pause_s = min(2 * planned.pause_s, LONGEST_LOOK_S)
                    waited_s = planned.waited_s + pause_s
                    self._planned[key] = _Look(loop.time() + pause_s, pause_s, waited_s)
        finally:
            if self._planned:
                self._ring_at(min(each.due_s for each in self._planned.values()), loop)


class Starts:
    """Looks for the start records of attempts that were just launched."""

    def __init__(self, spool: NodeSpool, post: Callable[[Input], None]) -> None:
        self._spool = spool
        self._post = post
        looks = Looks(self._look)
        self.await_start, self.forget, self.close = looks.begin, looks.forget, looks.close

    def _look(self, key: AttemptKey, _waited_s: float) -> bool:
        info = self._spool.read_info(key)
        if info is not None:
            self._post(SupervisorSeen(key=key, info=info))
        return info is not None


class Answers:
    """Looks for the answers of supervisors that were to send a job its checkpoint signal."""

    def __init__(self, spool: NodeSpool, post: Callable[[Input], None]) -> None:
        self._spool = spool
        self._post = post
        self._awaited: dict[AttemptKey, AwaitAnswer] = {}
        self._looks = Looks(self._look)

    def await_answer(self, effect: AwaitAnswer) -> None:
        """Look for the answer to an order until it is there, or `forget` is called."""
        self._awaited[effect.key] = effect
        self._looks.begin(effect.key)

    def forget(self, key: AttemptKey) -> None:
        """Stop looking: the attempt has ended."""
        self._awaited.pop(key, None)
        self._looks.forget(key)

    def close(self) -> None:
        """Stop looking for all."""
        self._looks.close()

    def _look(self, key: AttemptKey, waited_s: float) -> bool:
        awaited = self._awaited[key]
        sent = self._spool.read_answer(key, awaited.request)
        if sent is None and waited_s < ANSWER_S:
            return False
        del self._awaited[key]
        if sent is not None:
            self._post(
                SupervisorAnswered(
                    key=key, request=awaited.request, signal=awaited.signal, sent=sent
                )
            )
        return True


def wake(pid: int, start_ticks: int) -> None:
    """Have a supervisor read its commands, if this very process still lives."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # the launcher looks after the job now, and reads the commands by itself
    try:
        if proc.start_ticks(pid) == start_ticks:  # the pidfd holds the process meanwhile
            signal.pidfd_send_signal(fd, signal.SIGUSR1)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)
