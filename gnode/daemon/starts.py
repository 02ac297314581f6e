"""Finds out when supervisors have started their jobs, and wakes them for a command."""

import asyncio
import os
import signal
from collections.abc import Callable

from gnode.core.inputs import Input, SupervisorSeen
from gnode.core.task import AttemptKey
from gnode.daemon.spool import Spool
from gnode.supervisor import proc

# A supervisor needs a few ms to start its job, and much longer only on a dead file server. A job
# that is over by the first look is reported by its end, which is half the work for everybody.
FIRST_LOOK_S = 0.05
LONGEST_LOOK_S = 1.0


class Starts:
    """Looks for the start records of attempts that were just launched."""

    def __init__(self, spool: Spool, post: Callable[[Input], None]) -> None:
        self._spool = spool
        self._post = post
        self._looks: dict[AttemptKey, asyncio.TimerHandle] = {}

    def await_start(self, key: AttemptKey) -> None:
        """Look for an attempt's start until it is there or `forget` is called."""
        self._plan(key, FIRST_LOOK_S)

    def forget(self, key: AttemptKey) -> bool:
        """Stop looking; return whether the start was still being looked for."""
        look = self._looks.pop(key, None)
        if look is None:
            return False
        look.cancel()
        return True

    def close(self) -> None:
        """Stop looking for all."""
        for key in list(self._looks):
            self.forget(key)

    def _plan(self, key: AttemptKey, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._looks[key] = loop.call_later(pause_s, self._look, key, pause_s)

    def _look(self, key: AttemptKey, waited_s: float) -> None:
        info = self._spool.read_info(key)
        if info is None:
            self._plan(key, min(2 * waited_s, LONGEST_LOOK_S))
            return
        del self._looks[key]
        self._post(SupervisorSeen(key=key, info=info))


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
