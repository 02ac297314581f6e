"""How predicted starts are shown: the words of a list, and on what they stand."""

import time

import pytest

from gsched.cli.show.predictions import ENOUGH_RUNS, _enough
from gsched.cli.times import basis_words, format_start, short_start
from gsched.protocol.job_rows import StartRow
from gsched.protocol.predictions import SpreadRow

NOW_S = time.mktime((2026, 11, 25, 12, 0, 0, 0, 0, -1))

MIXED = (
    "run times of jobs ahead or running: 3 learned from 24 runs, "
    "2 from 4 runs of other jobs and walltimes, 1 from walltimes"
)


@pytest.mark.parametrize(
    ("early_s", "late_s", "expected"),
    [(600, 1200, "12:15 (12:10-12:20)"), (900, 910, "12:15"), (900, 900, "12:15")],
)
def test_an_interval_without_a_width_is_not_shown(
    early_s: float, late_s: float, expected: str
) -> None:
    start = StartRow(expected_s=NOW_S + 900, early_s=NOW_S + early_s, late_s=NOW_S + late_s)

    assert short_start(start, None, now_s=NOW_S) == expected
    assert ("between" in format_start(start, None, now_s=NOW_S)) == (early_s < late_s)


@pytest.mark.parametrize(
    ("late_s", "late"),
    [(23 * 3600, "11:00"), (24 * 3600, "Nov 26 12:00"), (400 * 86400, "2027-12-30 12:00")],
)
def test_a_date_is_shown_where_a_time_is_not_enough(late_s: float, late: str) -> None:
    start = StartRow(expected_s=NOW_S + 900, early_s=NOW_S + 600, late_s=NOW_S + late_s)

    assert short_start(start, None, now_s=NOW_S) == f"12:15 (12:10-{late})"


def test_a_forecast_that_is_being_computed_is_a_word_in_the_list() -> None:
    start = StartRow(unknown="not known yet: the forecast is still being computed; ask again later")

    assert short_start(start, None, now_s=NOW_S) == "computing"
    assert short_start(StartRow(unknown="the job is held"), None, now_s=NOW_S) == "unknown"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (StartRow(scenarios=20, counted=3), "run times from walltimes"),
        (StartRow(scenarios=20, counted=3, learned=3, runs=12), "run times learned from 12 runs"),
        (
            StartRow(scenarios=20, counted=1, blended=1, other_runs=1),
            "run times from 1 run of other jobs and walltimes",
        ),
        (
            StartRow(scenarios=20, counted=6, learned=3, runs=24, blended=2, other_runs=4),
            MIXED,
        ),
        (StartRow(counted=3), ""),
    ],
)
def test_the_basis_names_runs_and_walltimes(row: StartRow, expected: str) -> None:
    assert basis_words(row) == expected


def test_errors_of_few_runs_are_not_shown_of_a_node() -> None:
    assert _enough(SpreadRow(runs=ENOUGH_RUNS - 1, median=20.0, p90=30.0)) == "-"
    assert _enough(SpreadRow(runs=ENOUGH_RUNS, median=0.1, p90=0.4)) == "10%/40%"
    assert _enough(None) == "-"
