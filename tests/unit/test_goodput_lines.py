"""Times between and beyond the sizes that were measured."""

import pytest

from gschedd.models.goodput.lines import on_line


@pytest.mark.parametrize(
    ("size", "expected_s"), [(10, 2.0), (20, 3.0), (40, 5.0), (80, 10.0), (5, 2.0)]
)
def test_a_time_lies_on_the_line_of_its_neighbours(size: int, expected_s: float) -> None:
    assert on_line({10: 2.0, 40: 5.0}, size) == pytest.approx(expected_s)


def test_one_size_is_enough() -> None:
    assert on_line({10: 2.0}, 20) == pytest.approx(4.0)
    assert on_line({10: 2.0}, 5) == pytest.approx(2.0)
