"""A ranking of nodes in order, so that a plan need not rank all of them for each job."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from heapq import merge
from operator import itemgetter

from gsched.model.resources import Chunk
from gschedd.plan.rests import with_rests
from gschedd.plan.room import RankKey, shortage
from gschedd.plan.space import FreeNode, Spaces


class OrderedRank(ABC):
    """A ranking of nodes that can tell them in order, best first.

    What is called ``rank`` elsewhere may be such an object: it ranks a node when called.
    """

    @abstractmethod
    def __call__(self, chunk: Chunk, space: FreeNode) -> RankKey:
        """Return by what a node is ranked for a chunk, as any `Rank` does."""

    @abstractmethod
    def unchanged(
        self, chunk: Chunk, *, exclusive: bool, passed: Container[str]
    ) -> Iterator[FreeNode]:
        """Yield the nodes of the snapshot that have room for a chunk, best first.

        Args:
            passed: names of nodes to leave out, as the plan has changed them.
        """

    def best(self, chunk: Chunk, spaces: Spaces, *, exclusive: bool) -> FreeNode | None:
        """Return the first node of `fitting`, or None if none has room."""
        return next(self.fitting(chunk, spaces, exclusive=exclusive), None)

    def fitting(self, chunk: Chunk, spaces: Spaces, *, exclusive: bool) -> Iterator[FreeNode]:
        """Yield all nodes that have room for a chunk, best first.

        Args:
            spaces: of the snapshot, with what the plan has changed.
        """
        changed = spaces.changed
        untouched = self.unchanged(chunk, exclusive=exclusive, passed=changed)
        touched = [
            (self(chunk, space), space)
            for space in with_rests(changed.values())
            if not shortage(chunk, space, exclusive=exclusive)
        ]
        if not touched:
            return untouched
        touched.sort(key=itemgetter(0))
        ranked = ((self(chunk, space), space) for space in untouched)
        return (space for _, space in merge(ranked, touched, key=itemgetter(0)))
