"""What a policy keeps of each node from one plan to the next."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import FreeNode
from gschedd.plan.times import JobPredictions


class NodeBooks(Protocol):
    """What is kept; a plan brings it up to date, all at once if nobody has done so before.

    Attributes:
        stale: nodes of which something has changed since.
    """

    stale: set[str]

    def refresh(
        self, seen: Snapshot, predictions: JobPredictions, names: Iterable[str] | None = None
    ) -> None:
        """Take in what has changed since: of all nodes, or of those that are named."""


#: Returns what is kept of nodes.
BooksOf = Callable[[Mapping[str, FreeNode]], NodeBooks]
