"""The core of an assignment: the columns that a better solution may hold, solved exactly.

A column whose reduced cost is more than what the best solution known lies above the bound is in no
better solution. The others are the core. Jobs with one column left are decided; the rest is a small
integer programme. Where the core is limited to the columns with the least reduced cost, e at most,
each assignment either lies in it or costs at least the bound plus e: so its optimum proves a bound
for all.

Source: the core concept, Balas and Zemel, "An algorithm for large zero-one knapsack problems",
Operations Research 28(5), 1980; Pisinger, "A minimal algorithm for the multiple-choice knapsack
problem", EJOR 83(2), 1995.
"""

from typing import Final

import highspy
import numpy as np
from msgspec import Struct

from gschedd.allocation.adaptive.prices import Priced, quiet_highs
from gschedd.allocation.adaptive.problem import Ints, Problem

#: Costs are scaled so that the largest is this, as the tolerances of HiGHS are absolute.
LARGEST_COST: Final = 1e3
#: By so much the bound of HiGHS may be wrong.
TOLERANCE: Final = 2e-6
#: Statuses of HiGHS with which it may have a solution and a bound.
ENDED: Final = frozenset(
    {
        highspy.HighsModelStatus.kOptimal,
        highspy.HighsModelStatus.kTimeLimit,
        highspy.HighsModelStatus.kIterationLimit,
        highspy.HighsModelStatus.kSolutionLimit,
        highspy.HighsModelStatus.kInterrupt,
    }
)


class SearchLimits(Struct, frozen=True, kw_only=True):
    """When a search ends.

    Attributes:
        gap: a solution that is proven to be so near to the best is good enough; relative.
        nodes: of the branch-and-bound tree; the same on each machine, in contrast to time.
        time_s: of each core, after which its best solution so far is taken, seconds.
        columns_first: of the first core, beside one for each job.
        columns: of a core, at most, beside one for each job.
    """

    gap: float = 1e-5
    nodes: int = 200
    time_s: float = 5.0
    columns_first: int = 300
    columns: int = 5_000


class Solved(Struct, frozen=True, kw_only=True, eq=False):
    """What a core has come to.

    Attributes:
        chosen: the column of each job, shape ``(J,)``; None: none was found.
        bound: no assignment that lies in the core costs less.
    """

    chosen: Ints | None
    bound: float


def solve_core(
    problem: Problem, priced: Priced, *, width: float, limits: SearchLimits, enough: float
) -> Solved:
    """Solve the core of columns whose reduced cost is at most ``width``.

    Args:
        enough: difference between solution and bound with which the search may end.
    """
    return _Core(problem, priced, width).solve(limits, enough)


