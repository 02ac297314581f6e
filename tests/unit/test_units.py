"""Times and sizes as PBS users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import BadResourceError
from gsched.model.units import (
    exact_size,
    format_duration,
    format_size,
    parse_duration_s,
    parse_interval_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("1:30", 90),
        ("01:00:00", 3600),
        ("2:00:00:00", 172800),
        ("0:0:0:0.5", 0.5),
        ("100:00:00", 360000),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1.5h", 5400),
        ("1d2h3m4s", 93784),
    ],
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    """Torque's colons, plain seconds, and units."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "x", "1:2:3:4:5", "1:", ":1", "1h30", "h", "1.5:00", "1x", "٣"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """With the text, and what to write."""
    with pytest.raises(BadResourceError, match="invalid time") as refused:
        parse_duration_s(text)

    assert repr(text) in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("text", ["0", "0:00", "-5", "-1:00:00", "0s"])
def test_a_time_of_nothing_is_refused(text: str) -> None:
    """A job of no time would be over before it began."""
    with pytest.raises(BadResourceError, match="greater than zero"):
        parse_duration_s(text)


def test_a_time_of_nothing_is_read_where_it_turns_something_off() -> None:
    """A negative one never is."""
    assert parse_duration_s("0", zero=True) == parse_duration_s("0:00", zero=True) == 0
    assert parse_interval_s("0ms", zero=True) == parse_interval_s("0s", zero=True) == 0
    with pytest.raises(BadResourceError, match="must not be negative"):
        parse_duration_s("-5", zero=True)


@pytest.mark.parametrize("text", ["9" * 400, "10000000001", "9" * 400 + ":00:00", "9" * 400 + "d"])
def test_a_time_beyond_reason_is_refused(text: str) -> None:
    """As a float it would be infinite, and infinite is not JSON."""
    with pytest.raises(BadResourceError, match="exceeds the limit of"):
        parse_duration_s(text)


@given(st.integers(1, 10**9))
def test_a_time_survives_being_written(seconds: int) -> None:
    """Whole seconds do."""
    assert parse_duration_s(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512", 512),
        ("512b", 512),
        ("1kb", 1024),
        ("4gb", 4 * 1024**3),
        ("4G", 4 * 1024**3),
        ("4GiB", 4 * 1024**3),
        ("195312K", 195312 * 1024),
        ("1.5mb", 1536 * 1024),
        ("2gw", 16 * 1024**3),
        ("3w", 24),
        (" 1tb ", 1024**4),
        ("1pb", 1024**5),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    """Powers of 1024; words are 8 bytes; whole numbers are exact."""
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "gb", "-1gb", "1xb", "1 gb", "1gbb", "9" * 5000, "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """With what to write."""
    with pytest.raises(BadResourceError, match="invalid size"):
        parse_size_bytes(text)


def test_a_size_beyond_reason_is_refused() -> None:
    """More than 64 bits could hold in a sum."""
    assert parse_size_bytes("1024pb") == 1024**6
    with pytest.raises(BadResourceError, match="exceeds the limit of 1024 petabytes"):
        parse_size_bytes("1025pb")


@given(st.integers(0, 1024**6))
def test_a_size_survives_being_written_exactly(size_bytes: int) -> None:
    """In the largest unit that states it."""
    assert parse_size_bytes(exact_size(size_bytes)) == size_bytes


def test_times_and_sizes_for_people() -> None:
    """Hours may exceed a day; sizes are rounded."""
    assert format_duration(None) == "--"
    assert format_duration(359999.9) == "99:59:59"
    assert [format_size(size) for size in (0, -1, 1023, 1024, 1536, 1024**4)] == [
        "0b",
        "0b",
        "1023b",
        "1kb",
        "1.5kb",
        "1tb",
    ]
    assert [exact_size(size) for size in (0, 1025, 3 * 1024**2)] == ["0b", "1025b", "3mb"]
