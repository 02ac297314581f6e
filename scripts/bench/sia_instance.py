"""Stored assignment problems: one ``.npz`` file each, as `scripts/bench/sia --ilp` reads them."""

import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from gschedd.allocation.adaptive.problem import AssignmentError, Floats, Ints, Problem

#: Arrays of a file: number of dimensions, and whether they hold whole numbers.
ARRAYS = {
    "cost": (2, False),
    "config_type": (1, True),
    "config_gpus": (1, False),
    "capacity": (1, False),
    "lambda_n": (0, False),
    "prev_config": (1, True),
    "forced_jobs": (1, True),
}
#: Without these no job keeps anything.
OPTIONAL = ("prev_config", "forced_jobs")


def read(path: str) -> Problem:
    """Return the problem that a file holds.

    Raises:
        AssignmentError: the file cannot be read, or its arrays contradict each other.
    """
    arrays = _arrays(path)
    kept = None
    if "prev_config" in arrays and "forced_jobs" in arrays:
        jobs, configurations = arrays["cost"].shape
        if arrays["prev_config"].shape != (jobs,):
            raise AssignmentError(
                f"prev_config has shape {arrays['prev_config'].shape}, and cost has {jobs} jobs"
                " (its rows): give one configuration for each, -1 for none"
            )
        kept = kept_by(arrays["prev_config"], arrays["forced_jobs"], configurations)
    return from_table(
        arrays["cost"],
        arrays["config_type"],
        arrays["config_gpus"],
        arrays["capacity"],
        float(arrays["lambda_n"]),
        kept=kept,
    )


def _arrays(path: str) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAYS if name in file.files}
            others = [name for name in file.files if name not in ARRAYS]
    except OSError as error:
        raise AssignmentError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise AssignmentError(f"is no .npz file of plain arrays: {error}") from None
    missing = [name for name in ARRAYS if name not in arrays and name not in OPTIONAL]
    if missing:
        present = ", ".join([*arrays, *others]) or "none"
        raise AssignmentError(f"has no array {' and '.join(missing)}; it has {present}")
    return {name: _checked(name, array) for name, array in arrays.items()}


def _checked(name: str, array: Any) -> Any:
    dimensions, whole = ARRAYS[name]
    if array.dtype.kind not in "biuf":
        raise AssignmentError(f"{name} holds {array.dtype}, and numbers are needed")
    if dimensions == 0 and array.size == 1:
        array = array.reshape(())
    if dimensions == 1 and array.size == 0:
        array = array.reshape(0)
    if array.ndim != dimensions:
        raise AssignmentError(
            f"{name} has {array.ndim} dimensions (shape {array.shape}), and needs {dimensions}"
        )
    if not whole:
        array = array.astype(float)
        if name != "cost" and not np.all(np.isfinite(array)):
            raise AssignmentError(f"{name} holds a value that is not finite")
        return array
    if array.dtype.kind == "f":
        if not np.all(np.isfinite(array)) or np.any(array != np.rint(array)):
            raise AssignmentError(f"{name} holds values that are not whole")
        return array.astype(np.int64)
    return array if array.dtype == np.bool_ else array.astype(np.int64)


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
