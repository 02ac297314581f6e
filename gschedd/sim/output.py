"""Files that a run leaves behind: results of jobs and series as CSV, the report as JSON."""

import csv
import importlib.util
import os
from pathlib import Path
from typing import Final, get_args

import msgspec
from msgspec import Struct

from gsched.errors import CannotWriteError, UsageError
from gschedd.sim.recorder import JobResult, Summary

SCHEMA: Final = 1  # of the JSON report; grows when a field changes its meaning or goes away
FLUSH_ROWS: Final = 1000  # rows that a killed run may lose


class SimReport(Struct, frozen=True, kw_only=True):
    """The JSON report of a run: what was replayed, and what each policy made of it.

    Attributes:
        slowdown_bound_s: a job that ran for less counts as if it had run so long.
        cluster: as it was described; ``nodes`` is how many nodes that is.
        malformed: lines of the trace that could not be read.
        skipped: jobs of the trace that were left out, by reason.
        interrupted: the run was stopped before its end; the figures are of what was done by then.
    """

    schema: int
    slowdown_bound_s: float
    trace: str
    cluster: str
    nodes: int
    work: str
    seed: int
    jitter_percent: float
    malformed: int
    skipped: dict[str, int]
    interrupted: bool
    results: list[Summary]


class ResultWriter:
    """Writes the results of one policy's jobs as they end, so that a stopped run keeps them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        try:
            self._file = path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise cannot_write(path, error) from error
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(JobResult.__struct_fields__)

    def write(self, result: JobResult) -> None:
        """Write one job's line."""
        self.rows += 1
        self._csv.writerow(msgspec.structs.astuple(result))
        if not self.rows % FLUSH_ROWS:
            self._file.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()


def cannot_write(path: Path, error: OSError) -> CannotWriteError:
    """Return the error that says so."""
    return CannotWriteError(f"{path}: {error.strerror}", hint="name a place that can be written")


def make_directory(text: str) -> Path:
    """Return a directory that is there now.

    Raises:
        CannotWriteError: it cannot be made.
    """
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


def write_series(path: Path, summary: Summary) -> None:
    """Write the values over time, one line for each step.

    Raises:
        CannotWriteError: it cannot be written.
    """
    over = summary.over_time
    names = [name for name in over.__struct_fields__ if name != "step_s"]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("time_s", *names))
            columns = [getattr(over, name) for name in names]
            for index, values in enumerate(zip(*columns, strict=True)):
                writer.writerow((index * over.step_s, *values))
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, report: SimReport) -> None:
    """Write the report; the file is there with all of it, or as it was before.

    Raises:
        CannotWriteError: it cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text)
        os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def require(module: str, *, option: str, extra: str) -> None:
    """Refuse an option for which a library is missing.

    Raises:
        UsageError: it is; the hint says how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(
            f"{option} needs {module}, which is not installed",
            hint=f"in the checkout of gsched: pip install {extra}",
        )


def write_parquet(source: Path) -> Path:
    """Write a CSV file of results as Parquet beside it, and return its path.

    Raises:
        CannotWriteError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    known = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    types = {  # stated, as a column in which no job has a value tells nothing of its type
        field.name: known[next(iter(get_args(field.type)), field.type)]
        for field in msgspec.structs.fields(JobResult)
    }
    options = pyarrow.csv.ConvertOptions(column_types=types)
    target = source.with_suffix(".parquet")
    try:
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(source, convert_options=options), target)
    except OSError as error:
        raise cannot_write(target, error) from error
    return target
