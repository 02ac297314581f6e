"""Prices of resources: the Lagrangian dual of an assignment, which is as good as its relaxation.

With a price for each unit of each resource the jobs decide alone: each takes the column that is
cheapest with its price, or waits. What they then pay together, less the worth of all units, is a
lower bound at any prices. The best prices give the bound of the linear relaxation, as each job's
choices are integral. There are as few prices as resources, so that cutting planes in that space
find them within some tens of evaluations, each of which looks at every column once.

Source: Lagrangian relaxation and cutting planes, Kelley, J. SIAM 8(4), 1960. Points between the
best prices so far and those of the cutting-plane model: Ben-Ameur and Neto, "Acceleration
of cutting-plane and column generation algorithms", Networks 49(1), 2007.
"""

from typing import Final

import highspy
import numpy as np
from msgspec import Struct

from gschedd.allocation.adaptive.problem import Floats, Problem

#: Evaluations at most; three resources take about 25, six about 60.
MAX_STEPS: Final = 120
#: The bound is improved until no more than this part of it may be missing.
TOLERANCE: Final = 1e-6
#: How far from the best prices so far towards those of the model, the next prices lie.
STEP: Final = 0.5


class Priced(Struct, frozen=True, kw_only=True, eq=False):
    """What jobs do at some prices.

    Attributes:
        prices: of a unit of each resource, shape ``(R,)``.
        bound: no assignment costs less.
        reduced: cost of each column with its price, less what its job pays at best, shape ``(K,)``;
            never negative.
        waiting: the same of waiting, shape ``(J,)``; infinite for jobs that must not wait.
        steps: evaluations that it took.
    """

    prices: Floats
    bound: float
    reduced: Floats
    waiting: Floats
    steps: int = 0


class Evaluator:
    """Evaluates prices of one problem, whose jobs all have columns."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._firsts = np.flatnonzero(np.diff(problem.job, prepend=-1))
        self._of = problem.job[self._firsts]
        self._counts = np.diff(self._firsts, append=len(problem.job))
        without = np.ones(problem.jobs, dtype=bool)
        without[self._of] = False
        self._idle_cost = float(problem.waiting_cost[without].sum())
        self._waiting = problem.waiting_cost[self._of]

    def value(self, prices: Floats) -> tuple[float, Floats]:
        """Return the bound at some prices, and how it changes with them, shape ``(R,)``."""
        problem = self.problem
        priced = problem.cost + (prices @ problem.usage)[problem.configuration]
        least = np.minimum.reduceat(priced, self._firsts)
        runs = least < self._waiting
        bound = float(np.where(runs, least, self._waiting).sum()) + self._idle_cost
        bound -= float(prices @ problem.capacity)
        hits = np.flatnonzero(priced == np.repeat(least, self._counts))
        jobs = problem.job[hits]
        firsts = hits[np.flatnonzero(np.diff(jobs, prepend=-1))]
        taken = np.bincount(problem.configuration[firsts[runs]], minlength=problem.usage.shape[1])
        return bound, problem.usage @ taken - problem.capacity

    def priced(self, prices: Floats, bound: float, steps: int) -> Priced:
        """Return what jobs do at prices whose bound is known."""
        problem = self.problem
        priced = problem.cost + (prices @ problem.usage)[problem.configuration]
        least = np.minimum(np.minimum.reduceat(priced, self._firsts), self._waiting)
        waiting = np.zeros(problem.jobs)
        waiting[self._of] = self._waiting - least
        return Priced(
            prices=prices,
            bound=bound,
            reduced=priced - np.repeat(least, self._counts),
            waiting=waiting,
            steps=steps,
        )


def best_prices(problem: Problem, *, max_steps: int = MAX_STEPS) -> Priced:
    """Return prices with the best bound, as far as `TOLERANCE` and ``max_steps`` go."""
    evaluator = Evaluator(problem)
    most = _highest(problem)
    best = np.zeros(len(most))
    best_bound, slope = evaluator.value(best)
    steps = 1
    if np.all(slope <= 0):
        return evaluator.priced(best, best_bound, steps)
    model = _CuttingPlanes(most)
    model.cut(best, best_bound, slope)
    while steps < max_steps:
        above, target = model.highest()
        if above - best_bound <= TOLERANCE * max(abs(best_bound), 1e-9):
            break
        point = best + STEP * (target - best)
        bound, slope = evaluator.value(point)
        steps += 1
        model.cut(point, bound, slope)
        if bound > best_bound:
            best, best_bound = point, bound
    return evaluator.priced(best, best_bound, steps)


def _highest(problem: Problem) -> Floats:
    """Return prices above which nobody uses a resource, shape ``(R,)``."""
    finite = problem.waiting_cost[np.isfinite(problem.waiting_cost)]
    most = np.zeros(len(problem.capacity))
    if not len(problem.cost):
        return most
    # a job that must not wait pays at most what keeps all others from running, and more
    ceiling = max(float(finite.max(initial=0.0)), float(problem.cost.max()))
    must = 2 * problem.jobs * (ceiling - float(problem.cost.min()) + 1.0)
    worth = np.minimum(problem.waiting_cost[problem.job], must) - problem.cost
    for row, usage in enumerate(problem.usage):
        units = usage[problem.configuration]
        used = units > 0
        most[row] = max(float((worth[used] / units[used]).max(initial=0.0)), 0.0)
    return most


class _CuttingPlanes:
    """The cutting-plane model: the least of all cuts, at prices from 0 to the highest."""

    def __init__(self, most: Floats) -> None:
        self._rows = len(most)
        self._highs = quiet_highs()
        infinity = highspy.kHighsInf
        for price in most:
            self._highs.addVar(0.0, float(price))
        self._highs.addVar(-infinity, infinity)
        self._highs.changeColCost(self._rows, -1.0)
        self._indices = np.arange(self._rows + 1, dtype=np.int32)

    def cut(self, prices: Floats, bound: float, slope: Floats) -> None:
        """Add what is known at some prices: no prices have more than this bound and slope say."""
        limit = bound - float(slope @ prices)
        values = np.append(-slope, 1.0)
        self._highs.addRow(-highspy.kHighsInf, limit, self._rows + 1, self._indices, values)

    def highest(self) -> tuple[float, Floats]:
        """Return the highest bound that the model allows, and its prices."""
        self._highs.run()
        values: Floats = np.array(self._highs.getSolution().col_value)
        return float(values[-1]), np.maximum(values[:-1], 0.0)


def quiet_highs() -> highspy.Highs:
    """Return a solver that prints nothing, uses one thread and always takes the same way."""
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    return highs
