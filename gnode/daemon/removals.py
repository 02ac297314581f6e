"""Removes what jobs have left on disk, in slices: a huge directory delays no other."""

import asyncio
import logging
import os
from collections import deque

from gnode.daemon.trees import TreeRemoval

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 4_000  # entries in one trip to a thread, over all directories
STEPS_OF_ONE = 500  # entries of one directory before the next has its turn
GATHER_S = 0.1  # jobs that end together share that trip, which costs as much as a removal
RETRY_S = 600.0  # an immutable file, a mount point: somebody has to change that first
TRASH_PREFIX = ".removed-"


class Remover:
    """A queue of directories to remove; what cannot be removed is tried again later."""

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
