"""Minimum satisfactory shares: the fewest GPUs that let a training meet its deadline.

Free GPUs are counted over time, wherever they are: a step function, the `Timeline`. A training runs
on one of its `Levels`. Its minimum satisfactory share is the lowest level such that on that many
GPUs, or on the largest level that fits where fewer are free, it is done by its deadline. Training
jobs take their shares in order of their deadlines; one more may be admitted if none of those that
would be in time, itself included, comes too late.

Source: Gu et al., "ElasticFlow", ASPLOS 2023. Where it counts slots of equal length, ours are as
long as nothing changes, so that a share costs as much as there are changes, not hours.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

#: Work is done when no more than this part of it is left: rounding must not cost a deadline.
ROUNDING: Final = 1e-9


class Levels(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Numbers of GPUs that a training may have, and how fast it is on them.

    Numbers ascend strictly. So do rates where the lowest level is looked for: there a larger number
    that is not faster is not worth having.

    Attributes:
        gpus: counts, shape ``(L,)``; there may be none.
        rates: work a second on each of them, shape ``(L,)``.
    """

    gpus: tuple[int, ...]
    rates: tuple[float, ...]

    def floor(self, free: int) -> int:
        """Return how many of the levels fit into so many GPUs: 0 where none does."""
        return bisect_right(self.gpus, free)

    @property
    def fastest(self) -> float:
        """Return the highest rate; 0 where there is no level."""
        return self.rates[-1] if self.rates else 0.0


def levels_of(counts: Iterable[int], rate: Callable[[int], float]) -> Levels:
    """Return the levels worth having.

    Args:
        counts: numbers of GPUs that are allowed, in any order.
        rate: work a second on a number of GPUs; 0 where the training cannot run.
    """
    gpus: list[int] = []
    rates: list[float] = []
    for count in sorted(set(counts)):
        here = rate(count)
        if here > (rates[-1] if rates else 0.0):
            gpus.append(count)
            rates.append(here)
    return Levels(gpus=tuple(gpus), rates=tuple(rates))


class Timeline:
    """How many GPUs are free from now on: constant between its steps, and after the last one.

    Attributes:
        starts_s: when each step begins, ascending, shape ``(S,)``; the first one is now.
        free: GPUs free during each step, shape ``(S,)``. Only `take` and `claim` change them.
    """

    __slots__ = ("free", "starts_s")

    def __init__(self, now_s: float, gpus: int) -> None:
        self.starts_s = [now_s]
        self.free = [gpus]

    def copy(self) -> "Timeline":
        """Return another timeline with the same steps."""
        other = Timeline(self.starts_s[0], self.free[0])
        other.starts_s, other.free = self.starts_s.copy(), self.free.copy()
        return other

    def split(self, at_s: float) -> int:
        """Let a step begin at a time that is not in the past, and return its index."""
        index = bisect_right(self.starts_s, at_s) - 1
        if self.starts_s[index] < at_s:
            index += 1
            self.starts_s.insert(index, at_s)
            self.free.insert(index, self.free[index - 1])
        return index

    def take(self, gpus: int, until_s: float | None = None) -> None:
        """Take GPUs from now on, for ever if no end is named; those that are not free are missing.

        A number below 0 gives GPUs back.
        """
        end = len(self.free) if until_s is None else self.split(max(until_s, self.starts_s[0]))
        for index in range(end):
            self.free[index] -= gpus

    def between(self, until_s: float) -> Iterable[tuple[float, int]]:
        """Yield how long each step lasts and how many GPUs are free, until a time, seconds."""
        starts_s, free = self.starts_s, self.free
        for index, start_s in enumerate(starts_s):
            if start_s >= until_s:
                return
            last = index + 1 == len(starts_s)
            end_s = until_s if last else min(starts_s[index + 1], until_s)
            yield end_s - start_s, free[index]


class MinimumShare(Struct, frozen=True, kw_only=True):
    """The GPUs that a training job takes of a timeline or grid.

    Attributes:
        level: number of GPUs that it never exceeds; 0: it gets none, whatever is free.
        gpus: how many it has now.
        end_s: when it is done, seconds since the epoch; infinite where it never is.
        gpu_s: GPU time until then, seconds; 0 on a grid, which does not count it.
    """

    level: int
    gpus: int
    end_s: float
    gpu_s: float = 0.0


NOTHING: Final = MinimumShare(level=0, gpus=0, end_s=float("inf"), gpu_s=0.0)


def least_level(
    timeline: Timeline, levels: Levels, work: float, deadline_s: float, startup_s: float = 0.0
) -> int | None:
    """Return the index of the lowest level that does the work in time, None if none does.

    One pass: while no more than the k lowest levels fit, all higher ones run on the k-th. So all of
    them begin at the same time, and take as long until their first step.

    Args:
        timeline: what is free.
        levels: what may be chosen.
        work: to be done, in the unit of the rates.
        deadline_s: by when, seconds since the epoch.
        startup_s: so long nothing is done at first, seconds.
    """
    limits, rates = levels.gpus, levels.rates
    lasting_s = [0.0] * (len(limits) + 1)
    starts_s, free = timeline.starts_s, timeline.free
    for index in range(bisect_right(starts_s, deadline_s)):
        next_s = starts_s[index + 1] if index + 1 < len(starts_s) else deadline_s
        fits, lasts_s = bisect_right(limits, free[index]), min(next_s, deadline_s) - starts_s[index]
        if startup_s and fits:
            idle_s = min(startup_s, lasts_s)
            startup_s -= idle_s
            lasts_s -= idle_s
        lasting_s[fits] += lasts_s
    enough = work * (1 - ROUNDING)
    done = 0.0
    open_s = sum(lasting_s[1:])
    for index, rate in enumerate(rates):
        if done + rate * open_s >= enough:
            return index
        done += rate * lasting_s[index + 1]
        open_s -= lasting_s[index + 1]
    return None


