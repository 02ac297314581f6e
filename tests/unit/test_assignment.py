"""The assignment of configurations to jobs: as good as trying all, and honest about its gap."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gschedd.allocation.adaptive.assignment import solve
from gschedd.allocation.adaptive.core import SearchLimits
from gschedd.allocation.adaptive.prices import best_prices
from gschedd.allocation.adaptive.problem import Assignment, AssignmentError, Problem
from scripts.bench.sia_instance import from_table, kept_by

EXACT = SearchLimits(gap=0.0, nodes=10_000, time_s=60.0, columns=100_000)


def table(seed: int, jobs: int, configurations: int, types: int, **changes: Any) -> dict[str, Any]:
    """Return arrays of a random problem; some costs are equal, some are forbidden."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 2, 3, 4, 8], configurations)
    cost = (gpus * rng.uniform(0.3, 2.0, (jobs, configurations))) ** -0.5
    if seed % 3 == 0:
        cost = np.round(cost, 1)
    cost[rng.random(cost.shape) < 0.2] = rng.choice([np.inf, np.nan, -np.inf])
    arrays = {
        "cost": cost,
        "config_type": rng.integers(0, types, configurations),
        "config_gpus": gpus,
        "capacity": rng.integers(0, max(2 * jobs // types, 2), types),
        "lambda_n": float(rng.choice([0.7, 1.1, 5.0])),
    }
    return {**arrays, **changes}


def solved(*arrays: Any, limits: SearchLimits | None = None, **more: Any) -> Assignment:
    """Return the best assignment of a table of costs."""
    return solve(from_table(*arrays, **more), limits)


def brute_force(arrays: dict[str, Any], kept: list[int]) -> float:
    """Return the lowest cost of all assignments; infinite where there is none."""
    cost, types, gpus = arrays["cost"], arrays["config_type"], arrays["config_gpus"]
    options = [
        [kept[job]] if kept[job] > -2 else [-1, *np.flatnonzero(np.isfinite(row)).tolist()]
        for job, row in enumerate(cost)
    ]
    best = float(np.inf)
    for choice in itertools.product(*options):
        used = np.zeros(len(arrays["capacity"]))
        value = 0.0
        for job, configuration in enumerate(choice):
            if configuration < 0:
                value += arrays["lambda_n"]
            else:
                value += cost[job, configuration]
                used[types[configuration]] += gpus[configuration]
        if np.all(used <= arrays["capacity"]):
            best = min(best, float(value))
    return best


def check_feasible(arrays: dict[str, Any], found: Assignment) -> None:
    """Assert that an assignment is allowed, and costs what it says."""
    chosen = found.configuration
    runs = np.flatnonzero(chosen >= 0)
    costs = arrays["cost"][runs, chosen[runs]]
    used = np.bincount(
        arrays["config_type"][chosen[runs]],
        weights=arrays["config_gpus"][chosen[runs]],
        minlength=len(arrays["capacity"]),
    )

    assert len(chosen) == len(arrays["cost"])
    assert np.all(np.isfinite(costs))
    assert np.all(used <= arrays["capacity"])
    waiting = len(chosen) - len(runs)
    assert found.objective == pytest.approx(costs.sum() + arrays["lambda_n"] * waiting)
    assert found.bound <= found.objective


@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 4), st.integers(1, 3))
def test_small_problems_are_solved_as_by_trying_all(
    seed: int, jobs: int, configurations: int, types: int
) -> None:
    arrays = table(seed, jobs, configurations, types)
    found = solved(**arrays, limits=EXACT)

    check_feasible(arrays, found)
    assert found.objective == pytest.approx(brute_force(arrays, [-2] * jobs), abs=1e-7)
    assert found.gap < 1e-7


@given(st.integers(0, 10**6), st.data())
def test_jobs_that_keep_their_configuration_do_so_at_any_price(
    seed: int, data: st.DataObject
) -> None:
    jobs, configurations = 4, 3
    arrays = table(seed, jobs, configurations, 2)
    kept = data.draw(st.lists(st.integers(-2, 2), min_size=jobs, max_size=jobs))
    for job, configuration in enumerate(kept):
        if configuration >= 0 and not np.isfinite(arrays["cost"][job, configuration]):
            kept[job] = -2
    best = brute_force(arrays, kept)
    if best == np.inf:
        with pytest.raises(AssignmentError, match="keep their configuration use"):
            solved(**arrays, kept=np.array(kept), limits=EXACT)
        return
    found = solved(**arrays, kept=np.array(kept), limits=EXACT)

    check_feasible(arrays, found)
    assert found.objective == pytest.approx(best, abs=1e-7)
    for job, configuration in enumerate(kept):
        assert configuration == -2 or found.configuration[job] == configuration


@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(1, 4))
def test_the_gap_is_never_below_the_true_one(seed: int, jobs: int, types: int) -> None:
    """However early the search ends, and whatever the true optimum is."""
    arrays = table(seed, jobs, 12, types)
    best = solved(**arrays, limits=EXACT)
    for limits in (
        SearchLimits(gap=1.0),
        SearchLimits(gap=0.0, nodes=1, columns=300),
        SearchLimits(gap=0.0, columns_first=1, columns=1),
        SearchLimits(gap=0.0, columns_first=4, columns=16),
        SearchLimits(gap=1e-2),
        SearchLimits(),
    ):
        found = solved(**arrays, limits=limits)
        check_feasible(arrays, found)

        true_gap = (found.objective - best.objective) / abs(found.objective)
        assert found.gap >= true_gap - 1e-9
        assert found.bound <= best.objective + 1e-7


