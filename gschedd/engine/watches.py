"""Who reads of a job in the database notices that the job has changed meanwhile."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Watch:
    """Whether a job has changed since the watch began."""

    changed: bool = False


class Watches:
    """The watches of all jobs; used by the event loop alone."""

    def __init__(self) -> None:
        self._of: dict[int, list[Watch]] = {}

    @contextmanager
    def of(self, job: int) -> Iterator[Watch]:
        """Watch a job for as long as the block lasts."""
        watch = Watch()
        self._of.setdefault(job, []).append(watch)
        try:
            yield watch
        finally:
            watches = self._of[job]
            watches.remove(watch)
            if not watches:
                del self._of[job]

    def note(self, jobs: Iterable[int]) -> None:
        """Tell those who watch these jobs that they have changed."""
        if not self._of:
            return
        for job in jobs:
            for watch in self._of.get(job, ()):
                watch.changed = True
