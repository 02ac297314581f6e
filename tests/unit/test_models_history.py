"""Kinds, records, the bounded history and the medians it is told by."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from baselines.kit.paper_model import History
from gsched.model.job import JobSpec, Owner
from gsched.model.resources import Chunk, Request, Share, Usage
from gsched.model.states import LaunchKind
from gschedd.models.kinds import kind_of
from gschedd.models.medians import STEP, LongMedian, weighted_median
from gschedd.models.records import record_of
from tests.support.runs import GB, kind, rates, run

SPEC = JobSpec(
    owner=Owner(user="alice", uid=1001, gid=1001),
    name="train",
    queue="batch",
    request=Request(chunks=(Chunk(count=2, cpus=4, gpus=1), Chunk(cpus=1, memory_bytes=GB))),
    workdir="/tmp",
    walltime_s=600,
    script_digest="d1",
)


def spec(**changes: object) -> JobSpec:
    return structs.replace(SPEC, **changes)


def test_arguments_do_not_make_another_kind() -> None:
    """The same program on another input."""
    assert kind_of(spec(arguments=("a",))) == kind_of(spec(arguments=("b",)))


@pytest.mark.parametrize(
    "other",
    [
        spec(script_digest="d2"),
        spec(kind="mine"),
        spec(owner=Owner(user="bob", uid=1002, gid=1002)),
        spec(launch=LaunchKind.COMMAND, arguments=("d1",), script_digest=""),
    ],
)
def test_another_script_label_owner_or_launch_is_another_kind(other: JobSpec) -> None:
    """Each of them alone."""
    assert kind_of(other).key != kind_of(SPEC).key


def test_a_label_joins_what_scripts_set_apart() -> None:
    """An explicit --kind stands above the digest."""
    first, second = spec(kind="sweep"), spec(kind="sweep", script_digest="d2", name="x")

    assert kind_of(first).key == kind_of(second).key


def test_an_edited_script_and_a_moved_program_stay_in_the_family() -> None:
    """The job's name, or the program's file name."""
    moved = [
        kind_of(spec(launch=LaunchKind.COMMAND, script_digest="", arguments=(path,)))
        for path in ("/a/solve", "/b/solve")
    ]

    assert kind_of(SPEC).program == kind_of(spec(script_digest="d2")).program
    assert moved[0].key != moved[1].key
    assert moved[0].program == moved[1].program


def test_what_was_asked_for_is_that_of_the_largest_place() -> None:
    """A prediction is about one node."""
    made = kind_of(SPEC)

    assert (made.cpus, made.gpus, made.memory_bytes, made.walltime_s) == (4, 1, GB, 600)


def test_a_record_holds_means_over_the_run() -> None:
    """Cores from core-seconds, GPUs from their mean utilisation."""
    usage = Usage(wall_s=50, cpu_s=100, memory_mean_bytes=GB, gpu_util_mean_percent=25)
    share = Share(node="n1", cpus=4, gpu_indices=(0, 2))

    made = record_of(kind(), share, rates(), usage, ended_s=9, succeeded=True)

    assert made is not None
    assert (made.used.cpu_cores, made.used.memory_bytes, made.used.gpus) == (2, GB, 0.5)
    assert (made.cpu_s, made.node, made.ended_s) == (100, "n1", 9)


def test_peaks_are_kept_beside_the_means() -> None:
    """The busiest cores are at least the mean; GPU memory is its mean where that was sampled."""
    usage = Usage(
        wall_s=50,
        cpu_s=100,
        cpu_peak_cores=3.5,
        gpu_memory_peak_bytes=4 * GB,
        gpu_memory_mean_bytes=GB,
    )
    share = Share(node="n1", cpus=4, gpu_indices=(0,))
    short = Usage(wall_s=2, cpu_s=3, gpu_memory_peak_bytes=4 * GB)

    made = record_of(kind(), share, rates(), usage, ended_s=9, succeeded=True)
    bare = record_of(kind(), share, rates(), short, ended_s=9, succeeded=True)

    assert made is not None
    assert (made.cpu_peak_cores, made.used.gpu_memory_bytes) == (3.5, GB)
    assert made.gpu_memory_peak_bytes == 4 * GB
    assert bare is not None
    assert (bare.cpu_peak_cores, bare.used.gpu_memory_bytes) == (1.5, 4 * GB)


def test_memory_without_samples_is_its_peak() -> None:
    """A run shorter than the sampling interval."""
    usage = Usage(wall_s=5, memory_peak_bytes=GB)

    made = record_of(kind(), Share(node="n", cpus=1), rates(), usage, ended_s=9, succeeded=True)

    assert made is not None
    assert made.used.memory_bytes == GB


def test_a_part_that_never_ran_leaves_no_record() -> None:
    """It says nothing about its kind."""
    share = Share(node="n", cpus=1)

    assert record_of(kind(), share, rates(), Usage(), ended_s=9, succeeded=False) is None


def test_history_is_bounded_in_runs_and_kinds() -> None:
    """The latest stay; sums go over all that there ever were."""
    history = History(max_kinds=2, max_per_kind=3, max_latest=4)
    for number in range(5):
        history.add(run("a", wall_s=number, ended_s=number))
    history.add(run("b"))
    history.add(run("a", wall_s=5))
    history.add(run("c"))

    runs = history.runs("a")
    assert runs is not None
    assert [record.wall_s for record in runs.latest] == [3, 4, 5]
    assert (runs.count, runs.wall_s) == (6, 15)
    assert history.runs("b") is None, "longest without a run"
    assert len(history) == 2
    assert len(history.latest) == 4


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60))
def test_equal_weights_give_the_median(values: list[float]) -> None:
    """The one that everybody knows."""
    order = sorted(range(len(values)), key=values.__getitem__)

    found = weighted_median(values, order, [1.0] * len(values), len(values) / 2)

    assert found == pytest.approx(statistics.median(values))


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 5)), min_size=1, max_size=20))
def test_a_weight_is_a_number_of_copies(pairs: list[tuple[float, int]]) -> None:
    """Weight 3 counts as three values."""
    values = [value for value, _ in pairs]
    order = sorted(range(len(values)), key=values.__getitem__)

    weights = [float(count) for _, count in pairs]
    found = weighted_median(values, order, weights, sum(weights) / 2)

    copies = [value for value, count in pairs for _ in range(count)]
    assert found == pytest.approx(statistics.median(copies))


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=200))
def test_the_long_median_is_the_lower_median_after_every_value(values: list[float]) -> None:
    """To within its step, in any order of arrival."""
    long = LongMedian()
    for count, value in enumerate(values, start=1):
        long.add(value)

        assert abs(long.value() - statistics.median_low(values[:count])) <= STEP / 2 + 1e-9


def test_the_long_median_needs_no_more_memory_for_what_lies_far_out() -> None:
    """Beyond its places everything counts as the last one."""
    long = LongMedian()
    for value in (0.0, 1e300, 1e300):
        long.add(value)

    assert long.value() == pytest.approx(10)
