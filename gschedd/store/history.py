"""The learning history: what each attempt has cost on each of its nodes, beside the prediction.

A row stays when its job's own rows are purged, and the other way round.
"""

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from msgspec import Struct

from gschedd.core.state.step import Run
from gschedd.models.measures import FLOORS, Q
from gschedd.models.records import Record
from gschedd.plan.load import Basis, Kind, NodeRates, Prediction, Use
from gschedd.store.rows import Row
from gschedd.store.seals import DamagedRowError, SqlValue, is_sealed, read_row

#: Of the run itself, in the order of `_run_values`.
RUN_COLUMNS: Final = (
    *("job", "attempt", "node", "ended_s", "succeeded"),
    *("kind", "program", "owner_uid", "requested_cpus", "requested_gpus", "requested_memory_bytes"),
    *("requested_walltime_s", "cores", "core_rate", "memory_total_bytes", "gpus", "gpu_rate"),
    *("gpu_memory_total_bytes", "wall_s", "cpu_cores", "cpu_s", "memory_bytes", "gpus_busy"),
    *("gpu_memory_bytes", "cpu_peak_cores", "memory_peak_bytes", "gpu_memory_peak_bytes"),
    *("read_bytes", "write_bytes"),
)
#: Of the prediction, in the order of `_prediction_values`; NULL where none was made.
PREDICTION_COLUMNS: Final = (
    *("basis", "records", "predicted_wall_s", "predicted_wall_high_s"),
    *(
        "predicted_cpu_cores",
        "predicted_memory_bytes",
        "predicted_gpus_busy",
        "predicted_gpu_memory_bytes",
    ),
    *("high_cpu_cores", "high_memory_bytes", "high_gpus_busy", "high_gpu_memory_bytes"),
)
COLUMNS: Final = RUN_COLUMNS + PREDICTION_COLUMNS

_NAMES: Final = ", ".join("history." + name for name in COLUMNS)
SELECT_ROWS: Final = f"SELECT id, {_NAMES}, seal FROM history "  # noqa: S608 # names are constants

#: What was measured of each predicted quantity.
MEASURED: Final = {
    Q.CPU: "cpu_cores",
    Q.MEMORY: "memory_bytes",
    Q.GPU: "gpus_busy",
    Q.GPU_MEMORY: "gpu_memory_bytes",
    Q.WALL: "wall_s",
}


#: The relative error of each of `Q`, (predicted - measured) / measured; NULL where there is nothing
#: to compare. What is less than the floor of its quantity counts as none, as it does for models.
ERRORS: Final = ", ".join(
    f"CASE WHEN max(history.predicted_{name}, history.{name}) > {FLOORS[q]!r} THEN "
    f"(history.predicted_{name} - history.{name}) / max(history.{name}, {FLOORS[q]!r}) END"
    for q, name in MEASURED.items()
)


def run_row(run: Run) -> Row:
    """Return a run's row."""
    return (*_run_values(run), *_prediction_values(run.prediction))


def _run_values(run: Run) -> Row:
    record = run.record
    kind, rates, used = record.kind, record.rates, record.used
    return (
        run.job,
        run.attempt,
        record.node,
        record.ended_s,
        int(record.succeeded),
        kind.key,
        kind.program,
        kind.owner_uid,
        kind.cpus,
        kind.gpus,
        kind.memory_bytes,
        kind.walltime_s,
        rates.cores,
        rates.core_rate,
        rates.memory_bytes,
        rates.gpus,
        rates.gpu_rate,
        rates.gpu_memory_bytes,
        record.wall_s,
        used.cpu_cores,
        record.cpu_s,
        used.memory_bytes,
        used.gpus,
        used.gpu_memory_bytes,
        record.cpu_peak_cores,
        record.memory_peak_bytes,
        record.gpu_memory_peak_bytes,
        record.read_bytes,
        record.write_bytes,
    )


def _prediction_values(prediction: Prediction | None) -> Row:
    if prediction is None:
        return (None,) * len(PREDICTION_COLUMNS)
    use, high = prediction.use, prediction.high
    return (
        prediction.basis.value,
        prediction.records,
        prediction.wall_s,
        prediction.wall_high_s,
        *(use.cpu_cores, use.memory_bytes, use.gpus, use.gpu_memory_bytes),
        *(high.cpu_cores, high.memory_bytes, high.gpus, high.gpu_memory_bytes),
    )


