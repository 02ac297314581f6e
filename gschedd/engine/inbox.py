"""What waits for the owner of the state: users' requests, and everything else, in turn.

Reports of hundreds of nodes may wait when a user asks for something. The request does not wait for
all of them: one of each kind is taken in turn. Within each kind the order is that of arrival.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from gschedd.core.state.step import Step

Action = Callable[[float], Sequence[Step]]
#: What is to be done, and who waits for the answer; None: nobody.
Input = tuple[Action, asyncio.Future[Sequence[Step]] | None]


class FullError(Exception):
    """There is no room."""


class Inbox:
    """Inputs that nobody has taken yet.

    Args:
        limit: so many of both kinds together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: deque[Input] = deque()
        self._others: deque[Input] = deque()
        self._was_request = False
        self._some = asyncio.Event()
        self._request = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._requests) + len(self._others)

    def put(self, each: Input, *, is_request: bool = False) -> None:
        """Add an input.

        Args:
            each: what is to be done.
            is_request: a user waits for it; else its place is behind all others that are none.

        Raises:
            FullError: there is no room.
        """
        if len(self) >= self._limit:
            raise FullError
        (self._requests if is_request else self._others).append(each)
        self._some.set()
        if is_request:
            self._request.set()

    async def put_later(self, each: Input) -> None:
        """Add an input as soon as there is room."""
        while len(self) >= self._limit:
            self._room.clear()
            await self._room.wait()
        self.put(each)

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is an input, or the time is over."""
        if len(self):
            return
        self._some.clear()
        try:
            await asyncio.wait_for(self._some.wait(), timeout_s)
        except TimeoutError:
            return

    async def wait_for_request(self, timeout_s: float) -> None:
        """Wait until a user's request is there, or the time is over."""
        if self._requests or timeout_s <= 0.0:
            return
        self._request.clear()
        try:
            await asyncio.wait_for(self._request.wait(), timeout_s)
        except TimeoutError:
            return

    def take(self) -> Input | None:
        """Return the next input; None: there is none."""
        self._was_request = bool(self._requests) and not (self._was_request and self._others)
        queue = self._requests if self._was_request else self._others
        if not queue:
            return None
        self._room.set()
        return queue.popleft()

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Answer all who wait for an answer with an error; the other inputs stay."""
        for queue in (self._requests, self._others):
            kept = [each for each in queue if each[1] is None]
            for _, future in queue:
                if future is not None and not future.done():
                    future.set_exception(error())
            queue.clear()
            queue.extend(kept)
        self._room.set()