def claim(
    timeline: Timeline, levels: Levels, index: int, work: float, startup_s: float = 0.0
) -> MinimumShare:
    """Take the share of a level, or less where less is free, until the work is done.

    Args:
        timeline: what is free; what is claimed is taken from it.
        levels: of the training.
        index: of the level; -1: nothing is taken.
        work: to be done, in the unit of the rates; where there is none, nothing is taken.
        startup_s: so long nothing is done with the first GPUs, seconds.
    """
    if index < 0 or work <= 0:
        return NOTHING
    limits, rates = levels.gpus, levels.rates
    starts_s, free = timeline.starts_s, timeline.free
    left, gpu_s, at, now_gpus = work, 0.0, 0, 0
    while True:
        chosen = min(bisect_right(limits, free[at]) - 1, index)
        gpus = limits[chosen] if chosen >= 0 else 0
        now_gpus = gpus if at == 0 else now_gpus
        last = at + 1 == len(starts_s)
        if gpus:
            need_s = startup_s + left / rates[chosen]
            if last or starts_s[at] + need_s * (1 - ROUNDING) <= starts_s[at + 1]:
                end_s = max(starts_s[at] + need_s, math.nextafter(starts_s[at], math.inf))
                # an end that rounding puts behind the next step is at that step
                timeline.split(end_s if last else min(end_s, starts_s[at + 1]))
                free[at] -= gpus
                return MinimumShare(
                    level=limits[index], gpus=now_gpus, end_s=end_s, gpu_s=gpu_s + gpus * need_s
                )
            lasts_s = starts_s[at + 1] - starts_s[at]
            idle_s = min(startup_s, lasts_s)
            startup_s -= idle_s
            left -= (lasts_s - idle_s) * rates[chosen]
            gpu_s += lasts_s * gpus
            free[at] -= gpus
        elif last:
            return MinimumShare(level=limits[index], gpus=now_gpus, end_s=float("inf"), gpu_s=gpu_s)
        at += 1


class Demand(Struct, frozen=True, kw_only=True):
    """What a training needs.

    Attributes:
        deadline_s: by when it must be done, seconds since the epoch.
        work: what is left, in the unit of the levels' rates.
        startup_s: from its start, or from now on if it runs, to its first step, seconds.
    """

    job: int
    deadline_s: float
    work: float
    levels: Levels
    startup_s: float = 0.0


def by_deadline(demand: Demand) -> tuple[float, int]:
    """Return the order in which shares are taken; ties go to the lower job id."""
    return (demand.deadline_s, demand.job)


class Shares:
    """The minimum satisfactory shares of training jobs, in order of their deadlines.

    A training that cannot meet its deadline, those before it having taken theirs, gets none here.

    Attributes:
        timeline: what all of them leave free.
        claims: by job, of those that will be in time.
        late: jobs that will not be in time.
    """

    def __init__(self, timeline: Timeline, demands: Collection[Demand] = ()) -> None:
        """Take shares of a timeline, which is not changed."""
        self._base = timeline
        self._demands: list[Demand] = sorted(demands, key=by_deadline)
        settled = _settle(timeline, self._demands)
        assert settled is not None, "whoever comes too late is allowed to"
        self.timeline, self.claims, self.late = settled

    @property
    def demands(self) -> Sequence[Demand]:
        """Return those that took part, in order."""
        return self._demands

    def admit(self, *new: Demand) -> bool:
        """Add training jobs if all meet their deadlines and no other misses its own for them.

        Args:
            new: all of them are added, or none.
        """
        now_s = self._base.starts_s[0]
        for demand in new:
            most = demand.levels.fastest * (demand.deadline_s - now_s - demand.startup_s)
            if most < demand.work * (1 - ROUNDING):
                return False
        demands = sorted([*self._demands, *new], key=by_deadline)
        settled = _settle(self._base, demands, self.late)
        if settled is None:
            return False
        self._demands = demands
        self.timeline, self.claims, self.late = settled
        return True


def _settle(
    timeline: Timeline, demands: Iterable[Demand], may_be_late: Collection[int] | None = None
) -> tuple[Timeline, Mapping[int, MinimumShare], frozenset[int]] | None:
    """Return what is left, the claims, and who is late; None if somebody is who may not be."""
    left = timeline.copy()
    claims: dict[int, MinimumShare] = {}
    late: set[int] = set()
    for demand in demands:
        levels, work, startup_s = demand.levels, demand.work, demand.startup_s
        index = least_level(left, levels, work, demand.deadline_s, startup_s)
        if index is not None:
            claims[demand.job] = claim(left, levels, index, work, startup_s)
        elif may_be_late is None or demand.job in may_be_late:
            late.add(demand.job)
        else:
            return None
    return left, claims, frozenset(late)
