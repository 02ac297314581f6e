"""Who watches which jobs: to read them again when they change, or to be woken by their end."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Watch:
    """What has become of some jobs since the watch began.

    Attributes:
        changed: a commit with changes of one of them has begun.
        ended: the end of one of them was committed.
    """

    changed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Watches:
    """The watches of all jobs; used by the event loop alone."""

    def __init__(self) -> None:
        self._of: dict[int, list[Watch]] = {}

    @contextmanager
    def of(self, *jobs: int) -> Iterator[Watch]:
        """Watch jobs for as long as the block lasts."""
        watch = Watch()
        for job in jobs:
            self._of.setdefault(job, []).append(watch)
        try:
            yield watch
        finally:
            for job in jobs:
                watches = self._of[job]
                watches.remove(watch)
                if not watches:
                    del self._of[job]

    def note(self, jobs: Iterable[int]) -> None:
        """Tell those who watch these jobs that they have changed."""
        for watch in self._watching(jobs):
            watch.changed = True

    def note_ended(self, jobs: Iterable[int]) -> None:
        """Wake those who watch these jobs, and nobody else: their ends are durable."""
        for watch in self._watching(jobs):
            watch.ended.set()

    def _watching(self, jobs: Iterable[int]) -> Iterator[Watch]:
        if self._of:
            for job in jobs:
                yield from self._of.get(job, ())
