"""Stored assignment problems: one ``.npz`` file each, as `scripts/bench/sia --ilp` reads them."""

import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from gschedd.allocation.adaptive.dense import from_table, kept_by
from gschedd.allocation.adaptive.problem import AssignmentError, Problem

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
