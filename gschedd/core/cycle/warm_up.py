"""What a cycle needs to know of many nodes and running jobs, worked out in small pieces before it.

A policy keeps what it has worked out about each node, and running jobs are kept by their planned
ends; a cycle works out only what has changed. When a head starts, when all nodes come back or when
a node was removed that is all of it, which takes 30 us a node: everybody would wait for one cycle.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from gschedd.core.attempts.running import replan
from gschedd.core.cycle.run import snapshot
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.books import BooksOf
from gschedd.plan.load import Predictor
from gschedd.plan.times import JobPredictions

#: So many nodes or jobs are left to the cycle; with more of them, so many make a piece.
FEW: Final = 100


def warmed_up(
    state: State,
    settings: Settings,
    predictor: Predictor | None,
    books_of: BooksOf | None,
    now_s: float,
) -> Iterator[None]:
    """Work out piece by piece what is known of too many nodes and jobs for one cycle.

    A cycle does without it: it then works all of that out at once. The state may change between two
    pieces. What a piece has worked out is not worked out again, so that there is an end; what has
    changed since is left to the cycle.

    Args:
        books_of: what the policy keeps of each node; None: nothing.
    """
    while len(state.dirty.ends.moved) > FEW:
        replan(state, settings, now_s, most=FEW)
        yield
    if books_of is None:
        return
    seen = snapshot(state, settings, now_s, predictor, due=())
    books, done = books_of(state.spaces), set[str]()
    while len(books.stale) > FEW:
        names = list(islice((name for name in books.stale if name not in done), FEW))
        if not names:
            return
        books.refresh(seen, JobPredictions(seen), names)
        done.update(names)
        yield
        if books_of(state.spaces) is not books:  # a node was removed
            books, done = books_of(state.spaces), set()
