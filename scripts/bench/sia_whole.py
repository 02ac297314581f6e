"""The whole assignment problem as one integer programme, solved by HiGHS; for comparison."""

import highspy
import numpy as np

from gschedd.allocation.adaptive.prices import quiet_highs
from gschedd.allocation.adaptive.problem import Problem


def solve_whole(problem: Problem, *, relaxed: bool = False, time_s: float = 120.0) -> float:
    """Return the objective of the best solution found.

    Args:
        problem: every job of which may wait.
        relaxed: the linear relaxation only.
        time_s: limit, seconds.
    """
    highs = quiet_highs()
    highs.setOptionValue("time_limit", time_s)
    highs.setOptionValue("mip_rel_gap", 1e-5)
    rows, width = len(problem.capacity), len(problem.cost)
    usage = problem.usage[:, problem.configuration]
    resource, column = np.nonzero(usage)
    of_column = np.concatenate([column, np.arange(width)])
    order = np.argsort(of_column, kind="stable")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = width, rows + problem.jobs
    lp.col_cost_ = problem.cost - problem.waiting_cost[problem.job]
    lp.offset_ = float(problem.waiting_cost.sum())
    lp.col_lower_, lp.col_upper_ = np.zeros(width), np.ones(width)
    lp.row_lower_ = np.full(rows + problem.jobs, -highspy.kHighsInf)
    lp.row_upper_ = np.concatenate([problem.capacity, np.ones(problem.jobs)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    starts = np.cumsum(np.bincount(of_column, minlength=width))
    lp.a_matrix_.start_ = np.concatenate([[0], starts])
    lp.a_matrix_.index_ = np.concatenate([resource, rows + problem.job])[order]
    lp.a_matrix_.value_ = np.concatenate([usage[resource, column], np.ones(width)])[order]
    if not relaxed:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * width
    highs.passModel(lp)
    highs.run()
    return float(highs.getInfo().objective_function_value)
