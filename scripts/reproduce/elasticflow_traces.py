"""ElasticFlow's traces and throughput tables, as training jobs that gsched's simulator can run."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from gsched.errors import UsageError
from gsched.model.training import Training
from gschedd.models.runtime_table import TableSpeed
from gschedd.sim.workload import TraceJob

#: Iterations a second by number of GPUs, by model and global batch.
Tables = Mapping[tuple[str, int], tuple[tuple[int, float], ...]]

#: Two forms of the traces name the same columns differently.
COLUMNS: Final = {
    "submit_s": ("submission_time", "submit_time"),
    "iterations": ("num_iteration", "iteration"),
    "deadline_s": ("deadline", "ddl"),
}


class Row(Struct, frozen=True, kw_only=True):
    """One line of a trace; times in seconds since any moment.

    Attributes:
        asked: number of GPUs that its user asked for in the cluster of the trace.
        duration_s: on them.
    """

    submit_s: float
    iterations: float
    deadline_s: float
    model: str
    batch: int
    asked: int
    duration_s: float


def read_tables(folder: Path) -> Tables:
    """Return the tables of a folder: ``<model>.csv``, a line for each global batch.

    Numbers of GPUs that were not measured, or beyond the batch, are left out: each GPU has at least
    one sample.

    Raises:
        UsageError: there is none, or a file is something else.
    """
    tables: dict[tuple[str, int], tuple[tuple[int, float], ...]] = {}
    for path in sorted(folder.glob("*.csv")):
        try:
            for batch, rates in _read_table(path):
                tables[path.stem, batch] = rates
        except ValueError as error:
            raise UsageError(
                f"{path} is no throughput table: {error}",
                hint="a line for each global batch, a column for each number of GPUs",
            ) from error
    if not tables:
        raise UsageError(f"no throughput tables in {folder}", hint="<model>.csv, one per model")
    return tables


def _read_table(path: Path) -> Iterator[tuple[int, tuple[tuple[int, float], ...]]]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    counts = [int(name) for name in header[1:]]
    for line in lines:
        batch = int(line[0])
        pairs = zip(counts, map(_rate, line[1:]), strict=True)
        yield batch, tuple((count, rate) for count, rate in pairs if count <= batch and rate)


def _rate(text: str) -> float:
    rate = float(text or "nan")
    return 0.0 if math.isnan(rate) else rate


def read_trace(path: Path) -> list[Row]:
    """Return the lines of a trace, by submission.

    Raises:
        UsageError: it is no trace of this form.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names = {
            field: next((name for name in known if name in (reader.fieldnames or ())), None)
            for field, known in COLUMNS.items()
        }
        missing = [" or ".join(COLUMNS[field]) for field, name in names.items() if name is None]
        if missing:
            raise UsageError(f"{path} lacks {', '.join(missing)}", hint="name an ElasticFlow trace")
        rows = [
            Row(
                **{field: float(line[name or ""]) for field, name in names.items()},
                model=line["model_name"],
                batch=int(line["batch_size"]),
                asked=int(line["num_gpu"]),
                duration_s=float(line["duration"]),
            )
            for line in reader
        ]
    return sorted(rows, key=lambda row: row.submit_s)


def training_jobs(rows: Sequence[Row], tables: Tables, gpus: int) -> Iterator[TraceJob]:
    """Yield the jobs of a trace for a cluster of so many GPUs.

    Their work is the iterations of the trace, so that they take as long as it says on the GPUs that
    their users asked for; on others as long as the tables say.

    Raises:
        UsageError: a model or a batch has no table.
    """
    begin_s = rows[0].submit_s
    for number, row in enumerate(rows, start=1):
        rates = tables.get((row.model, row.batch))
        if rates is None:
            raise UsageError(
                f"job {number} trains {row.model} with batch {row.batch}, without a table",
                hint="name the folder of the GPUs that the trace is of: --throughputs DIR",
            )
        yield TraceJob(
            submit_s=row.submit_s - begin_s,
            duration_s=row.duration_s,
            gpus=1,
            gpus_max=min(max(count for count, _ in rates), gpus),
            deadline_s=row.deadline_s - row.submit_s,
            training=Training(iterations=row.iterations, rates=rates),
        )


def as_asked(jobs: Sequence[TraceJob], rows: Sequence[Row]) -> list[TraceJob]:
    """Return the jobs with exactly the GPUs that their users asked for, if there are as many."""
    return [
        structs.replace(job, gpus=min(row.asked, job.gpus_max), gpus_max=0)
        for job, row in zip(jobs, rows, strict=True)
    ]


def possible(rows: Sequence[Row], tables: Tables, gpus: int) -> float:
    """Return the share of jobs that would meet their deadline if each had the cluster to itself."""
    met = 0
    for row in rows:
        speed = TableSpeed(rates=tables[row.model, row.batch])
        fastest = max(speed.at(count) for count, _ in speed.rates if count <= gpus)
        met += row.iterations <= fastest * (row.deadline_s - row.submit_s)
    return met / len(rows)


def asked_load(rows: Sequence[Row], gpus: int) -> float:
    """Return the GPU time that users asked for, over that of so many GPUs while jobs arrived."""
    span_s = rows[-1].submit_s - rows[0].submit_s
    return sum(row.asked * row.duration_s for row in rows) / (span_s * gpus)
