"""Nodes with windows of maintenance: when the next one begins or ends, and which orders there are.

It follows from the windows of the nodes. With windows on 10,000 nodes nobody may look at all of
them for each order and each alarm.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from gsched.model.window import NodeWindow

#: What makes windows of several nodes one order: times, reason, and who has ordered it.
Order = tuple[float, float, str, str]


def order_of(window: NodeWindow) -> Order:
    """Return the order that a window belongs to."""
    return (window.from_s, window.to_s, window.reason, window.by)


class WindowedNodes:
    """Their names, and what they have to wait for.

    Attributes:
        highest: the highest number that a window has had.
    """

    def __init__(self) -> None:
        self.highest = 0
        self._windows: dict[str, tuple[NodeWindow, ...]] = {}
        self._times: list[tuple[float, str]] = []  # when something begins or ends, in order
        self._numbers: dict[Order, Counter[int]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)

    def put(self, node: str, windows: tuple[NodeWindow, ...], highest: int = 0) -> None:
        """Take in which windows a node has, and the highest number of all that it has had."""
        self.highest = max(self.highest, highest)
        before = self._windows.pop(node, ())
        if windows:
            self._windows[node] = windows
        gone, come = set(before).difference(windows), set(windows).difference(before)
        for window in gone:
            del self._times[bisect_left(self._times, (_next_s(window), node))]
            numbers = self._numbers[order_of(window)]
            numbers[window.number] -= 1
            if not numbers[window.number]:
                del numbers[window.number]
            if not numbers:
                del self._numbers[order_of(window)]
        for window in come:
            insort(self._times, (_next_s(window), node))
            self._numbers.setdefault(order_of(window), Counter())[window.number] += 1

    def number_of(self, order: Order) -> int | None:
        """Return the number that an order has on other nodes; None: it is a new one."""
        return min(self._numbers.get(order, ()), default=None)

    @property
    def next_s(self) -> float | None:
        """Return when a window begins or ends next, seconds since the epoch."""
        return self._times[0][0] if self._times else None

    def due(self, now_s: float, most: int) -> list[str]:
        """Return the names of at most ``most`` nodes with a window that begins or ends by now."""
        end = min(most, bisect_left(self._times, (now_s, "\U0010ffff")))
        return sorted({node for _, node in self._times[:end]})


def _next_s(window: NodeWindow) -> float:
    return window.to_s if window.begun else window.from_s
