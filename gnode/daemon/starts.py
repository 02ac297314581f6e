"""Finds out what supervisors have written down, and wakes them for a command."""

import asyncio
import os
import signal
from collections.abc import Callable

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


class Looks:
    """Looks again and again at the records of attempts, ever less often.

    Args:
        look: takes an attempt and for how long it was looked for, seconds; returns whether that is
            enough.
    """

    def __init__(self, look: Callable[[AttemptKey, float], bool]) -> None:
        self._look = look
        self._planned: dict[AttemptKey, asyncio.TimerHandle] = {}

    def begin(self, key: AttemptKey) -> None:
        """Look for something of an attempt until it is there or `forget` is called."""
        self.forget(key)
        self._plan(key, FIRST_LOOK_S, FIRST_LOOK_S)

    def forget(self, key: AttemptKey) -> bool:
        """Stop looking; return whether it was still being looked for."""
        look = self._planned.pop(key, None)
        if look is None:
            return False
        look.cancel()
        return True

    def close(self) -> None:
        """Stop looking for all."""
        for key in list(self._planned):
            self.forget(key)

    def _plan(self, key: AttemptKey, pause_s: float, waited_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._planned[key] = loop.call_later(pause_s, self._try, key, pause_s, waited_s)

    def _try(self, key: AttemptKey, pause_s: float, waited_s: float) -> None:
        del self._planned[key]
        if not self._look(key, waited_s):
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
            self._plan(key, pause_s, waited_s + pause_s)


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
