"""Which finished jobs are looked up for the dependencies that users state."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from gsched.model.ids import element_number
from gschedd.core.state.state import State
from gschedd.http.past import past_of


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("afterok:12:13.head,afterany:14", {12, 13, 14}),
        ("afterok:12[7]", {12, element_number(12, 7)}),
        ("afterok:12[].head", {12}),
        ("afterok:12[1048576]", {12}),
        ("afterok:99999999999[7]", {99999999999}),
        ("on:2", {2}),
    ],
)
def test_jobs_and_elements_that_are_named_are_looked_up(text: str, numbers: set[int]) -> None:
    """An element of an array by its own number, and the array, in case a count was meant."""
    asked: set[int] = set()

    async def ended_well(wanted: Collection[int]) -> Mapping[int, bool]:
        asked.update(wanted)
        return dict.fromkeys(wanted, True)

    assert asyncio.run(past_of([text], State(), ended_well)) == dict.fromkeys(numbers, True)
    assert asked == numbers
