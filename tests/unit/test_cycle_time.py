"""How many jobs a cycle starts follows from how long the last one took."""

import pytest

from gschedd.core.cycle.run import MAX_STARTS
from gschedd.engine.loop import CYCLE_S, STARTS_LEAST, starts_max


@pytest.mark.parametrize(
    ("most", "starts", "took_s", "expected"),
    [
        (MAX_STARTS, 40, CYCLE_S / 2, MAX_STARTS),  # on many nodes a cycle has fewer starts
        (MAX_STARTS, 100, 2 * CYCLE_S, 50),
        (50, 50, CYCLE_S / 2, 100),
        (200, 200, CYCLE_S / 2, MAX_STARTS),
        (50, 3, CYCLE_S / 2, 50),  # the queue is empty
        (50, 3, 100 * CYCLE_S, STARTS_LEAST),  # it is not the starts that take long
        (STARTS_LEAST, STARTS_LEAST, CYCLE_S, 2 * STARTS_LEAST),
        (20, 0, 100 * CYCLE_S, 20),
    ],
)
def test_the_limit_of_starts_keeps_cycles_short(
    most: int, starts: int, took_s: float, expected: int
) -> None:
    assert starts_max(most, starts, took_s) == expected
