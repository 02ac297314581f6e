"""What is measured: gauges and series against plain arithmetic; how jobs progress."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnode.core.task import AttemptKey
from gschedd.sim.agenda import FOREVER, Agenda
from gschedd.sim.measure import MAX_BINS, Gauge, Means, Series, jain, quantile
from gschedd.sim.program import Program
from gschedd.sim.work import FixedWork, SharedWork, Work

A, B, C = (AttemptKey(job, 1) for job in (1, 2, 3))


@given(
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=30),
)
def test_a_gauge_is_mean_and_deviation(changes: list[tuple[int, int]]) -> None:
    """Kept up by differences, it is what the statistics module says of the values."""
    gauge = Gauge([8, 8, 8, 0])
    values = [0.0, 0.0, 0.0]
    for index, used in changes:
        gauge.set(index, used)
        if index < 3:
            values[index] = used / 8

    assert gauge.mean == pytest.approx(statistics.mean(values), abs=1e-6)
    expected = statistics.pstdev(values) / statistics.mean(values) if any(values) else 0.0
    assert gauge.imbalance == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 100_000)), max_size=40))
def test_a_series_keeps_the_area(parts: list[tuple[float, int]]) -> None:
    """However its bins double, and it stays bounded."""
    series = Series(2)
    for value, duration_s in parts:
        series.add((1.0, value), duration_s)

    values = series.values(1)
    assert series.values() == pytest.approx([1.0] * len(values))
    assert len(values) <= MAX_BINS
    total_s = sum(duration_s for _, duration_s in parts)
    widths = [series.width_s] * len(values)
    if values:
        widths[-1] = total_s - series.width_s * (len(values) - 1)
    area = sum(value * width for value, width in zip(values, widths, strict=True))
    assert area == pytest.approx(sum(v * d for v, d in parts), rel=1e-6, abs=1e-3)


def test_an_average_counts_what_it_is_told_to() -> None:
    """The time in which nothing runs says nothing about balance."""
    means = Means(["all", "some"])
    means.add((2, 4), 10, (True, True))
    means.add((1, 0), 90, (True, False))

    assert (means.average("all"), means.average("some")) == (1.1, 4)
    assert means.series.width_s == 1.0
    assert means.over_time("some") == pytest.approx([4.0] * 10 + [0.0] * 90)


def test_quantiles_and_fairness() -> None:
    """Nearest rank; Jain's index is 1 for equals and 1/n for one who has all."""
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.5, 0.9, 1)] == [1, 2, 4, 4]
    assert quantile([], 0.5) == 0
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1


def ends(work: Work, starts: list[tuple[float, AttemptKey, Program]]) -> dict[AttemptKey, float]:
    """Run jobs to their ends and return when those were."""
    found: dict[AttemptKey, float] = {}
    while starts or work.next_end_s() < FOREVER:
        if starts and starts[0][0] <= work.next_end_s():
            now_s, key, program = starts.pop(0)
            work.start(key, program, now_s)
            continue
        now_s = work.next_end_s()
        for key in work.done(now_s):
            work.stop(key, now_s)
            found[key] = now_s
    return found


def test_fixed_jobs_do_not_touch_each_other() -> None:
    """Whatever they use; the speed of the node counts."""
    jobs = [(0.0, A, Program(work_s=10, cpus=9)), (5.0, B, Program(work_s=10, cpus=9))]

    assert ends(FixedWork(4, 0.5), jobs) == {A: 20, B: 25}


def test_shared_jobs_slow_down_where_cpus_are_over_used() -> None:
    """Two jobs of 4 CPUs on 4: each at half speed while both run."""
    jobs = [(0.0, A, Program(work_s=10, cpus=4)), (4.0, B, Program(work_s=10, cpus=4))]

    found = ends(SharedWork(4, 1.0), jobs)

    assert found == {A: pytest.approx(16), B: pytest.approx(20)}


def test_shared_jobs_run_at_full_speed_while_there_is_room() -> None:
    """And use no more than there is."""
    work = SharedWork(4, 1.0)
    work.start(A, Program(work_s=10, cpus=1.5, memory_bytes=7), 0.0)
    work.start(B, Program(work_s=10, cpus=2.5), 0.0)
    assert work.next_end_s() == 10
    assert (work.cpus_used, work.memory_bytes) == (4.0, 7)

    work.start(C, Program(work_s=10, cpus=4), 5.0)
    assert work.cpus_used == 4.0
    assert work.stop(A, 7.0) == pytest.approx(1.5 * (5 + 1))
    assert (work.memory_bytes, work.done(7.0)) == (0, [])


def test_the_clock_only_goes_forward() -> None:
    """What is requested a time in the past happens now, in order."""
    agenda = Agenda(100.0)
    seen: list[str] = []
    agenda.at(90.0, seen.append, "late")
    agenda.at(110.0, seen.append, "then")
    agenda.soon(seen.append, "now")
    agenda.settle()
    assert seen == ["now", "late"]
    assert agenda.next_s() == 110

    agenda.turn_to(110)
    agenda.settle()
    assert (seen[-1], agenda.next_s(), agenda.events) == ("then", FOREVER, 3)


def test_a_cancelled_event_never_happens() -> None:
    """The clock does not stop at it either, and what is planned is counted without it."""
    agenda = Agenda(100.0)
    seen: list[str] = []
    agenda.cancel(agenda.at(110.0, seen.append, "first"))
    second = agenda.after(20.0, seen.append, "second")
    agenda.at(130.0, seen.append, "third")
    assert (len(agenda), agenda.next_s()) == (2, 120.0)

    agenda.cancel(second)
    agenda.turn_to(125.0)
    agenda.settle()
    agenda.turn_to(agenda.next_s())
    agenda.settle()
    assert (seen, agenda.events, len(agenda)) == (["third"], 1, 0)
