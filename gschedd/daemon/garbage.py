"""The loop of the head, which collects garbage between its turns and not within one.

Python collects garbage when enough objects have been made: a piece of a list or a cycle then takes
up to 23 ms longer. This loop collects young objects after a short turn or when it is idle, and so
often that a collection takes at most a few milliseconds.
"""

import asyncio
import gc
import selectors
from collections.abc import Coroutine
from typing import Final, TypeVar

from gsched.clock import thread_cpu_s

T = TypeVar("T")
Ready = list[tuple[selectors.SelectorKey, int]]

#: New objects, less those that were freed, after which the youngest are collected: 0.4 ms.
YOUNG: Final = 1_000
#: The same after a turn that was long; up to here the collection waits for a short one.
YOUNG_MOST: Final = 3_000
#: Collections of the youngest before one that includes those that survived them: 1 to 5 ms.
OLDER: Final = 2
#: Such collections before a full one, which looks at all jobs that have come since the start.
OLDEST: Final = 40_000
SHORT_S: Final = 0.002  # CPU time of a turn, after which a collection may come
#: Of Python's own collections: they come only within a turn that makes very many objects.
GC_THRESHOLDS: Final = (20_000, OLDER, 1_000_000)


def generation_due(counts: tuple[int, int, int], *, is_short: bool, is_idle: bool) -> int | None:
    """Return the oldest generation of objects to collect now; None: none.

    Args:
        counts: as of `gc.get_count`.
        is_short: the last turn was.
        is_idle: nobody has sent anything, and nothing is to be done.
    """
    young, older, oldest = counts
    if oldest >= OLDEST and (is_idle or oldest >= 2 * OLDEST):
        return 2
    if young < YOUNG or not (is_short or is_idle or young >= YOUNG_MOST):
        return None
    return 1 if older >= OLDER else 0


class CollectingSelector(selectors.DefaultSelector):
    """Tells a loop which sockets are ready, and collects garbage before it looks at them."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_s = thread_cpu_s()

    def select(self, timeout: float | None = None) -> Ready:
        """Return the sockets that are ready, as soon as there are any."""
        counts = gc.get_count()
        if counts[0] >= YOUNG or counts[2] >= OLDEST:
            is_short = thread_cpu_s() - self._begin_s <= SHORT_S
            due = generation_due(counts, is_short=is_short, is_idle=False)
            if due is None and (timeout is None or timeout > 0):
                ready = self.look(0)
                if ready:  # who waited for the last turn does not wait for this as well
                    return self._begin(ready)
                due = generation_due(counts, is_short=is_short, is_idle=True)
            if due is not None:
                gc.collect(due)
        return self._begin(self.look(timeout))

    def _begin(self, ready: Ready) -> Ready:
        self._begin_s = thread_cpu_s()
        return ready

    def look(self, timeout: float | None) -> Ready:
        """Look at the sockets: what is done between two looks is one turn of the loop."""
        return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop."""
    return asyncio.SelectorEventLoop(CollectingSelector())


def run(main: Coroutine[object, object, T]) -> T:
    """Run a program in such a loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)
