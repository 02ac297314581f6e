"""Leaving the loop to others: some milliseconds of work, then a rest that is as long.

The head serves everybody on one thread. Work that takes long is done in pieces; after each, its
request rests for as long as the piece took, if others have anything to do. A small request of
somebody else, which needs the loop some five times, then waits for about one piece, not for one
each time.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

PIECE_S: Final = 0.005  # of work, after which others get their turn
LONGEST_REST_S: Final = 0.05
BUSY_S: Final = 0.0001  # three turns of the loop in which others have nothing to do take less


class Pace:
    """The pace of one request; its work begins when this is made.

    A rest is as long as the work before it. What others had the loop for longer than that is taken
    off the next rests. There is none where nobody else has anything to do.
    """

    __slots__ = ("_begin_s", "_loop", "_rested_s", "_worked_s")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin_s = self._loop.time()
        self._worked_s = 0.0  # before that, since the last rest
        self._rested_s = 0.0  # more than was worked, until the last rest

    def begin(self) -> None:
        """Count work from now on; what the request waited for was not its own work."""
        self._begin_s = self._loop.time()

    def stop(self) -> None:
        """Add the work since it began: what follows is a wait, which may be none at all."""
        now_s = self._loop.time()
        self._worked_s += now_s - self._begin_s
        self._begin_s = now_s

    async def rest(self) -> None:
        """Rest for as long as was worked."""
        self.stop()
        work_s, self._worked_s = min(self._worked_s, LONGEST_REST_S), 0.0
        for _ in range(3):  # what came meanwhile is behind the first two turns of this request
            await asyncio.sleep(0)
        others_s = self._loop.time() - self._begin_s
        if others_s >= BUSY_S:
            await asyncio.sleep(max(0.0, work_s - others_s - self._rested_s))
            self._rested_s += self._loop.time() - self._begin_s - work_s
            self._rested_s = min(max(0.0, self._rested_s), LONGEST_REST_S)
        self.begin()

    @property
    def is_due(self) -> bool:
        """Return whether a piece of work is done."""
        return self._worked_s + self._loop.time() - self._begin_s >= PIECE_S

    async def keep(self) -> None:
        """Rest if a piece of work is done; to be called after each small step of it."""
        if self.is_due:
            await self.rest()


class Turns:
    """Turns at work that takes long: one or a few for each user, some for all.

    Users take turns in the order in which they came, however many requests each has sent.

    Args:
        at_once: turns at the same time.
        of_user: of them for one user.
        rests: each turn ends with a rest, also that of a request that is refused.
    """

    def __init__(self, at_once: int, *, of_user: int = 1, rests: bool = False) -> None:
        self._at_once = asyncio.Semaphore(at_once)
        self._of_user = of_user
        self._rests = rests
        self._users: dict[int, asyncio.Semaphore] = {}
        self._waiting: Counter[int] = Counter()

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[Pace]:
        """Wait for a turn; it ends with the block."""
        user = self._users.setdefault(uid, asyncio.Semaphore(self._of_user))
        self._waiting[uid] += 1
        try:
            async with user, self._at_once:
                pace = Pace()
                try:
                    yield pace
                finally:
                    if self._rests:
                        await pace.rest()
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid], self._users[uid]


class Slots:
    """Lets a few do something at the same time.

    A slot is free again at its end, or after ``hold_s``: those that take long, perhaps on purpose,
    do not keep others out.
    """

    def __init__(self, at_once: int, *, hold_s: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._hold_s = hold_s

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot; it ends with the block."""
        await self._free.acquire()
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._free.release()

        late = asyncio.get_running_loop().call_later(self._hold_s, release)
        try:
            yield
        finally:
            late.cancel()
            release()


class Entrance:
    """Lets requests begin: of each user one in each turn of the loop, whoever else comes.

    So a user with many connections does not have all of them worked on before somebody else's one.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[asyncio.Future[None]]] = {}

    async def enter(self, uid: int) -> None:
        """Return at once, or when it is this user's turn again."""
        queue = self._queues.get(uid)
        if queue is None:
            self._queues[uid] = deque()
            asyncio.get_running_loop().call_soon(self._next, uid)
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(mine)
        await mine

    def _next(self, uid: int) -> None:
        queue = self._queues[uid]
        while queue:
            first = queue.popleft()
            if not first.done():  # its connection may have gone
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._next, uid)
                return
        del self._queues[uid]
