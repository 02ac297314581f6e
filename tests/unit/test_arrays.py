"""Indices of the elements of an array."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import InvalidRequestError
from gsched.model.arrays import (
    Array,
    Span,
    Spans,
    common,
    compressed,
    count,
    format_spans,
    holds,
    index_at,
    indices,
    merged,
    place_of,
    read_array,
    read_spans,
    shortest,
    take,
    without,
)
from gsched.model.limits import MAX_ARRAY_SPANS


@pytest.mark.parametrize(
    ("text", "expected", "at_once"),
    [
        ("0-9", range(10), 0),
        ("7", [7], 0),
        ("1,10,50-52", [1, 10, 50, 51, 52], 0),
        ("0-9:2", [0, 2, 4, 6, 8], 0),
        ("0-299%5", range(300), 5),
        ("0-8:2,1-9:2", [0, 2, 4, 6, 8, 1, 3, 5, 7, 9], 0),
        ("1048575", [1048575], 0),
        ("5-5:3%1", [5], 1),
    ],
)
def test_an_array_is_read_as_torque_openpbs_and_slurm_write_it(
    text: str, expected: list[int], at_once: int
) -> None:
    """The order is the user's own."""
    array = read_array(text, most=1000)
    assert list(indices(array.spans)) == list(expected)
    assert array.at_once == at_once
    assert count(array.spans) == len(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("1,,2", "empty"),
        ("1,", "empty"),
        ("%5", "empty"),
        ("9-0", "reversed"),
        ("0-9:0", "step"),
        ("-5", "invalid range"),
        ("a-b", "invalid range"),
        ("1:2", "invalid range"),
        ("1-2-3", "invalid range"),
        ("٣", "invalid range"),
        ("0-1048576", "beyond"),
        ("999999999", "beyond"),
        ("9999999999", "is beyond the highest"),
        ("0-9%0", "at least 1"),
        ("0-9%", "at least 1"),
        ("0-9%-1", "at least 1"),
        ("0-9%5%5", "at least 1"),
        ("0-9%1000000000", "at least 1"),
        ("0-1000", "1001 elements"),
        ("1,2,1", "index 1 twice"),
        ("0-9,5", "index 5 twice"),
        ("0-9:2,0-9:3", "index 0 twice"),
        (",".join(map(str, range(1001))), "1001 ranges"),
    ],
)
def test_what_is_no_array_is_refused_with_the_reason(text: str, words: str) -> None:
    """And nothing of it is guessed."""
    with pytest.raises(InvalidRequestError) as caught:
        read_array(text, most=1000)
    assert words in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 250


SPANS = st.lists(st.integers(0, 60), unique=True).map(lambda found: compressed(sorted(found)))


@given(st.lists(st.integers(0, 10_000), unique=True).map(sorted))
def test_compressed_indices_are_the_same(found: list[int]) -> None:
    """No one is lost, and none is added."""
    assert list(indices(compressed(found))) == found
    assert sorted(indices(shortest(found))) == found


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], ""),
        ([3, 7, 8, 9], "3,7-9"),
        (range(1, 200, 2), "1-199:2"),
        ([1, 3, 10, 12], "1,3,10,12"),
        ([4], "4"),
    ],
)
def test_the_shortest_list_is_the_plain_one_unless_a_step_says_more(
    found: Sequence[int], text: str
) -> None:
    assert format_spans(shortest(found)) == text


def test_no_list_has_more_ranges_than_needed_where_these_are_limited() -> None:
    """Pairs with a step are half as many ranges as single indices."""
    found = [index * 100 + more for index in range(MAX_ARRAY_SPANS) for more in (0, 7)]
    assert len(shortest(found)) == MAX_ARRAY_SPANS


@given(SPANS, SPANS)
def test_spans_are_sets(some: Spans, others: Spans) -> None:
    """What is taken away, common or together is what sets say."""
    one, two = set(indices(some)), set(indices(others))
    assert sorted(indices(without(some, others))) == sorted(one - two)
    assert sorted(indices(common(some, others))) == sorted(one & two)
    both = merged(some, without(others, some))
    assert list(indices(both)) == sorted(one | two)
    assert {each for each in range(61) if holds(some, each)} == one


@given(SPANS, st.integers(0, 70))
def test_the_first_are_taken(some: Spans, most: int) -> None:
    """In order, and nothing is lost."""
    taken, left = take(some, most)
    assert [*indices(taken), *indices(left)] == list(indices(some))
    assert count(taken) == min(most, count(some))


@given(SPANS)
def test_spans_read_back(some: Spans) -> None:
    """As text and as JSON."""
    if some:
        assert list(indices(read_spans(format_spans(some)))) == list(indices(some))
    array = Array(spans=some, at_once=3)
    assert msgspec.json.decode(msgspec.json.encode(array), type=Array) == array


def test_a_hundred_thousand_elements_take_as_much_as_ten() -> None:
    """Deleting a range in the middle leaves two."""
    array = read_array("0-99999", most=100_000)
    left = without(array.spans, (Span(500, 70_000),))
    assert left == (Span(0, 499), Span(70_001, 99_999))
    assert str(array) == "0-99999"
    assert len(msgspec.json.encode(array)) < 40


@given(st.sets(st.integers(0, 999), min_size=1))
def test_each_index_has_a_place_of_its_own(chosen: set[int]) -> None:
    spans = compressed(sorted(chosen))

    places = [place_of(spans, index) for index in indices(spans)]
    assert places == list(range(len(chosen)))
    assert [index_at(spans, place) for place in range(len(chosen))] == sorted(chosen)
    assert index_at(spans, len(chosen)) is None
    assert all(place_of(spans, index) is None for index in set(range(1000)) - chosen)
