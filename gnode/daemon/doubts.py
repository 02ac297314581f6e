"""Attempts whose exit record cannot be read now: look again until it can, or is not there.

An ancestor of the spool may be writable by others for a moment, a backup may give the records a
second name, a disk may fail to read a block. Nothing of that says that the attempt has no outcome.
"""

import asyncio
import logging
from collections.abc import Callable

from gnode.core.task import AttemptKey

log = logging.getLogger(__name__)

RETRY_S = 2.0


class Doubts:
    """Looks again, every few seconds; says so once for each attempt."""

    def __init__(self) -> None:
        self._complained: set[AttemptKey] = set()
        self._timers: dict[tuple[AttemptKey, str], asyncio.TimerHandle] = {}

    def again(self, key: AttemptKey, why: str, what: str, look: Callable[[], None]) -> None:
        """Call ``look`` later, once for each ``what`` of an attempt."""
        if key not in self._complained:
            self._complained.add(key)
            log.error(
                "attempt %s: its exit record cannot be read: %s; looking again every %.0f s. "
                "If it stays so, remove the file: the attempt then counts as lost",
                key.name,
                why,
                RETRY_S,
            )
        if (key, what) not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key, what] = loop.call_later(RETRY_S, self._ring, key, what, look)

    def _ring(self, key: AttemptKey, what: str, look: Callable[[], None]) -> None:
        del self._timers[key, what]
        look()

    def settle(self, key: AttemptKey) -> None:
        """Note that the record of an attempt could be read, or is not there."""
        if key in self._complained:
            self._complained.discard(key)
            log.info("attempt %s: its records can be read again", key.name)

    def close(self) -> None:
        """Look no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
