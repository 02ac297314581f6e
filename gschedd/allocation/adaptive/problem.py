"""The assignment of configurations to jobs: a multiple-choice knapsack with few resources.

Each job takes at most one of its columns, which are configurations with a cost; a job without one
costs what it costs to wait. A configuration uses units of few resources, of which so many are
there; mostly a resource is a GPU type, and its units are GPUs.

    minimise  sum of the costs of the columns taken + sum of the waiting costs of the other jobs
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class AssignmentError(ValueError):
    """An assignment problem that contradicts itself; the text says in what."""


class Problem(Struct, frozen=True, kw_only=True, eq=False):
    """Which jobs may have which configurations, and at what cost.

    Attributes:
        waiting_cost: of each job without a configuration, shape ``(J,)``; infinite: it must have
            one.
        usage: units of each resource that a configuration uses, shape ``(R, C)``, none negative.
        capacity: units of each resource, shape ``(R,)``.
        job, configuration: of each column, shape ``(K,)``; columns of one job stand together, in
            ascending order of jobs.
        cost: of each column, shape ``(K,)``, finite.
        resources: names of the resources, for messages.
    """

    waiting_cost: Floats
    usage: Floats
    capacity: Floats
    job: Ints
    configuration: Ints
    cost: Floats
    resources: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise AssignmentError where shapes or values contradict each other."""
        jobs, (rows, configurations) = len(self.waiting_cost), self.usage.shape
        if self.capacity.shape != (rows,):
            raise AssignmentError(
                f"{len(self.capacity)} capacities for {rows} resources: give one for each"
            )
        if not len(self.job) == len(self.configuration) == len(self.cost):
            raise AssignmentError("jobs, configurations and costs of columns differ in number")
        if len(self.job) and not (self.job[0] >= 0 and self.job[-1] < jobs):
            raise AssignmentError("a column names a job that does not exist")
        if np.any(np.diff(self.job) < 0):
            raise AssignmentError("columns are not in the order of their jobs")
        if len(self.job) and not (
            self.configuration.min() >= 0 and self.configuration.max() < configurations
        ):
            raise AssignmentError("a column names a configuration that does not exist")
        if not np.all(np.isfinite(self.cost)):
            raise AssignmentError("a column has no finite cost: leave it out to forbid it")
        if np.any(self.usage < 0) or not np.all(np.isfinite(self.usage)):
            raise AssignmentError("a configuration uses less than nothing")
        if np.any(np.isnan(self.waiting_cost)) or np.any(self.waiting_cost == -np.inf):
            raise AssignmentError("the cost of waiting is not a number")
        if np.any(self.capacity < 0):
            row = int(np.argmin(self.capacity))
            raise AssignmentError(
                f"{self.name(row)} has {self.capacity[row]:g} units: there can be no less than 0"
            )

    @property
    def jobs(self) -> int:
        """Return the number of jobs."""
        return len(self.waiting_cost)

    def name(self, row: int) -> str:
        """Return the name of a resource."""
        return self.resources[row] if row < len(self.resources) else f"type {row}"

    def objective(self, chosen: Ints) -> float:
        """Return what an assignment costs.

        Args:
            chosen: the column of each job, or -1, shape ``(J,)``.
        """
        taken = chosen[chosen >= 0]
        return float(self.cost[taken].sum() + self.waiting_cost[chosen < 0].sum())

    def used(self, chosen: Ints) -> Floats:
        """Return the units that an assignment uses, shape ``(R,)``."""
        taken = self.configuration[chosen[chosen >= 0]]
        used: Floats = self.usage[:, taken].sum(axis=1)
        return used


class Assignment(Struct, frozen=True, kw_only=True, eq=False):
    """A feasible assignment, and how far from the best it may be.

    Attributes:
        configuration: of each job, -1 where it waits; shape ``(J,)``.
        objective: what it costs.
        bound: no assignment costs less.
        method: how it was found, in words.
        considered: columns among which the choice was made exactly; all others were proven worse,
            or left out (then the bound says what that may have cost).
    """

    configuration: Ints
    objective: float
    bound: float
    method: str
    considered: int = 0

    @property
    def gap(self) -> float:
        """Return the objective minus the bound, relative to the objective; 0 is an optimum."""
        difference = max(self.objective - self.bound, 0.0)
        return difference / max(abs(self.objective), 1e-12) if difference else 0.0


def in_order(problem: Problem, configuration: Ints, among: Flags) -> Ints:
    """Return the same choices with jobs that are alike served in their order, shape ``(J,)``.

    Jobs are alike where they have the same columns at the same costs, so that the objective stays.

    Args:
        configuration: of each job, -1 where it waits; shape ``(J,)``.
        among: the jobs whose choices may be exchanged, shape ``(J,)``.
    """
    ordered = configuration.copy()
    starts = np.searchsorted(problem.job, np.arange(problem.jobs + 1))
    alike: dict[tuple[bytes, bytes, float], list[int]] = {}
    for job in np.flatnonzero(among).tolist():
        start, end = starts[job], starts[job + 1]
        columns, cost = problem.configuration[start:end], problem.cost[start:end]
        key = (columns.tobytes(), cost.tobytes(), float(problem.waiting_cost[job]))
        alike.setdefault(key, []).append(job)
    for (columns_of, cost_of, waiting), jobs in alike.items():
        if len(jobs) > 1:
            price = dict(
                zip(np.frombuffer(columns_of, np.int64), np.frombuffer(cost_of), strict=True)
            )
            chosen = sorted(configuration[jobs], key=lambda each: (price.get(each, waiting), each))
            ordered[jobs] = chosen
    return ordered
