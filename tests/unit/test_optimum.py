"""The most deadlines that could be met, on cases that can be told by hand."""

import importlib.util
import random
from itertools import combinations

import pytest

from scripts.reproduce.optimum_exact import Task, configurations, most_in_time, useful

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is not installed"),
    pytest.mark.timeout(60),  # the solver is imported here first
]

#: On 0, 1 and 2 GPUs.
RATES = (0.0, 1.0, 1.5)


def task(arrives_s: float, deadline_s: float, work: float) -> Task:
    return Task(arrives_s=arrives_s, deadline_s=deadline_s, work=work, rates=RATES)


def test_two_that_fill_the_cluster_leave_no_room_for_a_third() -> None:
    """Each needs one GPU for all of its time; there are two."""
    assert most_in_time([task(0, 100, 100)] * 3, 2) == 2


def test_sharing_one_after_the_other_counts_by_the_slowest_way_that_does() -> None:
    """150 in 100 s need both GPUs all the time: either that one, or two that need one each."""
    assert most_in_time([task(0, 100, 150), task(0, 100, 100)], 2) == 1
    assert most_in_time([task(0, 100, 150), task(50, 200, 100)], 2) == 2


def test_what_takes_longer_than_it_may_cannot_be_met() -> None:
    assert most_in_time([task(0, 100, 151)], 2) == 0


def test_the_future_is_known() -> None:
    """The small one comes later; the large one would have to stop, and goes first instead."""
    assert most_in_time([task(0, 300, 300), task(100, 200, 150)], 2) == 2


def test_without_parallel_speed_it_is_the_known_rule() -> None:
    """On one GPU, all there at once: a set fits if it does in order of deadlines."""
    chance = random.Random(1)
    for _ in range(10):
        jobs = [(chance.randint(1, 9), chance.randint(1, 20)) for _ in range(5)]
        tasks = [
            Task(arrives_s=0, deadline_s=due, work=work, rates=(0.0, 1.0)) for work, due in jobs
        ]

        fitting = max(
            count
            for count in range(len(jobs) + 1)
            for chosen in combinations(jobs, count)
            if _in_order(list(chosen))
        )

        assert most_in_time(tasks, 1) == fitting


def _in_order(jobs: list[tuple[int, int]]) -> bool:
    done = 0
    for work, due in sorted(jobs, key=lambda job: job[1]):
        done += work
        if done > due:
            return False
    return True


def test_only_numbers_that_are_faster_are_of_use() -> None:
    assert useful((0.0, 1.0, 0.9, 1.2)) == (0, 1, 3)
    both = [task(0, 1, 1), task(0, 1, 1)]
    assert sorted(configurations(both, [True, True], 2)) == [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
