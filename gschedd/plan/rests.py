"""Where a plan that takes long lets others go on: between two looks at nodes or running jobs.

Nothing that a plan was made of may change meanwhile: whoever asks for it sees to that.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

Rest = Callable[[], None]

#: So many nodes or jobs are looked at between two rests.
EVERY: Final = 64

_OFFERED: ContextVar[Rest | None] = ContextVar("offered", default=None)
_REST: ContextVar[Rest | None] = ContextVar("rest", default=None)

T = TypeVar("T")


@contextmanager
def offered(rest: Rest) -> Iterator[None]:
    """Have what is done in the block call ``rest`` now and then, where it says that it can."""
    token = _OFFERED.set(rest)
    try:
        yield
    finally:
        _OFFERED.reset(token)


@contextmanager
def resting() -> Iterator[None]:
    """Let what is planned in the block rest, if that is offered: nothing is half changed there."""
    token = _REST.set(_OFFERED.get())
    try:
        yield
    finally:
        _REST.reset(token)


def may_rest() -> bool:
    """Return whether what is planned now rests, so that others go on in between."""
    return _REST.get() is not None


def with_rests(items: Iterable[T]) -> Iterable[T]:
    """Return the same items; whoever takes one after the other rests in between."""
    rest = _REST.get()
    return items if rest is None else _with_rests(items, rest)


def _with_rests(items: Iterable[T], rest: Rest) -> Iterator[T]:
    for number, item in enumerate(items, 1):
        yield item
        if number % EVERY == 0:
            rest()
