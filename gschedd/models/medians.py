"""The weighted median of a few values, and the median of all values that there ever were."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

#: Logarithms this close share a place: two per cent.
STEP: Final = 0.02
#: Places counted on either side of the first value, a factor of e^10; beyond, the last one counts.
MAX_PLACES: Final = 500


def weighted_median(
    values: Sequence[float], order: Sequence[int], weights: Sequence[float], half: float
) -> float:
    """Return the value at which half of the weight is reached, between two if exactly there.

    Args:
        values: any numbers, at least one.
        order: their places, by ascending value.
        weights: of each value, in the order of ``values``; above 0.
        half: half of their sum.
    """
    if not order:
        raise ValueError("no values have no median")
    reached = list(accumulate(map(weights.__getitem__, order)))
    last = len(reached) - 1
    place = bisect_left(reached, half * (1 - 1e-9), 0, last)
    value = values[order[place]]
    if place == last or reached[place] > half * (1 + 1e-9):
        return value
    return (value + values[order[place + 1]]) / 2


class LongMedian:
    """The median of any number of values in bounded memory, to within STEP.

    Values are counted by place; a pointer stays at the median and moves by a few places when it is
    asked for, so that adding a value costs the same however many there were.
    """

    __slots__ = ("_below", "_count", "_counts", "_first", "_place")

    def __init__(self) -> None:
        self._first = 0.0
        self._counts: dict[int, int] = {}
        self._count = 0
        self._below = 0
        self._place = 0

    def add(self, value: float) -> None:
        """Add a value."""
        if not self._count:
            self._first = value
        place = round((value - self._first) / STEP)
        if not -MAX_PLACES <= place <= MAX_PLACES:
            place = MAX_PLACES if place > 0 else -MAX_PLACES
        counts = self._counts
        counts[place] = counts.get(place, 0) + 1
        self._count += 1
        if place < self._place:
            self._below += 1

    def value(self) -> float:
        """Return the median; 0 if nothing was added."""
        if not self._count:
            return 0.0
        wanted = (self._count - 1) // 2  # the pointer's place is to hold the lower median
        below, place, count_at = self._below, self._place, self._counts.get
        while below > wanted:
            place -= 1
            below -= count_at(place, 0)
        while (beyond := below + count_at(place, 0)) <= wanted:
            below = beyond
            place += 1
        self._below, self._place = below, place
        return self._first + place * STEP
