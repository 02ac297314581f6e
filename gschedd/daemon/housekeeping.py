"""The head's daily work: what need not be kept any longer is removed.

A task of the event loop and no scheduler library: there is one job, once a day and at the start;
nothing about it must be remembered over a restart, and it has to take turns with commits on the
store's own thread, which a scheduler would not do for us.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gsched.clock import Clock
from gsched.errors import TryAgainError
from gschedd.store.purge import DAY_S, Keep, Purged

log = logging.getLogger("gschedd.housekeeping")

RETRY_S = 3600.0  # after the database could not be written


class Purger(Protocol):
    """The store, as far as it is needed here."""

    def purge(self, keep: Keep, now_s: float) -> Purged:
        """Remove a slice of what need not be kept."""


class Housekeeping:
    """Purges the database once a day.

    Args:
        in_writer: runs something on the store's thread, between commits.
    """

    def __init__(
        self,
        *,
        store: Purger,
        in_writer: Callable[[Callable[[], None]], Awaitable[None]],
        clock: Clock,
        keep: Keep,
    ) -> None:
        self._store = store
        self._in_writer = in_writer
        self._clock = clock
        self._keep = keep

    async def run(self) -> None:
        """Purge now and then every day, until cancelled.

        Raises:
            StorageError: the database failed: the head must stop.
        """
        while True:
            try:
                await self.purge()
            except TryAgainError as error:  # the disk is full, or another program has the database
                log.warning("old rows are not removed now: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(DAY_S)

    async def purge(self) -> None:
        """Remove all that need not be kept, slice by slice; commits take their turn between."""
        now_s = self._clock.wall_s()
        runs = jobs = events = 0
        more = True
        while more:
            purged = await self._slice(now_s)
            runs, jobs, events = runs + purged.runs, jobs + purged.jobs, events + purged.events
            more = purged.more
        if runs or jobs or events:
            log.info("removed %d old runs, %d jobs and %d events of nodes", runs, jobs, events)

    async def _slice(self, now_s: float) -> Purged:
        done: list[Purged] = []
        await self._in_writer(lambda: done.append(self._store.purge(self._keep, now_s)))
        return done[0]
