"""The use of nodes and jobs over time: samples, their means, gaps, and what is removed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gsched.config.tables import HistoryConfig
from gsched.config.web import WebConfig
from gsched.model.resources import LiveUse, Load
from gsched.protocol.samples import GpuUseSample, JobUseSample, NodeUseSample, UseSamples
from gschedd.monitor.history import DAY_S, UseHistory, job_points, node_points
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.page.charts import chart

BEGIN_S = 1_795_000_200.0  # where five minutes begin


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        for table in UseHistory.tables:
            made.executescript(table.schema)
        yield made


def history(*, keep_days: float = 31.0) -> UseHistory:
    return UseHistory(
        MonitorBegin(
            server="head",
            config=WebConfig(keep_sample_days=keep_days),
            history=HistoryConfig(),
            database="",
            state_dir="",
            head_socket="",
            socket="",
            operators=(),
        )
    )


def samples(at_s: float, *, busy: float = 50.0, job: int = 7) -> UseSamples:
    load = Load(cpu_percent=10.0, gpu_util_percent=(busy,), gpu_memory_used_bytes=(1 << 30,))
    gpu = GpuUseSample(index=0, memory_bytes=8 << 30, jobs=(job,))
    node = NodeUseSample(name="n1", state="up", cpus=4, gpus=(gpu,), load=load)
    away = NodeUseSample(name="n2", state="unreachable", cpus=4, gpus=(gpu,), load=load)
    use = JobUseSample(id=job, user="alice", queue="q", cpus=2, use=LiveUse(cpu_cores=1.5))
    return UseSamples(now_s=at_s, nodes=(node, away), jobs=(use,))


def test_means_of_five_minutes_outlive_a_day(db: sqlite3.Connection) -> None:
    kept = history()
    for step in range(25):
        kept.note_samples(db, samples(BEGIN_S + 15 * step, busy=40.0 if step < 10 else 60.0))
    fine = node_points(db, "n1", BEGIN_S, BEGIN_S + 3600)
    coarse = node_points(db, "n1", BEGIN_S - DAY_S, BEGIN_S + 3600)

    assert len(fine) == 25
    assert [(at_s, each.gpus[0].busy) for at_s, each in coarse] == [(int(BEGIN_S), 50.0)]
    assert coarse[0][1].gpus[0].jobs == (7,)
    assert node_points(db, "n2", BEGIN_S, BEGIN_S + 3600) == []


def test_jobs_are_recorded_once_a_minute(db: sqlite3.Connection) -> None:
    kept = history()
    for step in range(9):
        kept.note_samples(db, samples(BEGIN_S + 15 * step))

    assert [at_s - BEGIN_S for at_s, _ in job_points(db, 7, BEGIN_S, BEGIN_S + 600)] == [0, 60, 120]


def test_what_is_too_old_is_removed(db: sqlite3.Connection) -> None:
    kept = history(keep_days=2.0)
    for day in range(5):
        for step in (0, 400):
            kept.note_samples(db, samples(BEGIN_S + day * DAY_S + step))
    newest_s = BEGIN_S + 4 * DAY_S
    counts = {
        table.name: db.execute(f"SELECT min(at_s) FROM {table.name}").fetchone()[0]
        for table in UseHistory.tables
    }

    assert counts["node_use"] >= newest_s - DAY_S
    assert newest_s - 2 * DAY_S <= counts["node_use_coarse"] < newest_s - DAY_S


def test_a_chart_has_gaps_where_nothing_was_recorded() -> None:
    points = [(float(at_s), 50.0) for at_s in (*range(0, 600, 15), *range(1800, 2400, 15))]
    drawn = chart("Busy", points, since_s=0, until_s=3600, period_s=15, unit="%", most=100.0)
    empty = chart("Busy", [], since_s=0, until_s=3600, period_s=15, unit="%", most=100.0)

    assert len(drawn.lines) == 2
    assert "1 gap without records" in drawn.words
    assert empty.lines == []
    assert "nothing was recorded" in empty.words
