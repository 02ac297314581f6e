"""A whole assignment from prices: each job's best choice, repaired until it fits, then improved."""

from typing import Final

import numpy as np

from gschedd.allocation.adaptive.prices import Priced
from gschedd.allocation.adaptive.problem import Ints, Problem

#: A violation or a gain below this part of the largest capacity, or cost, is none.
NOISE: Final = 1e-9


def rounded(problem: Problem, priced: Priced, *, width: int) -> Ints | None:
    """Return the column of each job, -1 where it waits, shape ``(J,)``; None: no such was found.

    Each job takes what is cheapest for it at the prices. Where more is used than there is, jobs
    change to what uses less, those first that lose least for what they give up. What is then left
    goes where it gains most.

    Args:
        problem: every job of which has columns.
        priced: prices, best near the highest bound.
        width: columns that repair and improvement look at first: those of the least reduced cost.
    """
    chosen = _cheapest(problem, priced)
    for columns in _candidates(priced, width):
        swaps = _Swaps(problem, priced, chosen, columns)
        if swaps.repair():
            swaps.improve()
            return swaps.chosen
    return None


def _cheapest(problem: Problem, priced: Priced) -> Ints:
    chosen = np.full(problem.jobs, -1, dtype=np.int64)
    best = np.flatnonzero(priced.reduced <= 0)[::-1]
    chosen[problem.job[best]] = best  # the first of each job is written last
    chosen[priced.waiting <= 0] = -1
    return chosen


def _candidates(priced: Priced, width: int) -> list[Ints]:
    """Return the columns of the least reduced cost, and all."""
    everything: Ints = np.arange(len(priced.reduced))
    if len(everything) <= width:
        return [everything]
    few: Ints = np.sort(np.argpartition(priced.reduced, width)[:width])
    return [few, everything]


class _Swaps:
    """Changes of one job at a time.

    A candidate is a column, or waiting, for a job that has something else.
    """

    def __init__(self, problem: Problem, priced: Priced, chosen: Ints, columns: Ints) -> None:
        self.problem = problem
        self.chosen = chosen.copy()
        jobs = np.unique(problem.job[columns])
        rests = jobs[np.isfinite(problem.waiting_cost[jobs])]
        nothing = np.full(len(rests), -1, dtype=np.int64)
        self._job = np.concatenate([problem.job[columns], rests])
        self._column = np.concatenate([columns, nothing])
        self._cost = np.concatenate([problem.cost[columns], problem.waiting_cost[rests]])
        self._reduced = np.concatenate([priced.reduced[columns], priced.waiting[rests]])
        usage = problem.usage[:, problem.configuration[columns]]
        self._usage = np.hstack([usage, np.zeros((len(usage), len(rests)))])
        self._noise = NOISE * max(float(problem.capacity.max(initial=0.0)), 1.0)
        # what the job of each candidate has now
        self._own_cost = np.empty(0)
        self._own_reduced = np.empty(0)
        self._own_usage = np.empty((0, 0))
        self.excess = problem.used(self.chosen) - problem.capacity
        self._look(priced)
        self._priced = priced

    def _look(self, priced: Priced) -> None:
        problem, own = self.problem, self.chosen[self._job]
        has = own >= 0
        self._own_cost = np.where(has, problem.cost[own], problem.waiting_cost[self._job])
        self._own_reduced = np.where(has, priced.reduced[own], priced.waiting[self._job])
        self._own_usage = np.where(has, problem.usage[:, problem.configuration[own]], 0.0)

    def _change(self, at: int) -> None:
        """Let the job of a candidate have it."""
        job, column = int(self._job[at]), int(self._column[at])
        self.excess = self.excess + self._usage[:, at] - self._own_usage[:, at]
        self.chosen[job] = column
        same = self._job == job
        self._own_cost[same] = self._cost[at]
        self._own_reduced[same] = self._reduced[at]
        self._own_usage[:, same] = self._usage[:, [at]]

    def repair(self) -> bool:
        """Change jobs until all fits; return whether it does."""
        for _ in range(4 * self.problem.jobs):
            over = np.maximum(self.excess, 0.0)
            if not np.any(over > self._noise):
                return True
            after = self.excess[:, None] + self._usage - self._own_usage
            relieved = over.sum() - np.maximum(after, 0.0).sum(axis=0)
            helps = np.flatnonzero(relieved > self._noise)
            if not len(helps):
                return False
            lost = self._reduced[helps] - self._own_reduced[helps]
            self._change(int(helps[np.argmin(lost / relieved[helps])]))
        return False

    def improve(self) -> None:
        """Change jobs to what is cheaper and fits into what is left."""
        least = NOISE * max(float(np.abs(self._cost).max(initial=0.0)), 1e-300)
        for _ in range(4 * self.problem.jobs):
            gain = self._own_cost - self._cost
            better = np.flatnonzero(gain > least)
            after = self.excess[:, None] + self._usage[:, better] - self._own_usage[:, better]
            better = better[np.all(after <= self._noise, axis=0)]
            if not len(better):
                return
            self._change(int(better[np.argmax(gain[better])]))
