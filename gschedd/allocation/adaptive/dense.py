"""Assignment problems as tables of costs: a row for each job, a column for each configuration."""

import numpy as np

from gschedd.allocation.adaptive.problem import (
    AssignmentError,
    Floats,
    Ints,
    Problem,
)


def from_table(
    cost: Floats,
    config_type: Ints,
    config_gpus: Ints,
    capacity: Floats,
    lambda_n: float,
    *,
    kept: Ints | None = None,
) -> Problem:
    """Return the problem that a table of costs states.

    Args:
        cost: of each configuration for each job, shape ``(J, C)``; infinite or not a number where a
            job may not have it.
        config_type: the GPU type of each configuration, an index into ``capacity``; shape ``(C,)``.
        config_gpus: how many GPUs it has, shape ``(C,)``.
        capacity: GPUs of each type, shape ``(T,)``.
        lambda_n: cost of a job without a configuration.
        kept: what a job keeps: a configuration, or -1 for none; -2: it keeps nothing. Shape
            ``(J,)``; None: no job keeps anything.

    Raises:
        AssignmentError: the arrays contradict each other.
    """
    jobs, configurations = cost.shape
    types = len(capacity)
    for name, array in (("config_type", config_type), ("config_gpus", config_gpus)):
        if array.shape != (configurations,):
            raise AssignmentError(
                f"{name} has shape {array.shape}, and cost has {configurations} configurations"
                " (its columns): give one value for each"
            )
    if configurations and not (config_type.min() >= 0 and config_type.max() < types):
        raise AssignmentError(
            f"config_type names type {int(config_type.max())}, and capacity has {types} types:"
            f" use 0 to {types - 1}"
        )
    usage = np.zeros((types, configurations))
    usage[config_type, np.arange(configurations)] = config_gpus
    allowed = np.isfinite(cost)
    waiting_cost = np.full(jobs, lambda_n, dtype=float)
    if kept is not None:
        stays = kept >= 0
        rows = np.flatnonzero(stays)
        lost = rows[~allowed[rows, kept[rows]]]
        if len(lost):
            job = int(lost[0])
            raise AssignmentError(
                f"job {job} keeps configuration {int(kept[job])}, but may not have it: its cost is"
                f" {cost[job, kept[job]]:g}"
            )
        allowed[kept >= -1] = False
        allowed[rows, kept[rows]] = True
        waiting_cost[rows] = np.inf
    job, configuration = np.nonzero(allowed)
    return Problem(
        waiting_cost=waiting_cost,
        usage=usage,
        capacity=np.asarray(capacity, dtype=float),
        job=job,
        configuration=configuration,
        cost=np.asarray(cost[job, configuration], dtype=float),
    )


def kept_by(prev_config: Ints, forced_jobs: Ints, configurations: int) -> Ints:
    """Return what each job keeps, as `from_table` wants it, shape ``(J,)``.

    Args:
        prev_config: the configuration that each job has, -1 where it has none; shape ``(J,)``.
        forced_jobs: which jobs keep theirs: a boolean for each job, or indices of jobs.
        configurations: how many there are.

    Raises:
        AssignmentError: a job or a configuration does not exist.
    """
    jobs = len(prev_config)
    if jobs and not (prev_config.min() >= -1 and prev_config.max() < configurations):
        raise AssignmentError(
            f"prev_config holds {int(prev_config.min())} to {int(prev_config.max())}:"
            f" configurations are 0 to {configurations - 1}, and -1 is none"
        )
    if forced_jobs.dtype == np.bool_ or _is_mask(forced_jobs, jobs):
        if forced_jobs.shape != (jobs,):
            raise AssignmentError(
                f"forced_jobs has shape {forced_jobs.shape}: give one boolean for each of {jobs}"
                " jobs, or the indices of some"
            )
        forced = forced_jobs.astype(bool)
    else:
        if len(forced_jobs) and not (forced_jobs.min() >= 0 and forced_jobs.max() < jobs):
            raise AssignmentError(
                f"forced_jobs names job {int(forced_jobs.max())}: jobs are 0 to {jobs - 1}"
            )
        forced = np.zeros(jobs, dtype=bool)
        forced[forced_jobs] = True
    kept: Ints = np.where(forced, prev_config, -2)
    return kept


def _is_mask(forced_jobs: Ints, jobs: int) -> bool:
    """Return whether whole numbers are one 0 or 1 for each job; indices stand there once each."""
    if forced_jobs.shape != (jobs,) or not jobs or forced_jobs.max() > 1 or forced_jobs.min() < 0:
        return False
    return len(np.unique(forced_jobs)) < jobs or jobs == 1
