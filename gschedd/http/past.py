"""How the finished jobs ended that new dependencies name: the core does not read the database."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from gsched.errors import InvalidRequestError
from gsched.model.dependency import MAX_DEPENDENCIES, MAX_TEXT
from gschedd.core.state import State

EndedWell = Callable[[Collection[int]], Awaitable[Mapping[int, bool]]]
_NUMBER: Final = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")


async def past_of(texts: Sequence[str], state: State, ended_well: EndedWell) -> Mapping[int, bool]:
    """Return of the finished jobs that dependencies name whether they succeeded.

    Raises:
        InvalidRequestError: there are too many.
    """
    numbers = {int(word) for text in texts for word in _NUMBER.findall(text[:MAX_TEXT])}
    gone = {number for number in numbers if number not in state.jobs}
    if len(gone) > MAX_DEPENDENCIES:
        raise InvalidRequestError(
            f"dependencies on more than {MAX_DEPENDENCIES} finished jobs in one request",
            hint="submit fewer jobs at a time",
        )
    return await ended_well(gone) if gone else {}