@given(st.integers(0, 10**6))
def test_prices_bound_every_assignment(seed: int) -> None:
    arrays = table(seed, 5, 4, 2)
    arrays["cost"] = np.minimum(np.nan_to_num(arrays["cost"], posinf=1.0, neginf=1.0, nan=1.0), 1.0)
    priced = best_prices(from_table(**arrays))

    assert priced.bound <= brute_force(arrays, [-2] * 5) + 1e-9
    assert np.all(priced.prices >= 0)
    assert np.all(priced.reduced >= 0)


def test_jobs_that_are_alike_are_solved_in_no_time() -> None:
    """Their symmetry would keep a plain branch and bound busy for hours."""
    rng = np.random.default_rng(5)
    gpus = np.array([1, 2, 4, 8, 1, 2, 4, 8])
    kinds = (gpus * rng.uniform(0.5, 2.0, (4, 8))) ** -0.5
    found = solved(
        cost=np.repeat(kinds, 100, axis=0),
        config_type=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        config_gpus=gpus,
        capacity=np.array([333, 217]),
        lambda_n=1.1,
    )

    assert found.gap <= SearchLimits().gap
    assert found.considered <= 4_000


@pytest.mark.parametrize(("factor", "offset"), [(1e-9, 0.0), (1e9, 0.0), (1.0, 1e6)])
def test_the_unit_of_costs_makes_no_difference(factor: float, offset: float) -> None:
    arrays = table(4, 40, 10, 3)
    stated = {
        **arrays,
        "cost": factor * arrays["cost"] + offset,
        "lambda_n": factor * arrays["lambda_n"] + offset,
    }
    plain, found = solved(**arrays, limits=EXACT), solved(**stated, limits=EXACT)

    assert found.objective == pytest.approx(factor * plain.objective + 40 * offset, rel=1e-9)
    assert found.gap < 1e-7


def test_equal_problems_give_equal_assignments() -> None:
    arrays = table(3, 200, 20, 3)
    first, second = (solved(**arrays) for _ in range(2))

    assert np.array_equal(first.configuration, second.configuration)
    assert (first.objective, first.bound) == (second.objective, second.bound)


def test_positive_powers_are_costs_below_zero() -> None:
    """A maximised goodput is a negative cost; a job that gains nothing may as well wait."""
    cost = np.array([[-1.0, -3.0], [-2.0, -2.5]])
    found = solved(cost, np.array([0, 0]), np.array([1, 2]), np.array([3]), 1.1)

    assert found.configuration.tolist() == [1, 0]
    assert found.objective == pytest.approx(-5.0)


def test_without_gpus_or_jobs_nothing_runs() -> None:
    none = solved(np.ones((2, 1)), np.array([0]), np.array([1]), np.array([0]), 1.1)
    empty = solved(np.ones((0, 1)), np.array([0]), np.array([1]), np.array([4]), 1.1)

    assert (none.configuration.tolist(), none.objective, none.gap) == ([-1, -1], 2.2, 0.0)
    assert (empty.configuration.tolist(), empty.objective, empty.gap) == ([], 0.0, 0.0)


def test_jobs_that_must_run_and_cannot_all_are_an_error() -> None:
    problem = from_table(np.ones((3, 2)), np.array([0, 0]), np.array([1, 2]), np.array([2]), np.inf)
    with pytest.raises(AssignmentError, match="do not fit together"):
        solve(problem)


def test_a_job_that_must_run_displaces_others() -> None:
    problem = Problem(
        waiting_cost=np.array([1.0, np.inf]),
        usage=np.array([[1.0]]),
        capacity=np.array([1.0]),
        job=np.array([0, 1]),
        configuration=np.array([0, 0]),
        cost=np.array([0.1, 5.0]),
    )

    assert solve(problem).configuration.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config_gpus": np.array([1, 2, 3])}, "config_gpus has shape"),
        ({"config_type": np.array([0, 7])}, "names type 7, and capacity has 2 types"),
        ({"capacity": np.array([1, -1])}, "-1 units: there can be no less than 0"),
        ({"config_gpus": np.array([1, -2])}, "uses less than nothing"),
        ({"lambda_n": float("nan")}, "cost of waiting is not a number"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    arrays = table(1, 2, 2, 2, config_type=np.array([0, 1]), capacity=np.array([4, 4]))
    with pytest.raises(AssignmentError, match=message):
        solved(**{**arrays, **changes})


def test_a_kept_configuration_that_is_forbidden_is_refused() -> None:
    arrays = table(1, 1, 1, 1, cost=np.array([[np.inf]]), capacity=np.array([4]))
    with pytest.raises(AssignmentError, match="job 0 keeps configuration 0, but may not have it"):
        solved(**arrays, kept=np.array([0]))


@pytest.mark.parametrize(
    ("forced", "kept"),
    [
        (np.array([True, False, True]), [4, -2, -1]),
        (np.array([1, 0, 1]), [4, -2, -1]),
        (np.array([2]), [-2, -2, -1]),
        (np.array([], dtype=int), [-2, -2, -2]),
        (np.array([2, 0, 1]), [4, 0, -1]),
    ],
)
def test_forced_jobs_are_booleans_or_indices(forced: Any, kept: list[int]) -> None:
    assert kept_by(np.array([4, 0, -1]), forced, 5).tolist() == kept


@pytest.mark.parametrize(
    ("prev", "forced", "message"),
    [
        ([5, 0], [0], "configurations are 0 to 4"),
        ([4, 0], [2], "forced_jobs names job 2"),
        ([4, 0], [True], "give one boolean for each of 2 jobs"),
    ],
)
def test_jobs_and_configurations_that_do_not_exist_are_refused(
    prev: list[int], forced: list[int], message: str
) -> None:
    with pytest.raises(AssignmentError, match=message):
        kept_by(np.array(prev), np.array(forced), 5)
