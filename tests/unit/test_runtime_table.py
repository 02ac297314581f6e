"""Speeds from measured tables."""

import math

import pytest

from gsched.model.training import Training
from gschedd.models.runtime_table import TableSpeed
from gschedd.plan.training import Layout


def speed(*rates: tuple[int, float]) -> TableSpeed:
    return TableSpeed.of(Training(iterations=1000, rates=rates))


def test_measured_rates_are_had_as_they_are_wherever_the_gpus_are() -> None:
    table = speed((2, 5.0), (1, 3.0))

    assert table.rate(Layout(counts=(1,))) == 3.0
    assert table.rate(Layout(counts=(2,))) == table.rate(Layout(counts=(1, 1))) == 5.0


def test_between_two_measurements_the_rate_is_on_their_line() -> None:
    table = speed((2, 4.0), (8, 10.0))

    assert table.at(5) == 7.0
    assert table.at(1) == 2.0, "below the smallest number: in proportion"


def test_beyond_what_was_measured_and_beside_what_cannot_run_nothing_is_known() -> None:
    table = speed((1, 3.0), (4, 5.0), (8, 0.0))

    assert [table.at(count) for count in (4, 5, 8, 9)] == [5.0, 0.0, 0.0, 0.0]


def test_slow_gpus_are_slow() -> None:
    assert speed((1, 3.0)).rate(Layout(counts=(1,), device=0.5)) == 1.5


def test_equal_tables_are_equal_and_hash_alike() -> None:
    assert speed((2, 5.0), (1, 3.0)) == speed((1, 3.0), (2, 5.0))
    assert len({speed((2, 5.0), (1, 3.0)), speed((1, 3.0), (2, 5.0)), speed((1, 3.0))}) == 2


@pytest.mark.parametrize(
    "rates",
    [(), ((0, 1.0),), ((1, 1.0), (1, 2.0)), ((1, -1.0),), ((1, math.nan),), ((1, math.inf),)],
)
def test_what_is_no_table_is_refused(rates: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"GPUs|rates"):
        speed(*rates)
