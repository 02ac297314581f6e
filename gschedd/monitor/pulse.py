"""Whether the head answers and works, asked every second: pages, ``/readyz`` and requests use it.

A head that is stopped, or whose event loop is blocked, still has its socket: each request to it
would wait for its own time limit, and a page would show old rows as if they were new.
"""

import asyncio
import math
import os
import time
from typing import Final

from gsched.clock import Clock
from gsched.errors import HeadUnreachableError
from gsched.process_state import resume_words, state_words
from gschedd.monitor.link import HINT, HeadLink, RefusedByHeadError

#: How often the head is asked.
PERIOD_S: Final = 1.0
#: A head that does not answer for so long is silent. Its turns take milliseconds, with a million
#: jobs some hundred; a machine with too much to do may add seconds.
PATIENCE_S: Final = 4.0


class HeadPulse:
    """Asks the head how it is, and lets requests to a silent one fail at once.

    Attributes:
        trouble: why it does not work, in words; empty: it does.
        advice: what to do then; empty: the words say it.
    """

    def __init__(self, head: HeadLink, clock: Clock) -> None:
        self.trouble = self.advice = ""
        self._head = head
        self._clock = clock
        self._turn = asyncio.Lock()
        self._checked_s = -math.inf
        self._answered_s = clock.wall_s()

    async def look(self) -> str:
        """Return why the head does not work, as it was within the last second."""
        async with self._turn:
            if self._clock.monotonic_s() - self._checked_s >= PERIOD_S:
                self.trouble = await self._ask()
                self._checked_s = self._clock.monotonic_s()
        return self.trouble

    async def _ask(self) -> str:
        trouble = ""
        try:
            await self._head.text("/readyz", timeout_s=PATIENCE_S)
        except RefusedByHeadError as error:
            trouble = "; ".join(error.message.splitlines())
        except HeadUnreachableError:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._answered_s))
            pid = os.getppid()
            words = f"the head has not answered since {since} ({state_words(pid)})"
            self.advice = resume_words(pid) or HINT
            self._head.note_silence(words, self.advice)
            return f"{words}; what is shown is the state of then"
        self._head.note_answer()
        self.advice = ""
        self._answered_s = self._clock.wall_s()
        return trouble
