"""The best assignment of configurations to jobs, with a proven gap: prices, rounding, cores.

Prices give a bound (`prices`), each job's best choice at them gives an assignment (`rounding`), and
the difference of both says which columns a better one may hold (`core`). These are few: with R
resources at most R jobs are undecided in the linear relaxation, however many there are. Cores are
solved in growing size until the gap is small enough. All of it is deterministic, unless a time
limit ends it.
"""

from typing import Final

import numpy as np
from msgspec import structs

from gschedd.allocation.adaptive.core import SearchLimits, solve_core
from gschedd.allocation.adaptive.prices import Priced, best_prices
from gschedd.allocation.adaptive.problem import Assignment, AssignmentError, Ints, Problem
from gschedd.allocation.adaptive.rounding import rounded

#: Each core may have so many times the columns of the one before.
GROWTH: Final = 4
#: Columns among which a rounded assignment is repaired, beside one for each job.
REPAIR: Final = 2_000
#: More units than there are by no more than this part are a matter of rounding.
NOISE: Final = 1e-9


def solve(problem: Problem, limits: SearchLimits | None = None) -> Assignment:
    """Return an assignment, the best as far as the limits allow, and its gap.

    Raises:
        AssignmentError: jobs that must have a configuration leave no feasible assignment.
    """
    limits = limits or SearchLimits()
    small = _Reduced(problem)
    if not len(small.problem.cost):
        return small.whole(np.full(problem.jobs, -1, dtype=np.int64), -np.inf, "decided", 0)
    priced = best_prices(small.problem)
    search = _CoreSearch(small, priced, limits)
    search.run()
    if search.chosen is None:
        raise AssignmentError(
            "jobs that must have a configuration do not fit together: "
            + ", ".join(problem.name(row) for row in range(len(problem.capacity)))
        )
    return small.whole(search.chosen, search.bound, search.method, search.considered)


class _Reduced:
    """A problem without what is decided from the start.

    Columns that use more than there is, or cost more than to wait, are left out; jobs that must
    have the only column they have get it. Costs are those above the least of each job, in units of
    the largest of these, so that no tolerance depends on how costs are stated.

    Attributes:
        base: what all jobs cost at least, in the original unit.
        unit: of the costs of the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.original = problem
        self.fixed = np.full(problem.jobs, -1, dtype=np.int64)
        must = ~np.isfinite(problem.waiting_cost)
        columns = np.bincount(problem.job, minlength=problem.jobs)
        single = must & (columns == 1)
        at = np.flatnonzero(single[problem.job])
        self.fixed[problem.job[at]] = at
        used = problem.used(self.fixed)
        left = problem.capacity - used
        for row in np.flatnonzero(left < -NOISE * np.maximum(problem.capacity, 1.0)):
            raise AssignmentError(
                f"jobs that keep their configuration use {used[row]:g} units of"
                f" {problem.name(int(row))}, which has {problem.capacity[row]:g}:"
                " raise its capacity, or let fewer jobs keep theirs"
            )
        left = np.maximum(left, 0.0)
        usage = problem.usage[:, problem.configuration]
        keep = ~single[problem.job] & (problem.cost <= problem.waiting_cost[problem.job])
        keep &= np.all(usage <= left[:, None] * (1 + NOISE), axis=0)
        self.columns: Ints = np.flatnonzero(keep)
        remaining = np.bincount(problem.job[self.columns], minlength=problem.jobs)
        for job in np.flatnonzero(must & ~single & (remaining == 0)):
            raise AssignmentError(
                f"job {job} must have a configuration, but none that it may have fits"
            )
        waits = np.where(single, 0.0, problem.waiting_cost)
        job, cost = problem.job[self.columns], problem.cost[self.columns]
        least = waits.copy()
        np.minimum.at(least, job, cost)
        above = np.concatenate([cost - least[job], (waits - least)[np.isfinite(waits)]])
        self.unit = float(above.max(initial=0.0)) or 1.0
        self.problem = structs.replace(
            problem,
            waiting_cost=(waits - least) / self.unit,
            capacity=left,
            job=job,
            configuration=problem.configuration[self.columns],
            cost=(cost - least[job]) / self.unit,
        )
        taken = self.fixed[self.fixed >= 0]
        self.base = float(problem.cost[taken].sum() + least.sum())

    def whole(self, chosen: Ints, bound: float, method: str, considered: int) -> Assignment:
        """Return an assignment of the original problem from one of this."""
        columns = self.fixed.copy()
        found = chosen >= 0
        columns[found] = self.columns[chosen[found]]
        configuration = np.full(len(columns), -1, dtype=np.int64)
        runs = columns >= 0
        configuration[runs] = self.original.configuration[columns[runs]]
        objective = self.original.objective(columns)
        return Assignment(
            configuration=configuration,
            objective=objective,
            bound=min(self.base + self.unit * bound, objective) if len(self.columns) else objective,
            method=method,
            considered=considered,
        )


class _CoreSearch:
    """Looks for better assignments in growing cores."""

    def __init__(self, reduced: _Reduced, priced: Priced, limits: SearchLimits) -> None:
        self.problem = problem = reduced.problem
        self._unit, self._base = reduced.unit, reduced.base
        self.priced = priced
        self.limits = limits
        self.bound = priced.bound
        self.method = "rounding"
        self.considered = 0
        self.chosen = rounded(problem, priced, width=problem.jobs + REPAIR)
        self.objective = np.inf if self.chosen is None else problem.objective(self.chosen)

    @property
    def _enough(self) -> float:
        """Return the difference between objective and bound that is small enough."""
        return self.limits.gap * max(abs(self._base / self._unit + self.bound), 1e-300)

    def run(self) -> None:
        """Solve cores until the gap is small enough, or the next one is too large."""
        least = np.sort(np.concatenate([self.priced.reduced, self.priced.waiting]))
        least = least[np.isfinite(least)]
        size, width = self.limits.columns_first, -1.0
        while size <= self.limits.columns and self.objective - self.bound > self._enough:
            wider = float(least[min(self.problem.jobs + size, len(least) - 1)])
            # a hair more than the gap, as reduced costs are rounded
            needed = (self.objective - self.bound) * (1 + NOISE)
            size *= GROWTH
            if min(wider, needed) > width:
                width = min(wider, needed)
                self._solve(width)
            if wider >= needed or wider >= least[-1]:
                break

    def _solve(self, width: float) -> None:
        everything = self.priced.reduced.max() <= width and self.priced.waiting.max() <= width
        outside = np.inf if everything else self.priced.bound + width
        core = solve_core(
            self.problem,
            self.priced,
            width=width,
            limits=self.limits,
            enough=self._enough / 2,
        )
        self.considered = int(np.count_nonzero(self.priced.reduced <= width))
        if core.chosen is not None:
            objective = self.problem.objective(core.chosen)
            if objective < self.objective:
                self.chosen, self.objective, self.method = core.chosen, objective, "core"
        self.bound = max(self.bound, min(outside, core.bound))
