"""Job identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import UnknownJobError
from gsched.model.ids import format_job_id, parse_job_id


@pytest.mark.parametrize(
    "text", ["123", "123.head", "123.head.example.org", "123.head@other", " 123 "]
)
def test_an_id_is_read_in_all_its_forms(text: str) -> None:
    """The server's name is not compared: there is one head."""
    assert parse_job_id(text) == 123


@pytest.mark.parametrize("text", ["", "abc", "-1", "1 2", "1.a b", "12x", "٣", "1" * 19])
def test_what_is_no_id_is_refused(text: str) -> None:
    """In Torque's words."""
    with pytest.raises(UnknownJobError, match="Unknown Job Id"):
        parse_job_id(text)


@given(st.integers(1, 10**18 - 1))
def test_an_id_survives_being_written(number: int) -> None:
    """123.server reads back as 123."""
    assert parse_job_id(format_job_id(number, "head")) == number