def run_from_row(row: Row) -> Run:
    """Return a run from its row, of the columns in `COLUMNS`; what comes after them is ignored."""
    values = dict(zip(COLUMNS, row, strict=False))

    def number(name: str) -> float:
        return cast("float", values[name])

    def count(name: str) -> int:
        return cast("int", values[name])

    def text(name: str) -> str:
        return cast("str", values[name])

    record = Record(
        kind=Kind(
            key=text("kind"),
            program=text("program"),
            owner_uid=count("owner_uid"),
            cpus=count("requested_cpus"),
            gpus=count("requested_gpus"),
            memory_bytes=count("requested_memory_bytes"),
            walltime_s=number("requested_walltime_s"),
        ),
        node=text("node"),
        rates=NodeRates(
            cores=number("cores"),
            core_rate=number("core_rate"),
            memory_bytes=count("memory_total_bytes"),
            gpus=count("gpus"),
            gpu_rate=number("gpu_rate"),
            gpu_memory_bytes=count("gpu_memory_total_bytes"),
        ),
        wall_s=number("wall_s"),
        used=_use(number, ""),
        ended_s=number("ended_s"),
        cpu_peak_cores=number("cpu_peak_cores"),
        memory_peak_bytes=count("memory_peak_bytes"),
        gpu_memory_peak_bytes=count("gpu_memory_peak_bytes"),
        read_bytes=count("read_bytes"),
        write_bytes=count("write_bytes"),
        succeeded=bool(values["succeeded"]),
    )
    prediction = None
    if values["basis"] is not None:
        prediction = Prediction(
            use=_use(number, "predicted_"),
            high=_use(number, "high_"),
            basis=Basis(text("basis")),
            wall_s=cast("float | None", values["predicted_wall_s"]),
            wall_high_s=cast("float | None", values["predicted_wall_high_s"]),
            records=count("records"),
        )
    return Run(job=count("job"), attempt=count("attempt"), record=record, prediction=prediction)


def newest(db: sqlite3.Connection, most: int) -> list[Run]:
    """Return the newest rows, oldest first: models learn in the order in which the head did."""
    query = f"SELECT {_NAMES}, seal FROM history ORDER BY id DESC LIMIT ?"  # noqa: S608 # constants
    runs: list[Run] = []
    for row in reversed(db.execute(query, (most,)).fetchall()):
        with contextlib.suppress(DamagedRowError):
            runs.append(read_run(row[:-1], row[-1]))
    return runs


def read_run(values: Row, checksum: SqlValue) -> Run:
    """Return the run of a row, of the columns in `COLUMNS`, with its checksum.

    Raises:
        DamagedRowError: the row is not what was written.
    """
    job = cast("int", values[0])
    return read_row(
        lambda: run_from_row(values),
        intact=is_sealed(values, checksum),
        kind="run",
        key=f"{job}.{values[1]!r} on {values[2]!r}",
        job=job,
    )


def _use(number: Callable[[str], float], prefix: str) -> Use:
    return Use(
        cpu_cores=number(f"{prefix}cpu_cores"),
        memory_bytes=number(f"{prefix}memory_bytes"),
        gpus=number(f"{prefix}gpus_busy"),
        gpu_memory_bytes=number(f"{prefix}gpu_memory_bytes"),
    )


Errors = tuple[float | None, ...]  # one for each of `Q`, with its sign
#: Runs of a node, and of a whole listing, that its spread of errors is taken over: the newest.
NODE_RUNS: Final = 100
LISTED_RUNS: Final = 100_000


class Scored(Struct, frozen=True, kw_only=True):
    """A run, whose it was, and the relative errors of its prediction."""

    run: Run
    user: str
    name: str
    errors: Errors


class Spread(Struct, frozen=True, kw_only=True):
    """How large the errors of many predictions of one quantity are, without sign.

    Attributes:
        runs: how many there are.
        p90: a size that nine in ten do not exceed.
    """

    runs: int
    median: float
    p90: float


Spreads = tuple[Spread | None, ...]  # one for each of `Q`; None where nothing was compared


def spreads(rows: Iterable[Errors]) -> Spreads:
    """Return the spread of each quantity."""
    sizes: tuple[list[float], ...] = tuple([] for _ in Q)
    for errors in rows:
        for q in Q:
            error = errors[q]
            if error is not None:
                sizes[q].append(abs(error))
    return tuple(_spread(each) for each in sizes)


def _spread(sizes: list[float]) -> Spread | None:
    if not sizes:
        return None
    ordered = sorted(sizes)
    median, p90 = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.9))
    return Spread(runs=len(ordered), median=median, p90=p90)


def scored(
    db: sqlite3.Connection, where: str, values: Sequence[SqlValue], most: int
) -> tuple[list[Scored], int, Spreads]:
    """Return the newest runs of the jobs of a condition, how many there are, and their spreads."""
    of_jobs = "FROM history JOIN jobs ON jobs.id = history.job " + where
    newest_first = " ORDER BY history.id DESC LIMIT ?"
    query = f"SELECT {_NAMES}, jobs.user, jobs.name, {ERRORS} {of_jobs}{newest_first}"  # bound
    found = [_scored(row) for row in db.execute(query, (*values, most))]
    total = db.execute(f"SELECT count(*) {of_jobs}", values).fetchone()[0]  # bound
    query = f"SELECT {ERRORS} {of_jobs}{newest_first}"  # bound
    return found, total, spreads(db.execute(query, (*values, LISTED_RUNS)))


def _scored(row: Row) -> Scored:
    rest = row[len(COLUMNS) :]
    return Scored(
        run=run_from_row(row),
        user=cast("str", rest[0]),
        name=cast("str", rest[1]),
        errors=cast("Errors", rest[2:]),
    )


def node_spreads(db: sqlite3.Connection, node: str) -> Spreads:
    """Return how far the newest predictions for a node were off."""
    query = (
        f"SELECT {ERRORS} FROM history WHERE node = ? AND basis IS NOT NULL "  # noqa: S608 # constants
        "ORDER BY id DESC LIMIT ?"
    )
    return spreads(db.execute(query, (node, NODE_RUNS)))
