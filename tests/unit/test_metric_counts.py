"""The counters of the monitor: each event counts once, for its queue."""

import sqlite3
from collections.abc import Iterator

import pytest
from msgspec import structs

from gsched.model.arrays import Array, Span
from gsched.model.ids import element_number
from gsched.model.job import JobSpec, Outcome
from gsched.model.resources import Usage
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol.job_rows import JobRow, JobStory, StartRow
from gsched.protocol.samples import GpuUseSample, NodeUseSample, UseSamples
from gschedd.core.state import facts as f
from gschedd.monitor.metrics.counts import (
    COUNTED,
    MetricCounts,
    MetricGroup,
    counters,
    note_forecasts,
)
from gschedd.plan.load import Basis, Prediction, Use
from tests.support.books import spec_of as a_spec
from tests.support.usage import monitor_begin

USE = Use(cpu_cores=1.0, memory_bytes=1, gpus=0.0, gpu_memory_bytes=0)
DONE = Outcome(kind=OutcomeKind.EXITED, exit_code=0)
FAILED = Outcome(kind=OutcomeKind.EXITED, exit_code=1)


class Counts:
    """The part with a database of its own."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.part = MetricCounts(monitor_begin())
        for table in self.part.tables:
            self.db.executescript(table.schema)

    def note(self, *facts: f.AnyFact) -> None:
        self.part.note_events(self.db, [(1, fact) for fact in facts])

    def value(self, name: str, *labels: str) -> float:
        for family in counters(self.db, MetricGroup):
            for sample in family.samples:
                if sample.name == name and tuple(sample.labels.values()) == labels:
                    return float(sample.value)
        return 0.0


@pytest.fixture
def counts() -> Iterator[Counts]:
    made = Counts()
    yield made
    made.db.close()


def submitted(job: int, at_s: float, spec: JobSpec) -> f.JobSubmitted:
    return f.JobSubmitted(at_s=at_s, job=job, spec=spec, state=JobState.QUEUED)


def assigned(job: int, at_s: float, attempt: int = 1, wall_s: float | None = None) -> f.AnyFact:
    prediction = Prediction(
        use=USE, high=USE, basis=Basis.KIND, wall_s=wall_s, wall_high_s=wall_s and 2 * wall_s
    )
    return f.AttemptAssigned(
        at_s=at_s, job=job, attempt=attempt, allocation=(), active=(), master_port=0, why="",
        predictions={"n": prediction},
    )  # fmt: skip


def ended(job: int, at_s: float, outcome: Outcome) -> f.AnyFact:
    return f.JobEnded(at_s=at_s, job=job, outcome=outcome, ended_s=at_s)


def story(job: int, start: StartRow | None) -> JobStory:
    row = JobRow(
        id=job, name="j", user="u", queue="batch", state="queued", letter="Q", submitted_s=100.0,
        cpus=1, places=1, start=start,
    )  # fmt: skip
    return JobStory(
        server="s", now_s=100.0, row=row, attempts=(), events=(), workdir="/", resources="",
        stdout_path="", stderr_path="", join="n", launch="", rerunnable=True, grace_s=30.0,
    )  # fmt: skip


def test_the_wait_counts_from_when_the_job_could_start_and_once(counts: Counts) -> None:
    counts.note(
        submitted(1, 100.0, a_spec(queue="batch")),
        f.JobReleased(at_s=200.0, job=1, holds=(), by="me"),
        assigned(1, 205.0),
        f.JobRequeued(at_s=300.0, job=1, reason="", faults=1),
        assigned(1, 400.0, attempt=2),
    )

    assert counts.value("gsched_wait_seconds_sum", "batch") == 5.0
    assert counts.value("gsched_wait_seconds_count", "batch") == 1.0
    assert counts.value("gsched_wait_seconds_bucket", "batch", "1.0") == 0.0
    assert counts.value("gsched_wait_seconds_bucket", "batch", "10.0") == 1.0
    assert counts.value("gsched_jobs_requeued_total", "batch") == 1.0


def test_an_array_counts_its_elements_and_not_itself(counts: Counts) -> None:
    array = Array(spans=(Span(first=0, last=9),))
    counts.note(submitted(7, 100.0, structs.replace(a_spec(queue="batch"), array=array)))
    for index, outcome in ((0, DONE), (1, FAILED)):
        element = element_number(7, index)
        counts.note(assigned(element, 101.0), ended(element, 110.0, outcome))
    dropped = (Span(first=2, last=9),)
    counts.note(
        f.ElementsDropped(at_s=120.0, job=7, elements=dropped, by="me"), ended(7, 120.0, FAILED)
    )

    assert counts.value("gsched_jobs_submitted_total", "batch") == 10.0
    assert counts.value("gsched_jobs_started_total", "batch") == 2.0
    assert counts.value("gsched_jobs_ended_total", "batch", "succeeded") == 1.0
    assert counts.value("gsched_jobs_ended_total", "batch", "failed") == 1.0
    assert counts.value("gsched_jobs_ended_total", "batch", "cancelled") == 8.0
    assert counts.db.execute("SELECT count(*) FROM metric_jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("ended_s", "outcome", "result"),
    [(150.0, DONE, "met"), (250.0, DONE, "missed"), (150.0, FAILED, "missed")],
)
def test_a_deadline_is_met_by_a_success_in_time(
    counts: Counts, ended_s: float, outcome: Outcome, result: str
) -> None:
    spec = structs.replace(a_spec(queue="batch"), deadline_s=200.0)
    counts.note(submitted(1, 100.0, spec), assigned(1, 101.0), ended(1, ended_s, outcome))

    assert counts.value("gsched_deadlines_total", result) == 1.0


@pytest.mark.parametrize(("wall_s", "result"), [(15.0, "below"), (25.0, "above")])
def test_run_times_are_compared_with_their_prediction(
    counts: Counts, wall_s: float, result: str
) -> None:
    counts.note(
        submitted(1, 100.0, a_spec(queue="batch")),
        assigned(1, 101.0, wall_s=10.0),
        f.AttemptEnded(
            at_s=200.0, job=1, attempt=1, outcome=DONE, usage=Usage(wall_s=wall_s), ended_s=200.0
        ),
    )

    assert counts.value("gsched_walltime_ratio_sum") == wall_s / 10.0
    assert counts.value("gsched_walltime_forecasts_total", result) == 1.0


@pytest.mark.parametrize(
    ("started_s", "error_s", "result"),
    [
        (130.0, 30.0, "earlier"),
        (149.0, 11.0, "earlier"),
        (150.0, 10.0, "in range"),
        (200.0, 40.0, "in range"),
        (201.0, 41.0, "later"),
    ],
)
def test_a_start_is_compared_with_its_first_forecast(
    counts: Counts, started_s: float, error_s: float, result: str
) -> None:
    """Expected at 160 s, four in five between 150 s and 200 s; a later forecast does not count."""
    counts.note(submitted(1, 100.0, a_spec(queue="batch")))
    note_forecasts(counts.db, [story(1, StartRow(expected_s=160.0, early_s=150.0, late_s=200.0))])
    note_forecasts(counts.db, [story(1, StartRow(expected_s=900.0, early_s=900.0, late_s=900.0))])
    counts.note(assigned(1, started_s), assigned(1, started_s + 500.0, attempt=2))

    assert counts.value("gsched_start_forecast_error_seconds_sum") == error_s
    assert counts.value("gsched_start_forecast_error_seconds_count") == 1.0
    assert counts.value("gsched_start_forecasts_total", result) == 1.0
    others = {"earlier", "in range", "later"} - {result}
    assert [counts.value("gsched_start_forecasts_total", each) for each in others] == [0.0, 0.0]


def test_the_coverage_is_the_part_of_starts_in_range(counts: Counts) -> None:
    """Ten jobs, forecast at 200 s ± 20 s: eight start in range, one before it, one after it."""
    starts_s = [150.0, 181.0, 190.0, 195.0, 200.0, 204.0, 210.0, 215.0, 219.0, 300.0]
    start = StartRow(expected_s=200.0, early_s=180.0, late_s=220.0)
    for job, at_s in enumerate(starts_s, 1):
        counts.note(submitted(job, 100.0, a_spec(queue="batch")))
        note_forecasts(counts.db, [story(job, start)])
        counts.note(assigned(job, at_s))

    results = ("earlier", "in range", "later")
    found = [counts.value("gsched_start_forecasts_total", each) for each in results]
    assert found == [1.0, 8.0, 1.0]
    errors_s = counts.value("gsched_start_forecast_error_seconds_sum")
    assert errors_s == sum(abs(at_s - 200.0) for at_s in starts_s)
    assert counts.value("gsched_start_forecast_error_seconds_bucket", "10.0") == 5.0


def test_a_range_without_an_end_is_never_exceeded(counts: Counts) -> None:
    """The forecast could not say by when four in five starts would have been."""
    counts.note(submitted(1, 100.0, a_spec(queue="batch")))
    note_forecasts(counts.db, [story(1, StartRow(expected_s=160.0, early_s=150.0))])
    counts.note(assigned(1, 5000.0))

    assert counts.value("gsched_start_forecasts_total", "in range") == 1.0


def test_a_forecast_without_a_start_is_kept_as_none(counts: Counts) -> None:
    counts.note(submitted(1, 100.0, a_spec(queue="batch")))
    note_forecasts(counts.db, [story(1, StartRow(not_before_s=900.0)), story(2, None)])
    counts.note(assigned(1, 300.0))

    assert counts.value("gsched_start_forecast_error_seconds_count") == 0.0


def test_gpu_seconds_follow_from_samples_that_are_near_each_other(counts: Counts) -> None:
    gpus = (
        GpuUseSample(index=0, type="h100", jobs=(1,)),
        GpuUseSample(index=1, type="h100", jobs=(2,), unused=True),
        GpuUseSample(index=2, type="h100"),
    )
    node = NodeUseSample(name="n", state="up", gpus=gpus)
    for now_s in (1000.0, 1015.0, 9000.0):
        counts.part.note_samples(counts.db, UseSamples(now_s=now_s, nodes=(node,), jobs=()))

    assert counts.value("gsched_gpu_installed_seconds_total", "h100") == 45.0
    assert counts.value("gsched_gpu_allocated_seconds_total", "h100") == 30.0
    assert counts.value("gsched_gpu_unused_seconds_total", "h100") == 15.0


def test_each_name_and_help_is_as_prometheus_wants_it() -> None:
    for name, counted in COUNTED.items():
        assert not name.endswith("_total")
        assert counted.text.endswith(".")
        assert list(counted.buckets) == sorted(counted.buckets)
