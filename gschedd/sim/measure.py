"""What is measured while the simulated time passes: gauges over the nodes, and series of them."""

import math
from collections.abc import Sequence
from typing import Final

PARTS: Final = 1_000_000  # a utilisation is counted in millionths, so that sums stay exact
MAX_BINS: Final = 512  # then two neighbours become one: a series is bounded however long it runs
FIRST_BIN_S: Final = 1.0


class Gauge:
    """The utilisation of one resource on many nodes: its mean, and how unequal it is.

    Args:
        capacities: of each node; nodes that have none of the resource do not count.
    """

    __slots__ = ("_capacities", "_count", "_parts", "_squares", "_total")

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._count = sum(capacity > 0 for capacity in capacities)
        self._parts = [0] * len(capacities)
        self._total = 0
        self._squares = 0

    def set(self, index: int, used: float) -> None:
        """Take in how much of the resource a node uses now."""
        capacity = self._capacities[index]
        if capacity <= 0:
            return
        parts = round(PARTS * used / capacity)
        before = self._parts[index]
        self._parts[index] = parts
        self._total += parts - before
        self._squares += parts * parts - before * before

    @property
    def mean(self) -> float:
        """Return the mean utilisation of the nodes, 0 to 1."""
        return self._total / (PARTS * self._count) if self._count else 0.0

    @property
    def imbalance(self) -> float:
        """Return standard deviation over mean of the nodes' utilisation; 0 if nothing is used."""
        if not self._total:
            return 0.0
        count, total = self._count, self._total
        return math.sqrt(count * self._squares - total * total) / total


class Series:
    """Values over time in bins of equal width, which doubles when there are too many.

    Args:
        columns: how many values there are at any time.
    """

    __slots__ = ("_columns", "_elapsed_s", "_full_s", "_rows", "width_s")

    def __init__(self, columns: int = 1) -> None:
        self.width_s = FIRST_BIN_S
        self._columns = columns
        self._rows: list[list[float]] = []  # of each bin, value times seconds in each column
        self._elapsed_s = 0.0
        self._full_s = 0.0  # when the last bin is full

    def add(self, values: Sequence[float], duration_s: float) -> None:
        """Take in that the values were these for a while."""
        end_s = self._elapsed_s + duration_s
        if end_s < self._full_s:
            row = self._rows[-1]
            for column, value in enumerate(values):
                row[column] += value * duration_s
            self._elapsed_s = end_s
            return
        while end_s > self.width_s * MAX_BINS:
            self._halve()
        while self._elapsed_s < end_s:
            index = int(self._elapsed_s // self.width_s)
            until_s = min(end_s, (index + 1) * self.width_s)
            while len(self._rows) <= index:
                self._rows.append([0.0] * self._columns)
            row = self._rows[index]
            for column, value in enumerate(values):
                row[column] += value * (until_s - self._elapsed_s)
            self._elapsed_s = until_s
        self._full_s = len(self._rows) * self.width_s

    def _halve(self) -> None:
        rows = self._rows
        if len(rows) % 2:
            rows.append([0.0] * self._columns)
        self._rows = [
            [first + second for first, second in zip(rows[i], rows[i + 1], strict=True)]
            for i in range(0, len(rows), 2)
        ]
        self.width_s *= 2

    def values(self, column: int = 0) -> list[float]:
        """Return the mean of each bin, oldest first; the last one may be shorter."""
        full = [row[column] / self.width_s for row in self._rows]
        last_s = self._elapsed_s - self.width_s * (len(full) - 1)
        if full and 0 < last_s < self.width_s:
            full[-1] *= self.width_s / last_s
        return full


class Means:
    """The averages of several values over time, and the values as a series.

    Args:
        names: of the values, in the order in which they are given.
    """

    __slots__ = ("_areas", "_counted_s", "_names", "series")

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name: column for column, name in enumerate(names)}
        self._areas = [0.0] * len(names)
        self._counted_s = [0.0] * len(names)
        self.series = Series(len(names))

    def add(self, values: Sequence[float], duration_s: float, counts: Sequence[bool]) -> None:
        """Take in that the values were these for a while; ``counts``: each for its average, too."""
        self.series.add(values, duration_s)
        areas, counted_s = self._areas, self._counted_s
        for column, value in enumerate(values):
            if counts[column]:
                areas[column] += value * duration_s
                counted_s[column] += duration_s

    def average(self, name: str) -> float:
        """Return the average over the time that counts."""
        column = self._names[name]
        counted_s = self._counted_s[column]
        return self._areas[column] / counted_s if counted_s else 0.0

    def over_time(self, name: str) -> list[float]:
        """Return the value's series."""
        return self.series.values(self._names[name])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of sorted values lie (nearest rank); 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one has everything; 1 of none.

    Source:
        Jain, Chiu & Hawe, A quantitative measure of fairness, DEC TR-301, 1984.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
