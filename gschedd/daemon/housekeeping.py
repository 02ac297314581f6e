"""The head's regular work: old rows are removed, and all others looked at for damage.

`gschedd.daemon.tasks` says when. The work itself takes turns with commits on the store's own
thread, slice by slice.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from gsched.clock import Clock
from gsched.model.wording import counted
from gschedd.store.purge import DAY_S, Keep, Kept, Purged, beyond
from gschedd.store.scrub import Place
from gschedd.store.seals import Damaged

T = TypeVar("T")

log = logging.getLogger("gschedd.housekeeping")

AHEAD_S = 7 * DAY_S  # of the clock, before it is said
MAX_DAMAGED = 100  # damaged rows that are kept to be told
REST_RATIO = 4.0  # a check rests so many times as long as each slice took: questions go first


class Purger(Protocol):
    """The store, as far as it is needed here."""

    def purge_time_s(self, now_s: float) -> float:
        """Return by which time rows are old."""

    def purge(self, keep: Keep, now_s: float) -> Purged:
        """Remove a slice of what need not be kept."""

    def next_user(self, after: int) -> Kept | None:
        """Return what the user with the next uid has; None: no further one."""

    def purge_user(self, uid: int, count: int) -> int:
        """Remove a slice of a user's oldest finished jobs; return how many."""

    def code_in_use(self) -> set[tuple[int, str]] | None:
        """Return owner and digest of the code snapshots of all jobs that are kept, if known."""


class CodePurger(Protocol):
    """The code snapshots, as far as they are needed here."""

    def purge(self, in_use: Collection[tuple[int, str]], now_s: float) -> int:
        """Remove those that no job has."""


class Checker(Protocol):
    """The store's reader, as far as it is needed here."""

    def check(self, place: Place) -> tuple[list[Damaged], Place | None]:
        """Look at a slice of all rows."""


class Housekeeping:
    """Purges the database, and users' finished jobs beyond their number.

    Args:
        in_writer: runs something on the store's thread, between commits.
        code: the code snapshots of jobs.

    Attributes:
        keep: what is not removed.
    """

    def __init__(
        self,
        *,
        store: Purger,
        in_writer: Callable[[Callable[[], None]], Awaitable[None]],
        clock: Clock,
        keep: Keep,
        code: CodePurger,
    ) -> None:
        self._code = code
        self._store = store
        self._in_writer = in_writer
        self._clock = clock
        self.keep = keep

    async def purge(self) -> str:
        """Remove all that need not be kept, slice by slice; commits take their turn between.

        Returns:
            What was removed, in words.

        Raises:
            TryAgainError: the disk is full, or another program has the database.
            StorageError: the database failed: the head must stop.
        """
        now_s = await self._time_s()
        await self.purge_users(self.keep)
        runs = jobs = events = 0
        more = True
        while more:
            purged = await self._in_turn(lambda: self._store.purge(self.keep, now_s))
            runs, jobs, events = runs + purged.runs, jobs + purged.jobs, events + purged.events
            more = purged.more
        removed = f"removed {runs} old runs, {jobs} jobs and {events} events of nodes"
        in_use = await self._in_turn(self._store.code_in_use)
        if in_use is not None:  # else a spec is damaged: its job may need any of them
            code = await asyncio.to_thread(self._code.purge, in_use, self._clock.wall_s())
            removed += f" and {counted(code, 'code snapshot')}" if code else ""
        if runs or jobs or events or "code" in removed:
            log.info("%s", removed)
        return removed

    async def purge_users(self, keep: Keep | None = None) -> str:
        """Remove finished jobs of each user beyond what is kept, slice by slice.

        Args:
            keep: None: only their number counts.

        Returns:
            What was removed, in words; it raises what `purge` raises.
        """
        keep = keep or Keep(jobs_per_user=self.keep.jobs_per_user)
        jobs = 0
        kept = await self._in_turn(partial(self._store.next_user, -1))
        while kept is not None:
            left = total = beyond(kept, keep)
            while left > 0:
                removed = await self._in_turn(partial(self._store.purge_user, kept.uid, left))
                left = left - removed if removed else 0
            jobs += total
            if total:
                log.info("removed the %d oldest finished jobs of uid %d", total, kept.uid)
            kept = await self._in_turn(partial(self._store.next_user, kept.uid))
        return f"removed {counted(jobs, 'finished job')}"

    async def _in_turn(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        await self._in_writer(lambda: done.append(work()))
        return done[0]

    async def _time_s(self) -> float:
        clock_s = self._clock.wall_s()
        time_s = await self._in_turn(lambda: self._store.purge_time_s(clock_s))
        ahead_s = clock_s - time_s
        if ahead_s > AHEAD_S:
            log.warning(
                "the clock is %.0f days ahead of the last events in the database: rows are removed "
                "as if it were earlier, a day more each day; is the clock right?",
                ahead_s / DAY_S,
            )
        return time_s


class Check:
    """Compares all rows with their checksums, slowly.

    Args:
        reader: has a connection of its own, used in one thread at a time.
        damaged: what was found when the head started.

    Attributes:
        damaged: rows that cannot be read, by their words; at most `MAX_DAMAGED`.
    """

    def __init__(self, reader: Checker, clock: Clock, damaged: Sequence[Damaged] = ()) -> None:
        self._reader = reader
        self._clock = clock
        self.damaged: dict[str, Damaged] = {}
        self._note(damaged)

    async def look(self) -> str:
        """Look at all rows once; return what was found, in words."""
        place: Place | None = Place()
        while place is not None:
            began_s = self._clock.monotonic_s()
            damaged, place = await asyncio.to_thread(self._reader.check, place)
            self._note(damaged)
            await asyncio.sleep(REST_RATIO * (self._clock.monotonic_s() - began_s))
        return f"{counted(len(self.damaged), 'damaged row')}" if self.damaged else ""

    def _note(self, damaged: Sequence[Damaged]) -> None:
        for each in damaged:
            if str(each) in self.damaged or len(self.damaged) >= MAX_DAMAGED:
                continue
            self.damaged[str(each)] = each
            log.critical("a row of the database is damaged: %s", each)
