"""Counters and histograms, in the monitor's database: they last over restarts of head and monitor.

What follows from events is counted in the transaction that moves the cursor, so each event counts
once. GPU-seconds follow from samples.
"""

import json
import math
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gsched.model.arrays import count
from gsched.model.ids import array_of
from gsched.model.job import Outcome
from gsched.model.states import NodeState, OutcomeKind
from gsched.protocol.job_rows import JobStory
from gsched.protocol.samples import GpuUseSample, NodeUseSample, UseSamples
from gschedd.core.state import facts as f
from gschedd.monitor.feed import Event
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.records import AT_ONCE
from gschedd.monitor.store import MonitorTable


class MetricGroup(StrEnum):
    """What metrics are about: the last part of ``/metrics/GROUP``."""

    JOBS = "jobs"
    NODES = "nodes"
    PARTITIONS = "partitions"
    SCHEDULER = "scheduler"
    USERS = "users"


class Counted(Struct, frozen=True, kw_only=True):
    """A counter, or with ``buckets`` a histogram."""

    text: str
    labels: tuple[str, ...] = ()
    group: MetricGroup
    buckets: tuple[float, ...] = ()


_WAITS_S: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 604800.0)
_ERRORS_S: Final = (10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_RATIOS: Final = (0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0)
_COSTS_S: Final = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_SUM: Final = "sum"
#: Samples that are farther apart than so many periods say nothing of the time between them.
_PERIODS_APART: Final = 4

#: Jobs whose start is forecast at once, for a comparison with their start.
FORECASTS_AT_ONCE: Final = 16

COUNTED: Final = {
    "gsched_jobs_submitted": Counted(
        text="Jobs submitted; elements of arrays each.", labels=("queue",), group=MetricGroup.JOBS
    ),
    "gsched_jobs_started": Counted(
        text="Jobs started for the first time.", labels=("queue",), group=MetricGroup.JOBS
    ),
    "gsched_jobs_ended": Counted(
        text="Jobs ended, by outcome.", labels=("queue", "outcome"), group=MetricGroup.JOBS
    ),
    "gsched_jobs_requeued": Counted(
        text="Attempts after which a job was requeued.", labels=("queue",), group=MetricGroup.JOBS
    ),
    "gsched_wait_seconds": Counted(
        text="Time from when a job could start to its first start.",
        labels=("queue",),
        group=MetricGroup.PARTITIONS,
        buckets=_WAITS_S,
    ),
    "gsched_deadlines": Counted(
        text="Jobs with a deadline that ended, by result.",
        labels=("result",),
        group=MetricGroup.JOBS,
    ),
    "gsched_migrations": Counted(
        text="Migrations of jobs, by result.", labels=("result",), group=MetricGroup.JOBS
    ),
    "gsched_migration_cost_seconds": Counted(
        text="Time without progress of a migration.", group=MetricGroup.JOBS, buckets=_COSTS_S
    ),
    "gsched_walltime_ratio": Counted(
        text="Run time of a successful attempt by its prediction.",
        group=MetricGroup.SCHEDULER,
        buckets=_RATIOS,
    ),
    "gsched_walltime_forecasts": Counted(
        text="Successful attempts, by whether their run time was below the predicted bound.",
        labels=("result",),
        group=MetricGroup.SCHEDULER,
    ),
    "gsched_start_forecast_error_seconds": Counted(
        text="Difference between estimated and real start of a job.",
        group=MetricGroup.SCHEDULER,
        buckets=_ERRORS_S,
    ),
    "gsched_start_forecasts": Counted(
        text="Jobs started, by whether that was in the predicted range (four of five should be).",
        labels=("result",),
        group=MetricGroup.SCHEDULER,
    ),
    "gsched_node_events": Counted(
        text="Faults of nodes, by kind.", labels=("event",), group=MetricGroup.NODES
    ),
    "gsched_gpu_installed_seconds": Counted(
        text="GPU-seconds of nodes that are up.", labels=("type",), group=MetricGroup.NODES
    ),
    "gsched_gpu_allocated_seconds": Counted(
        text="GPU-seconds allocated to jobs.", labels=("type",), group=MetricGroup.NODES
    ),
    "gsched_gpu_busy_seconds": Counted(
        text="GPU-seconds times utilisation.", labels=("type",), group=MetricGroup.NODES
    ),
    "gsched_gpu_unused_seconds": Counted(
        text="GPU-seconds allocated to jobs without a process on the GPU.",
        labels=("type",),
        group=MetricGroup.NODES,
    ),
}


class _Known(NamedTuple):
    """A row of ``metric_jobs``: what later events do not repeat."""

    queue: str
    since_s: float
    deadline_s: float
    is_array: bool
    wall_s: float | None = None
    wall_high_s: float | None = None
    start_s: float | None = None
    start_early_s: float | None = None
    start_late_s: float | None = None


_MORE: Final = (
    "INSERT INTO {} VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
)
_COUNTS: Final = "(name TEXT, labels TEXT, value REAL, PRIMARY KEY (name, labels)) WITHOUT ROWID;"
_JOB_COLUMNS: Final = ", ".join(_Known._fields)


class MetricCounts:
    """The part of the read model that counts."""

    tables: Sequence[MonitorTable] = (
        MonitorTable(
            name="metric_counts", schema=f"CREATE TABLE IF NOT EXISTS metric_counts {_COUNTS}"
        ),
        MonitorTable(
            name="metric_use",
            schema=f"CREATE TABLE IF NOT EXISTS metric_use {_COUNTS}",
            derived=False,
        ),
        MonitorTable(
            name="metric_jobs",
            schema=f"""
            CREATE TABLE IF NOT EXISTS metric_jobs (job INTEGER PRIMARY KEY, {_JOB_COLUMNS});""",
        ),
    )
    kinds: Sequence[str] = (
        *("JobSubmitted", "JobAltered", "JobDue", "JobReleased", "JobRequeued", "JobEnded"),
        *("JobDiscarded", "ElementsDropped", "AttemptAssigned", "AttemptEnded"),
        *("MigrationAbandoned", "TargetLost", "TrainingResumed", "MigrationMeasured"),
        *("NodeDisconnected", "NodeDrained", "NodeFaulted", "NodeProbed"),
    )

    def __init__(self, begin: MonitorBegin) -> None:
        self._gap_s = _PERIODS_APART * begin.config.sample_period_s
        self._sampled_s: float | None = None

    def note_events(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Count events."""
        counting = _Counting(db)
        counting.read(fact.job for _, fact in events if isinstance(fact, f.JobFact))
        for _, fact in events:
            counting.note(fact)
        counting.write()

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Count GPU-seconds since the samples before."""
        before_s, self._sampled_s = self._sampled_s, samples.now_s
        if before_s is None or not 0.0 < samples.now_s - before_s < self._gap_s:
            return
        passed_s = samples.now_s - before_s
        totals: dict[tuple[str, str], float] = {}
        for node in samples.nodes:
            if node.state == NodeState.UP:
                for gpu in node.gpus:
                    for use, share in gpu_uses(node, gpu).items():
                        key = (f"gsched_gpu_{use}_seconds", gpu.type or "unknown")
                        totals[key] = totals.get(key, 0.0) + share * passed_s
        rows = [(name, json.dumps([kind]), amount) for (name, kind), amount in totals.items()]
        db.executemany(_MORE.format("metric_use"), rows)


def gpu_uses(node: NodeUseSample, gpu: GpuUseSample) -> dict[str, float]:
    """Return how much of a GPU is installed, allocated, busy and unused, each 0 to 1."""
    load = node.load
    utilisations = load.gpu_util_percent if load is not None else ()
    busy = utilisations[gpu.index] / 100 if gpu.index < len(utilisations) else 0.0
    return {
        "installed": 1.0,
        "allocated": float(bool(gpu.jobs)),
        "busy": busy,
        "unused": float(bool(gpu.jobs) and gpu.unused),
    }


def _node_event(fact: f.AnyFact) -> str:
    match fact:
        case f.NodeDisconnected():
            return "disconnected"
        case f.NodeDrained(automatic=True):
            return "drained by gsched"
        case f.NodeFaulted():
            return "start failed"
        case f.NodeProbed(passed=False):
            return "probe failed"
        case _:
            return ""


class _Counting:
    """What events of one transaction count, which is written together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._amounts: dict[tuple[str, tuple[str, ...]], float] = {}
        self._jobs: dict[int, _Known | None] = {}
        self._changed: set[int] = set()

    def read(self, jobs: Iterable[int]) -> None:
        """Read what is known of jobs, and of the arrays of elements."""
        wanted = {each for job in jobs for each in (job, array_of(job)) if each}
        self._jobs = dict.fromkeys(wanted)
        ordered = sorted(wanted)
        for part in (ordered[at : at + AT_ONCE] for at in range(0, len(ordered), AT_ONCE)):
            marks = ", ".join("?" * len(part))
            query = f"SELECT job, {_JOB_COLUMNS} FROM metric_jobs WHERE job IN ({marks})"  # noqa: S608 # constants
            for job, *values in self._db.execute(query, part):
                self._jobs[job] = _Known(*values)

    def note(self, fact: f.AnyFact) -> None:
        """Count an event."""
        match fact:
            case f.JobSubmitted():
                self._note_submission(fact)
            case f.MigrationMeasured():
                self._observe("gsched_migration_cost_seconds", (), fact.cost_s)
            case f.JobDiscarded():
                self._forget(fact.job)
            case f.MigrationAbandoned():
                self._add("gsched_migrations", "abandoned")
            case f.TargetLost():
                self._add("gsched_migrations", "queued")
            case f.TrainingResumed():
                self._add("gsched_migrations", "restarted" if fact.lost else "done")
            case f.JobFact():
                # of an element at first what is known of its array
                known = self._jobs[fact.job] or self._jobs.get(array_of(fact.job))
                if known is not None:  # else its submission is no longer in the database
                    self._note_of_job(fact, known)
            case _:
                event = _node_event(fact)
                if event:
                    self._add("gsched_node_events", event)

    def _note_submission(self, fact: f.JobSubmitted) -> None:
        spec = fact.spec
        known = _Known(spec.queue, fact.at_s, spec.deadline_s, spec.array is not None)
        self._keep(fact.job, known)
        jobs = count(spec.array.spans) if spec.array is not None else 1
        self._add("gsched_jobs_submitted", spec.queue, amount=jobs)

    def _note_of_job(self, fact: f.JobFact, known: _Known) -> None:
        """Count an event of a job whose submission was counted."""
        match fact:
            case f.JobAltered():
                changed = known._replace(queue=fact.spec.queue, deadline_s=fact.spec.deadline_s)
                self._keep(fact.job, changed)
            case f.JobDue() | f.JobReleased():
                self._keep(fact.job, known._replace(since_s=fact.at_s))
            case f.JobRequeued():
                self._add("gsched_jobs_requeued", known.queue)
            case f.AttemptAssigned():
                self._note_start(fact, known)
            case f.AttemptEnded() if fact.outcome.succeeded:
                self._compare_run_time(fact.usage.wall_s, known)
            case f.ElementsDropped():
                jobs = count(fact.elements)
                self._add("gsched_jobs_ended", known.queue, OutcomeKind.CANCELLED, amount=jobs)
            case f.JobEnded():
                self._note_end(fact, known)
            case _:
                pass

    def _note_start(self, fact: f.AttemptAssigned, known: _Known) -> None:
        predictions = [each for each in fact.predictions.values() if each.wall_s is not None]
        wall_s = max((each.wall_s or 0.0 for each in predictions), default=None)
        high_s = max((each.wall_high_s or 0.0 for each in predictions), default=None)
        self._keep(fact.job, known._replace(wall_s=wall_s, wall_high_s=high_s))
        if fact.attempt != 1:
            return
        self._add("gsched_jobs_started", known.queue)
        self._observe("gsched_wait_seconds", (known.queue,), max(0.0, fact.at_s - known.since_s))
        if known.start_s is not None:
            error_s = abs(fact.at_s - known.start_s)
            self._observe("gsched_start_forecast_error_seconds", (), error_s)
            early_s, late_s = known.start_early_s or 0.0, known.start_late_s or 0.0
            result = (
                "earlier" if fact.at_s < early_s else "later" if fact.at_s > late_s else "in range"
            )
            self._add("gsched_start_forecasts", result)

    def _compare_run_time(self, wall_s: float, known: _Known) -> None:
        if not known.wall_s or not wall_s:
            return
        self._observe("gsched_walltime_ratio", (), wall_s / known.wall_s)
        if known.wall_high_s:
            result = "below" if wall_s <= known.wall_high_s else "above"
            self._add("gsched_walltime_forecasts", result)

    def _note_end(self, fact: f.JobEnded, known: _Known) -> None:
        self._forget(fact.job)
        if known.is_array and not array_of(fact.job):
            return  # its elements were counted
        outcome = fact.outcome
        self._add("gsched_jobs_ended", known.queue, _outcome_word(outcome))
        if known.deadline_s:
            met = outcome.succeeded and fact.ended_s <= known.deadline_s
            is_cancelled = outcome.kind is OutcomeKind.CANCELLED
            self._add(
                "gsched_deadlines", "met" if met else "cancelled" if is_cancelled else "missed"
            )

    def _keep(self, job: int, known: _Known | None) -> None:
        self._jobs[job] = known
        self._changed.add(job)

    def _forget(self, job: int) -> None:
        self._keep(job, None)

    def _add(self, name: str, *labels: str, amount: float = 1.0) -> None:
        key = (name, labels)
        self._amounts[key] = self._amounts.get(key, 0.0) + amount

    def _observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Count a value in its bucket, which the last label names by number."""
        bucket = bisect_left(COUNTED[name].buckets, value)
        self._add(name, *labels, str(bucket))
        self._add(name, *labels, _SUM, amount=value)

    def write(self) -> None:
        """Write all that has changed."""
        amounts = self._amounts.items()
        rows = [(name, json.dumps(labels), amount) for (name, labels), amount in amounts]
        self._db.executemany(_MORE.format("metric_counts"), rows)
        jobs = {job: self._jobs[job] for job in self._changed}
        gone = [(job,) for job, known in jobs.items() if known is None]
        self._db.executemany("DELETE FROM metric_jobs WHERE job = ?", gone)
        marks = ", ".join("?" * len(_Known._fields))
        self._db.executemany(
            f"INSERT OR REPLACE INTO metric_jobs VALUES (?, {marks})",  # noqa: S608 # marks
            ((job, *known) for job, known in jobs.items() if known is not None),
        )


def _outcome_word(outcome: Outcome) -> str:
    if outcome.succeeded:
        return "succeeded"
    return "failed" if outcome.kind is OutcomeKind.EXITED else outcome.kind.value


def without_forecast(db: sqlite3.Connection) -> list[int]:
    """Return some waiting jobs, the next first, whose start was not forecast yet."""
    query = (
        "SELECT job FROM metric_jobs JOIN head.jobs ON id = job WHERE state = 'queued' "
        "AND start_s IS NULL AND NOT is_array ORDER BY eligible_s LIMIT ?"
    )
    return [row[0] for row in db.execute(query, (FORECASTS_AT_ONCE,))]


def note_forecasts(db: sqlite3.Connection, stories: Iterable[JobStory]) -> None:
    """Keep the first forecast of each job's start, to be compared with its start."""
    for story in stories:
        start = story.row.start
        if start is not None and start.expected_s is not None:
            late_s = math.inf if start.late_s is None else start.late_s
            db.execute(
                "UPDATE metric_jobs SET start_s = ?, start_early_s = ?, start_late_s = ? "
                "WHERE job = ? AND start_s IS NULL",
                (start.expected_s, start.early_s or 0.0, late_s, story.row.id),
            )


def counters(db: sqlite3.Connection, groups: Iterable[MetricGroup]) -> list[Metric]:
    """Return all counters and histograms of some groups."""
    wanted = frozenset(groups)
    values: dict[str, dict[tuple[str, ...], float]] = {
        name: {} for name, counted in COUNTED.items() if counted.group in wanted
    }
    for table in ("metric_counts", "metric_use"):
        for name, labels, value in db.execute(f"SELECT name, labels, value FROM {table}"):  # noqa: S608 # a constant
            if name in values:
                values[name][tuple(json.loads(labels))] = value
    return [_family(name, COUNTED[name], found) for name, found in values.items()]


def _family(name: str, counted: Counted, values: dict[tuple[str, ...], float]) -> Metric:
    if not counted.buckets:
        counter = CounterMetricFamily(name, counted.text, labels=counted.labels)
        for labels, value in values.items():
            counter.add_metric(labels, value)
        if not counted.labels and not values:
            counter.add_metric((), 0.0)
        return counter
    histogram = HistogramMetricFamily(name, counted.text, labels=counted.labels)
    bounds = [*map(str, counted.buckets), "+Inf"]
    for labels in dict.fromkeys(labels[:-1] for labels in values):
        total, buckets = 0.0, []
        for number, bound in enumerate(bounds):
            total += values.get((*labels, str(number)), 0.0)
            buckets.append((bound, total))
        histogram.add_metric(labels, buckets, values.get((*labels, _SUM), 0.0))
    return histogram
