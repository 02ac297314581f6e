"""Removes the records of ended attempts, each once the log of ended attempts has it.

A head that continues from an old copy of its database learns from that log what has run since. So a
record stays in the spool while the log cannot be written, and gnode, if it is killed then, finds it
again. Records do not fill the disk themselves: a node takes no new jobs before it is full.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from gnode.core.effects import Bury, RemoveSpool
from gnode.core.task import AttemptKey
from gnode.daemon.ended import EndedLog

log = logging.getLogger(__name__)

AT_ONCE = 200  # in one trip to a thread
RETRY_S = 2.0


class RecordRemoval:
    """Takes `Bury` and `RemoveSpool` in their order.

    Args:
        ended: where attempts are kept.
        remove: removes an attempt's records from the spool; returns a directory that is left to be
            removed, if any.
        clear: takes such directories.
        start: runs a task, and ends gnode if that raises.
    """

    def __init__(
        self,
        ended: EndedLog,
        *,
        remove: Callable[[AttemptKey], str | None],
        clear: Callable[[str], None],
        start: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._ended = ended
        self._remove = remove
        self._clear = clear
        self._start = start
        self._waiting: list[Bury | RemoveSpool] = []

    def add(self, effect: Bury | RemoveSpool) -> None:
        """Do it soon, in a thread."""
        self._waiting.append(effect)
        if len(self._waiting) == 1:
            self._start(self._run())

    async def _run(self) -> None:
        while self._waiting:
            batch = self._waiting[:AT_ONCE]
            left, rest = await asyncio.to_thread(self.work, batch)
            for path in left:
                self._clear(path)
            self._waiting[: len(batch)] = rest
            if rest:
                await asyncio.sleep(RETRY_S)

    def work(self, batch: list[Bury | RemoveSpool]) -> tuple[list[str], list[Bury | RemoveSpool]]:
        """Return directories to be removed, and what is to be tried again."""
        keys = [each.key for each in batch if isinstance(each, RemoveSpool)]
        try:
            self._ended.add([each.known for each in batch if isinstance(each, Bury)])
        except OSError as error:
            log.warning("ended attempts are not in their log yet: %s", error)
            return [], [each for each in batch if isinstance(each, RemoveSpool)]
        return [path for path in map(self._remove, keys) if path is not None], []
