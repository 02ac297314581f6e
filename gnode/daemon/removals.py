"""Removes what jobs have left: directories, in slices, and the records of ended attempts."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

from gnode.core.effects import Bury, RemoveSpool
from gnode.core.task import AttemptKey
from gnode.daemon.ended import EndedLog
from gnode.daemon.trees import TreeRemoval

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 4_000  # entries in one trip to a thread, over all directories
STEPS_OF_ONE = 500  # entries of one directory before the next has its turn
GATHER_S = 0.1  # jobs that end together share that trip, which costs as much as a removal
RETRY_S = 600.0  # an immutable file, a mount point: somebody has to change that first
RECORDS_AT_ONCE = 200  # in one trip to a thread
RECORDS_RETRY_S = 2.0
TRASH_PREFIX = ".removed-"


class Remover:
    """A queue of directories: a huge one delays no other, and failed removals are repeated."""

    def __init__(self) -> None:
        self._queue: deque[TreeRemoval] = deque()
        self._wake = asyncio.Event()
        self._complained: set[str] = set()
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._trashed = 0

    def add(self, path: str) -> None:
        """Remove a directory and everything in it, sooner or later.

        It gets another name at once, so that its own is free for a new attempt.
        """
        self._trashed += 1
        place, name = os.path.split(path)
        trash = os.path.join(place, f"{TRASH_PREFIX}{os.getpid()}-{self._trashed}-{name}"[:255])
        try:
            os.rename(path, trash)
        except FileNotFoundError:
            return
        except OSError:  # a full disk, say: it is removed under its own name
            trash = path
        self.remove(trash)

    def remove(self, path: str) -> None:
        """Remove a directory under the name that it has."""
        self._waiting.pop(path, None)
        self._queue.append(TreeRemoval(path))
        self._wake.set()

    async def run(self) -> None:
        """Work through the queue for as long as the daemon runs."""
        try:
            while True:
                self._wake.clear()
                while self._queue:
                    for removal in await asyncio.to_thread(self.work, STEPS_AT_ONCE):
                        self.retry_later(removal)
                await self._wake.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            self.close()

    def close(self) -> None:
        """Forget what was to be tried again."""
        for timer in self._waiting.values():
            timer.cancel()

    def work(self, steps: int) -> list[TreeRemoval]:
        """Remove up to ``steps`` entries; return the removals that were given up for now."""
        given_up: list[TreeRemoval] = []
        while self._queue and steps > 0:
            removal = self._queue.popleft()
            unused = removal.work(STEPS_OF_ONE)
            steps -= max(1, STEPS_OF_ONE - unused)
            if not unused:
                self._queue.append(removal)
            elif removal.error is not None:
                given_up.append(removal)
        return given_up

    def retry_later(self, removal: TreeRemoval) -> None:
        """Try a removal that was given up again in a while; say why, once for each directory."""
        path = removal.path
        if isinstance(removal.error, FileNotFoundError):
            return
        if path not in self._complained:
            self._complained.add(path)
            log.warning("%s cannot be removed, trying again later: %s", path, removal.error)
        loop = asyncio.get_running_loop()
        self._waiting[path] = loop.call_later(RETRY_S, self.remove, path)


class RecordRemoval:
    """Removes the records of ended attempts, each once the log of ended attempts has it.

    It takes `Bury` and `RemoveSpool` in their order. A head that continues from an old copy of its
    database learns from that log what has run since. So a record stays in the spool while the log
    cannot be written, and a gnode that is killed then finds it again. Records do not fill the disk
    themselves: a node takes no new jobs before it is full.

    Args:
        ended: where attempts are kept.
        remove: removes an attempt's records from the spool; returns a directory that is left to be
            removed, if any.
        clear: takes such directories.
        gone: is told of attempts whose records are removed.
        start: runs a task, and ends gnode if that raises.
    """

    def __init__(
        self,
        ended: EndedLog,
        *,
        remove: Callable[[AttemptKey], str | None],
        clear: Callable[[str], None],
        gone: Callable[[Sequence[str]], None],
        start: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._ended = ended
        self._remove = remove
        self._clear = clear
        self._gone = gone
        self._start = start
        self._waiting: list[Bury | RemoveSpool] = []

    def add(self, effect: Bury | RemoveSpool) -> None:
        """Do it soon, in a thread."""
        self._waiting.append(effect)
        if len(self._waiting) == 1:
            self._start(self._run())

    async def _run(self) -> None:
        while self._waiting:
            batch = self._waiting[:RECORDS_AT_ONCE]
            left, rest = await asyncio.to_thread(self.work, batch)
            for path in left:
                self._clear(path)
            self._waiting[: len(batch)] = rest
            waiting = {each.key for each in rest if isinstance(each, RemoveSpool)}
            removed = [each.key for each in batch if isinstance(each, RemoveSpool)]
            self._gone([key.name for key in removed if key not in waiting])
            if rest:
                await asyncio.sleep(RECORDS_RETRY_S)

    def work(self, batch: list[Bury | RemoveSpool]) -> tuple[list[str], list[Bury | RemoveSpool]]:
        """Return directories to be removed, and what is to be tried again."""
        keys = [each.key for each in batch if isinstance(each, RemoveSpool)]
        try:
            self._ended.add([each.known for each in batch if isinstance(each, Bury)])
        except OSError as error:
            log.warning("ended attempts are not in their log yet: %s", error)
            return [], [each for each in batch if isinstance(each, RemoveSpool)]
        return [path for path in map(self._remove, keys) if path is not None], []
