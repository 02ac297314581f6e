"""Budgets: the GPU time that jobs may use in a day, a week or a month.

What attempts that have ended used is known by day, in UTC. A running job counts with all of its
walltime that lies in the period, also after its end, so that it never has to be stopped for a
budget; without a walltime, and beyond it, it counts with what it has used so far. At midnight the
sums are made anew, as every period begins with a day. All are whole numbers: percent of a GPU times
milliseconds.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import Final

from msgspec import Struct

DAY_S: Final = 86_400
DAY_MS: Final = DAY_S * 1000
_EPOCH: Final = date(1970, 1, 1).toordinal()

#: The counter of each period, and the day it began, as days since the epoch, of a day in it.
PERIODS: Final[Mapping[str, Callable[[int], int]]] = {
    "gpu_time per day": lambda day: day,
    "gpu_time per week": lambda day: day - (day + 3) % 7,  # the epoch began on a Thursday
    "gpu_time per month": lambda day: (
        date.fromordinal(_EPOCH + day).replace(day=1).toordinal() - _EPOCH
    ),
    "gpu_time per 30 days": lambda day: day - 29,
}
_ACCRUING: Final = "accruing"
_SINCE: Final = " since"

Days = Mapping[int, int]
_Scope = tuple[str, ...]


class Spending(Struct, frozen=True, kw_only=True):
    """A running job, as far as budgets are concerned; times are milliseconds since the epoch.

    Attributes:
        percent: of all its GPUs.
        since_ms: when it started; 0: it has not.
        end_ms: when its walltime ends; 0: it has none, or it is over.
        walltime_ms: that it may run from its start on, if it has not started.
    """

    percent: int
    since_ms: int = 0
    end_ms: int = 0
    walltime_ms: int = 0


class Budgets:
    """What was used in the present periods, by scope.

    Args:
        counters: of `PERIODS`, those that are limited.
    """

    def __init__(self, counters: Iterable[str]) -> None:
        self.counters = tuple(counters)
        self.day: int | None = None
        self._days: dict[frozenset[_Scope], Counter[int]] = {}
        self._spent: dict[_Scope, Counter[str]] = {}
        self._since_ms: dict[str, int] = {}

    def copy(self) -> "Budgets":
        """Return the same with a life of its own."""
        other = Budgets(self.counters)
        other.day, other._since_ms = self.day, self._since_ms
        other._days = {scopes: Counter(days) for scopes, days in self._days.items()}
        other._spent = {scope: Counter(spent) for scope, spent in self._spent.items()}
        return other

    def begin_day(self, day: int) -> None:
        """Make the sums anew, for the periods in which a day is."""
        self.day = day
        self._since_ms = {counter: PERIODS[counter](day) * DAY_MS for counter in self.counters}
        self._spent = {}
        for scopes, days in self._days.items():
            self._add(scopes, days)

    def spend(self, scopes: frozenset[_Scope], days: Days) -> None:
        """Count what an attempt has used that has ended."""
        if self.counters:
            self._days.setdefault(scopes, Counter()).update(days)
            self._add(scopes, days)

    def _add(self, scopes: Iterable[_Scope], days: Days) -> None:
        for counter, since_ms in self._since_ms.items():
            used = sum(amount for day, amount in days.items() if day * DAY_MS >= since_ms)
            for scope in scopes if used else ():
                self._spent.setdefault(scope, Counter())[counter] += used

    def amounts(self, spending: Spending) -> dict[str, int]:
        """Return what a running job counts; the same until another day begins."""
        found: dict[str, int] = {}
        for counter, begin_ms in self._since_ms.items() if spending.percent else ():
            since_ms = max(spending.since_ms, begin_ms)
            if not spending.since_ms:
                found[counter] = spending.percent * spending.walltime_ms
            elif spending.end_ms:
                found[counter] = spending.percent * max(0, spending.end_ms - since_ms)
            else:
                found[_ACCRUING] = spending.percent
                found[counter + _SINCE] = spending.percent * since_ms
        return found

    def used(self, scope: _Scope, counter: str, counts: Counter[str], now_ms: int) -> int:
        """Return what was used of a budget, with what running jobs count."""
        running = counts[counter] + counts[_ACCRUING] * now_ms - counts[counter + _SINCE]
        return running + (self._spent[scope][counter] if scope in self._spent else 0)


def day_of(now_s: float) -> int:
    """Return the day, as days since the epoch (UTC)."""
    return math.floor(now_s / DAY_S)


def next_s(counter: str, now_s: float) -> float:
    """Return when a budget may have more left, if no job ends: a day of its period goes."""
    return float(_next_change(counter, day_of(now_s)) * DAY_S)


def next_words(counter: str, now_s: float) -> str:
    """Return when the next period of a budget begins: ``; the next week begins on 2026-11-30``.

    Empty: it is no budget, or one of so many days before.
    """
    later = _next_change(counter, day_of(now_s)) if counter in PERIODS else 0
    if not later or PERIODS[counter](later) != later:
        return ""
    name = counter.rpartition(" ")[2]
    return f"; the next {name} begins on {date.fromordinal(_EPOCH + later)} (UTC)"


@lru_cache(maxsize=64)
def _next_change(counter: str, day: int) -> int:
    """Return the first day after one that has another first day of the period."""
    period = PERIODS[counter]
    later = day + 1
    while period(later) == period(day):
        later += 1
    return later


def by_day(percent: int, since_s: float, end_s: float) -> dict[int, int]:
    """Return the GPU time of an attempt by day."""
    if not percent:
        return {}
    at_ms, end_ms = round(since_s * 1000), round(end_s * 1000)
    found: dict[int, int] = {}
    while at_ms < end_ms:
        day = at_ms // DAY_MS
        until_ms = min(end_ms, (day + 1) * DAY_MS)
        found[day] = percent * (until_ms - at_ms)
        at_ms = until_ms
    return found
