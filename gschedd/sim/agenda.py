"""The virtual clock, and what is to happen when."""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

Action = Callable[..., None]

FOREVER: Final = float("inf")


class Agenda:
    """Turns the clock from event to event; what is due at one moment happens in order of asking.

    Attributes:
        now_s: seconds since the epoch, on the one true clock of the simulated world.
        events: how many have happened.
        watch: called after every event; None for nothing.
    """

    __slots__ = ("_cancelled", "_count", "_heap", "_soon", "events", "now_s", "watch")

    def __init__(self, begin_s: float) -> None:
        self.now_s = begin_s
        self.events = 0
        self.watch: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, Action, tuple[object, ...]]] = []
        self._soon: deque[tuple[Action, tuple[object, ...]]] = deque()
        self._count = 0
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap) + len(self._soon) - len(self._cancelled)

    def soon(self, action: Action, *arguments: object) -> None:
        """Do something at this very moment, after what was requested before."""
        self._soon.append((action, arguments))

    def at(self, time_s: float, action: Action, *arguments: object) -> int:
        """Do something at a time; a time in the past means now. Return the number of the event."""
        self._count += 1
        heapq.heappush(self._heap, (time_s, self._count, action, arguments))
        return self._count

    def after(self, delay_s: float, action: Action, *arguments: object) -> int:
        """Do something after a while."""
        return self.at(self.now_s + delay_s, action, *arguments)

    def cancel(self, number: int) -> None:
        """Let an event of `at` or `after` that has not happened yet never happen."""
        self._cancelled.add(number)

    def next_s(self) -> float:
        """Return when something happens next, `FOREVER` if nothing is planned."""
        if self._soon:
            return self.now_s
        self._drop_cancelled()
        return self._heap[0][0] if self._heap else FOREVER

    def _drop_cancelled(self) -> None:
        heap, cancelled = self._heap, self._cancelled
        while cancelled and heap and heap[0][1] in cancelled:
            cancelled.discard(heapq.heappop(heap)[1])

    def turn_to(self, time_s: float) -> None:
        """Turn the clock forward; nothing happens by that alone."""
        self.now_s = max(self.now_s, time_s)

    def settle(self) -> None:
        """Let happen all that is due by now, and what follows from it at this moment."""
        heap, soon, now_s, watch = self._heap, self._soon, self.now_s, self.watch
        happened = 0
        while True:
            if soon:
                action, arguments = soon.popleft()
            elif heap and heap[0][0] <= now_s:
                _, number, action, arguments = heapq.heappop(heap)
                if number in self._cancelled:
                    self._cancelled.discard(number)
                    continue
            else:
                break
            happened += 1
            action(*arguments)
            if watch is not None:
                watch()
        self.events += happened
