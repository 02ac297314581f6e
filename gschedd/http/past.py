"""How the finished jobs ended that new dependencies name: the core does not read the database."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from gsched.errors import InvalidRequestError
from gsched.model.dependency import MAX_DEPENDENCIES, MAX_TEXT
from gsched.model.ids import ARRAYS_END, INDICES, element_number
from gschedd.core.state.state import State

EndedWell = Callable[[Collection[int]], Awaitable[Mapping[int, bool]]]
_NUMBER: Final = re.compile(
    r"(?<![0-9])(?P<job>[0-9]{1,18})(?:\[(?P<index>[0-9]{1,7})\])?(?![0-9])"
)


async def past_of(texts: Sequence[str], state: State, ended_well: EndedWell) -> Mapping[int, bool]:
    """Return of the finished jobs that dependencies name whether they succeeded.

    Raises:
        InvalidRequestError: there are too many.
    """
    words = (match for text in texts for match in _NUMBER.finditer(text[:MAX_TEXT]))
    numbers = {number for word in words for number in _numbers(word)}
    gone = {number for number in numbers if number not in state.jobs}
    if len(gone) > MAX_DEPENDENCIES:
        raise InvalidRequestError(
            f"dependencies on more than {MAX_DEPENDENCIES} finished jobs in one request",
            hint="submit fewer jobs at a time",
        )
    return await ended_well(gone) if gone else {}


def _numbers(word: re.Match[str]) -> Iterator[int]:
    """Yield the number of a job that is named, and of an element of it if that is an array."""
    job = int(word["job"])
    yield job
    if word["index"] and 0 < job < ARRAYS_END and int(word["index"]) < INDICES:
        yield element_number(job, int(word["index"]))
