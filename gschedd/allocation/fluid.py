"""GPUs that are free over time, in few steps: how much of them training jobs need to be in time.

Within a step GPUs are a fluid: who has four of them for half of it takes two, whenever that is.
Only the first step, which begins now, is counted in whole GPUs. So a plan for a thousand training
jobs needs no more steps than one for ten, and costs as much for each of them.

Source: minimum satisfactory shares, Gu et al., "ElasticFlow", ASPLOS 2023. Where it counts slots of
equal length, ours are short now and long later, and end where training jobs must be done. A change
of the number of GPUs is charged with the time that it takes, and what cannot be moved gets one
number of GPUs without a break.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct, structs

from gschedd.allocation.shares import Levels, MinimumShare, Timeline

#: The first step lasts so long at least; seconds. Less would only make more steps.
FIRST_STEP_S: Final = 60.0
#: GPUs and work may be missing by this part, so that rounding costs no deadline.
ROUNDING: Final = 1e-9


class Need(Struct, frozen=True, kw_only=True):
    """What a training needs to be in time.

    Attributes:
        deadline_s: by when it must be done, seconds since the epoch.
        work: what is left, in the unit of the levels' rates; above 0.
        levels: numbers of GPUs that it may have.
        has: GPUs that it has now; 0: it waits.
        move_s: what a change of the number costs; what it costs to begin, if it had begun before.
        startup_s: until its first step where it is not moved: from its start, or from now on if it
            runs; seconds.
        begun: it has run before, or runs.
        rigid: once started it keeps its GPUs until its end.
        held: it starts or moves; in the first step it has what it has, which is not free there.
        held_rate: work a second that it does in that step.
    """

    job: int
    deadline_s: float
    work: float
    levels: Levels
    has: int = 0
    move_s: float = 0.0
    startup_s: float = 0.0
    begun: bool = False
    rigid: bool = False
    held: bool = False
    held_rate: float = 0.0

    def alone_s(self, index: int) -> float:
        """Return how long it takes on a level from now on, seconds."""
        changes = self.begun and self.levels.gpus[index] != self.has
        delay_s = self.move_s if changes else self.startup_s
        return delay_s + self.work / self.levels.rates[index]


class Grid:
    """GPUs that are free in each step.

    Attributes:
        starts_s: when each step begins, ascending, shape ``(S,)``; the first one is now.
        lasts_s: how long it lasts, shape ``(S,)``.
        free: GPUs that are free, averaged over the step, shape ``(S,)``.
    """

    __slots__ = ("free", "lasts_s", "starts_s")

    def __init__(self, starts_s: Sequence[float], end_s: float) -> None:
        """Return a grid without free GPUs."""
        self.starts_s = list(starts_s)
        self.lasts_s = [stop - start for start, stop in pairwise([*starts_s, end_s])]
        self.free = [0.0] * len(self.starts_s)

    @classmethod
    def of(cls, timeline: Timeline, times_s: Iterable[float], now_gpus: int) -> "Grid":
        """Return a grid that sums up a timeline.

        Args:
            timeline: free GPUs over time.
            times_s: where steps begin; those that are not in the future make no difference.
            now_gpus: no more are free in the first step.
        """
        now_s = timeline.starts_s[0]
        bounds = sorted({now_s, *(each_s for each_s in times_s if each_s > now_s)})
        end_s = bounds.pop() if len(bounds) > 1 else now_s + FIRST_STEP_S
        grid = cls(bounds, end_s)
        steps = list(zip(timeline.starts_s, timeline.free, strict=True))
        for index, (start_s, stop_s) in enumerate(pairwise([*bounds, end_s])):
            grid.free[index] = _mean(steps, start_s, stop_s)
        grid.free[0] = min(grid.free[0], now_gpus)
        return grid

    def with_free(self, free: Sequence[float]) -> "Grid":
        """Return another grid of the same steps."""
        other = Grid.__new__(Grid)
        other.starts_s, other.lasts_s = self.starts_s, self.lasts_s
        other.free = list(free)
        return other

    def copy(self) -> "Grid":
        """Return another grid of the same steps, of which the same is free."""
        return self.with_free(self.free)

    def kept_back(self, part: float, after_s: float) -> "Grid":
        """Return what is left if a part of each step that begins later is kept for others."""
        index = bisect_left(self.starts_s, after_s)
        later = [each * (1 - part) for each in self.free[index:]]
        return self.with_free([*self.free[:index], *later])

    def without(self, before: "Grid", after: "Grid") -> "Grid":
        """Return what is left of this if as much is taken as was between two states of another."""
        steps = zip(self.free, before.free, after.free, strict=True)
        return self.with_free([here - (had - has) for here, had, has in steps])

    def take_share(self, need: Need) -> MinimumShare | None:
        """Take the least share with which a training is in time; None if there is none.

        Lower levels are tried first: to more GPUs nothing scales better than in proportion.
        """
        if need.held:
            works_s = max(0.0, self.lasts_s[0] - need.startup_s)
            left = need.work - need.held_rate * works_s
            if left <= 0:
                end_s = self.starts_s[0] + (need.startup_s + need.work / need.held_rate)
                return MinimumShare(level=need.has, gpus=need.has, end_s=end_s)
            startup_s = max(0.0, need.startup_s - self.lasts_s[0])
            need = structs.replace(need, work=left, startup_s=startup_s)
        index, levels = self._alone_level(need), len(need.levels.gpus)
        find = self._rigid if need.rigid else self._elastic
        found = find(need, index) if index < levels else None
        if found is None and index < levels:
            for higher in range(max(index + 1, self._first_level(need)), levels):
                found = find(need, higher)
                if found is not None:
                    break
        if found is None:
            return None
        share, taken = found
        for step, gpus in taken:
            self.free[step] -= gpus
        return share

    def _alone_level(self, need: Need) -> int:
        """Return the lowest level that would do if all GPUs were free."""
        if need.held:
            return 0
        usable_s = need.deadline_s - self.starts_s[0]
        for index in range(len(need.levels.gpus)):
            if need.alone_s(index) <= usable_s * (1 + ROUNDING):
                return index
        return len(need.levels.gpus)

    def _first_level(self, need: Need) -> int:
        """Return the lowest level that may do, were changes free; the number of levels if none.

        One pass: while no more than the k lowest levels fit, all higher ones run on the k-th.
        """
        limits, rates = need.levels.gpus, need.levels.rates
        most, top = limits[-1] - ROUNDING, len(limits)
        lasting_s = [0.0] * (top + 1)
        free, lasts_s = self.free, self.lasts_s
        last = bisect_left(self.starts_s, need.deadline_s) - 1
        for step in range(1 if need.held else 0, last):
            here = free[step]
            fits = top if here >= most else bisect_right(limits, here + ROUNDING)
            lasting_s[fits] += lasts_s[step]
        fits = bisect_right(limits, free[last] + ROUNDING)
        start_s = self.starts_s[last]
        lasting_s[fits] += min(start_s + lasts_s[last], need.deadline_s) - start_s
        enough = need.work * (1 - ROUNDING)
        done, open_s = 0.0, sum(lasting_s[1:])
        for index, rate in enumerate(rates):
            if done + rate * open_s >= enough:
                return index
            done += rate * lasting_s[index + 1]
            open_s -= lasting_s[index + 1]
        return top

    def _elastic(
        self, need: Need, index: int
    ) -> tuple[MinimumShare, list[tuple[int, float]]] | None:
        """Return the share of a level, or less where less is free, and what it takes of steps."""
        limits, rates = need.levels.gpus, need.levels.rates
        level, left, has, begun = limits[index] - ROUNDING, need.work, need.has, need.begun
        deadline_s = need.deadline_s
        starts_s, free, lasts_s = self.starts_s, self.free, self.lasts_s
        delay_s, chosen = need.startup_s, index
        taken: list[tuple[int, float]] = []
        for step in range(1 if need.held else 0, len(free)):
            start_s = starts_s[step]
            if start_s >= deadline_s:
                return None
            here = free[step]
            chosen = index if here >= level else bisect_right(limits, here + ROUNDING) - 1
            if chosen < 0:
                has = 0
                continue
            gpus = limits[chosen]
            if gpus != has:
                delay_s = need.move_s if begun else need.startup_s
                has, begun = gpus, True
            usable_s = lasts_s[step]
            if start_s + usable_s > deadline_s:
                usable_s = deadline_s - start_s
            if delay_s >= usable_s:
                delay_s -= usable_s
                usable_s = 0.0
            need_s = delay_s + left / rates[chosen]
            if usable_s and need_s <= usable_s * (1 + ROUNDING):
                part = 1.0 if step == 0 else min(need_s / lasts_s[step], 1.0)
                taken.append((step, gpus * part))
                now_gpus = int(taken[0][1]) if taken[0][0] == 0 else 0
                return MinimumShare(
                    level=limits[index], gpus=now_gpus, end_s=start_s + need_s
                ), taken
            if usable_s:
                left -= (usable_s - delay_s) * rates[chosen]
                delay_s = 0.0
            taken.append((step, gpus))
        return None

    def _rigid(self, need: Need, index: int) -> tuple[MinimumShare, list[tuple[int, float]]] | None:
        """Return the first time that a level is free without a break for as long as it takes."""
        level, took_s = need.levels.gpus[index], need.alone_s(index)
        begin_s: float | None = None
        taken: list[tuple[int, float]] = []
        for step, start_s in enumerate(self.starts_s):
            if self.free[step] + ROUNDING < level:
                begin_s, taken = None, []
                continue
            begin_s = start_s if begin_s is None else begin_s
            end_s = begin_s + took_s
            if end_s > need.deadline_s + ROUNDING * took_s:
                return None
            if end_s <= start_s + self.lasts_s[step]:
                part = 1.0 if step == 0 else (end_s - start_s) / self.lasts_s[step]
                taken.append((step, level * part))
                now_gpus = level if taken[0][0] == 0 else 0
                return MinimumShare(level=level, gpus=now_gpus, end_s=end_s), taken
            taken.append((step, level))
        return None


def _mean(steps: Sequence[tuple[float, int]], start_s: float, stop_s: float) -> float:
    """Return what is free of a step function between two times, on average."""
    total = 0.0
    for number, (begin_s, free) in enumerate(steps):
        end_s = steps[number + 1][0] if number + 1 < len(steps) else stop_s
        total += free * max(min(end_s, stop_s) - max(begin_s, start_s), 0.0)
    return total / (stop_s - start_s)


def steps_for(now_s: float, deadlines_s: Sequence[float], most: int) -> list[float]:
    """Return when steps begin: at deadlines, or some of them, and ever longer after now.

    Args:
        now_s: the first one begins now.
        deadlines_s: in any order; those that have passed make no difference.
        most: about so many steps.
    """
    coming = sorted(each_s for each_s in deadlines_s if each_s > now_s)
    if not coming:
        return [now_s]
    last_s = coming[-1]
    half = max(most // 2, 1)
    if len(coming) > half:
        coming = [coming[(number + 1) * (len(coming) - 1) // half] for number in range(half)]
    growth = max((last_s - now_s) / FIRST_STEP_S, 2.0) ** (1 / half)
    length_s, times_s = FIRST_STEP_S, {now_s, last_s, *coming}
    for _ in range(half):
        times_s.add(now_s + length_s)
        length_s *= growth
    found: list[float] = []
    for each_s in sorted(times_s):
        if each_s <= last_s and (not found or each_s - found[-1] >= 1.0):
            found.append(each_s)
    return [*found, last_s] if found[-1] < last_s else found