class _Core:
    """An integer programme: how many of the jobs that are alike have which column.

    Jobs are alike where their columns in the core have the same configurations and costs.
    """

    def __init__(self, problem: Problem, priced: Priced, width: float) -> None:
        self.problem = problem
        within = np.flatnonzero(priced.reduced <= width)
        job = problem.job[within]
        options = np.bincount(job, minlength=problem.jobs)
        waits = priced.waiting <= width
        self.fixed = np.full(problem.jobs, -1, dtype=np.int64)
        single = (options == 1) & ~waits
        at = single[job]
        self.fixed[job[at]] = within[at]
        self.open = (options > 0) & ~single
        self.columns = within[~at]
        self.waits = waits
        decided = ~self.open
        self.fixed_cost = float(
            problem.cost[self.fixed[decided & (self.fixed >= 0)]].sum()
            + problem.waiting_cost[decided & (self.fixed < 0)].sum()
        )
        self.left = problem.capacity - problem.used(self.fixed)
        self._group()

    def _group(self) -> None:
        """Put jobs together that are alike: `of_group` has the columns of each of them in turn."""
        problem = self.problem
        groups: dict[bytes, list[Ints]] = {}
        job = problem.job[self.columns]
        firsts = np.flatnonzero(np.diff(job, prepend=-1))
        for columns in np.split(self.columns, firsts[1:]) if len(job) else ():
            first = int(problem.job[columns[0]])
            key = (
                problem.configuration[columns].tobytes()
                + problem.cost[columns].tobytes()
                + np.array([problem.waiting_cost[first] if self.waits[first] else np.inf]).tobytes()
            )
            groups.setdefault(key, []).append(columns)
        self.groups = list(groups.values())

    def solve(self, limits: SearchLimits, enough: float) -> Solved:
        """Return the best assignment in the core that was found, and its bound."""
        problem = self.problem
        if not self.groups:
            good = bool(np.all(self.left >= -1e-9 * max(1.0, float(problem.capacity.max()))))
            return Solved(
                chosen=self.fixed if good else None, bound=self.fixed_cost if good else np.inf
            )
        highs, unit = self._model()
        highs.setOptionValue("mip_rel_gap", 0.0)
        highs.setOptionValue("mip_abs_gap", enough / unit)
        highs.setOptionValue("mip_max_nodes", limits.nodes)
        highs.setOptionValue("time_limit", limits.time_s)
        highs.run()
        status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Solved(chosen=None, bound=np.inf)
        if status not in ENDED:
            return Solved(chosen=None, bound=-np.inf)
        info = highs.getInfo()
        # HiGHS may be wrong by its tolerance, which is in its own unit
        bound = (float(info.mip_dual_bound) - TOLERANCE) * unit + self.fixed_cost
        values = highs.getSolution().col_value
        found = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible.value:
            found = self._assigned(np.rint(np.array(values)).astype(np.int64))
        return Solved(chosen=found, bound=bound)

    def _model(self) -> tuple[highspy.Highs, float]:
        """Return the programme, and what a unit of its costs is worth."""
        problem = self.problem
        highs = quiet_highs()
        lp = highspy.HighsLp()
        firsts = [group[0] for group in self.groups]
        counts = np.array([len(group) for group in self.groups])
        columns = np.concatenate(firsts)
        group_of = np.repeat(np.arange(len(firsts)), [len(first) for first in firsts])
        jobs = np.array([problem.job[first[0]] for first in firsts])
        may_wait = self.waits[jobs]
        rests = np.where(may_wait, problem.waiting_cost[jobs], 0.0)
        usage = problem.usage[:, problem.configuration[columns]]
        rows, width = usage.shape
        infinity = highspy.kHighsInf
        lp.num_col_ = width
        lp.num_row_ = rows + len(firsts)
        # a group that may wait pays for it unless it runs
        cost = problem.cost[columns] - rests[group_of]
        unit = max(float(np.abs(cost).max()), 1e-300) / LARGEST_COST
        lp.col_cost_ = cost / unit
        lp.offset_ = float((rests * counts).sum()) / unit
        lp.col_lower_ = np.zeros(width)
        lp.col_upper_ = counts[group_of].astype(float)
        lp.row_lower_ = np.concatenate(
            [np.full(rows, -infinity), np.where(may_wait, -infinity, counts)]
        )
        lp.row_upper_ = np.concatenate([self.left, counts])
        resource, column = np.nonzero(usage)
        index = np.concatenate([resource, rows + group_of])
        of_column = np.concatenate([column, np.arange(width)])
        value = np.concatenate([usage[resource, column], np.ones(width)])
        order = np.argsort(of_column, kind="stable")
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        starts = np.cumsum(np.bincount(of_column, minlength=width))
        lp.a_matrix_.start_ = np.concatenate([[0], starts])
        lp.a_matrix_.index_ = index[order]
        lp.a_matrix_.value_ = value[order]
        lp.integrality_ = [highspy.HighsVarType.kInteger] * width
        highs.passModel(lp)
        return highs, unit

    def _assigned(self, numbers: Ints) -> Ints:
        """Return the column of each job from how many of each group have which."""
        chosen = self.fixed.copy()
        at = 0
        for group in self.groups:
            width = len(group[0])
            which = np.repeat(np.arange(width), numbers[at : at + width])
            at += width
            for columns, option in zip(group, which, strict=False):
                chosen[self.problem.job[columns[0]]] = columns[option]
        return chosen
