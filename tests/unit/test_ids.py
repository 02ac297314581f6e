"""Job identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import UnknownJobError
from gsched.model.ids import format_job_id, own_job_number, read_job_id


@pytest.mark.parametrize("text", ["123", "123.head", "123.HEAD", "123.head@head", "123@head"])
def test_an_id_is_read_in_all_its_forms(text: str) -> None:
    """As gsub prints it, as people shorten it, and as Torque's users write it."""
    assert own_job_number(text, server="head") == 123
    assert str(read_job_id(text)) == text


def test_the_name_of_a_head_may_have_dots() -> None:
    """A shortened name is another name: two sites may both have a ``head``."""
    assert own_job_number("7.head.example.org", server="head.example.org") == 7
    for other in ("7.head", "7.head.example", "7.head.example.org.evil"):
        with pytest.raises(UnknownJobError, match="belongs to"):
            own_job_number(other, server="head.example.org")


@pytest.mark.parametrize("text", ["22.other", "22.head@other", "22@other", "22.hea", "22.head2"])
def test_a_job_of_another_head_is_refused(text: str) -> None:
    """Both names are told, and how the job of this head is written."""
    with pytest.raises(UnknownJobError, match=r"job 22 belongs to '.*'; this head is 'head'") as it:
        own_job_number(text, server="head")
    assert "22.head" in it.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("21..22", "write 21 22"),
        ("21-22", "write 21 22"),
        ("21-22.head", "write 21 22"),
        ("21:22", "write 21 22"),
        ("21,22", "blanks: 21 22"),
        ("5[]", "its own id"),
        ("5[3]", "its own id"),
        ("12[*].head", "its own id"),
        ("12[1-3]", "its own id"),
        ("007", "write 7"),
        ("007.head", "write 7.head"),
        (" 5", "a separate operand"),
        ("5\n", "a separate operand"),
        ("5 6", "a separate operand"),
        ("٣", "digits 0 to 9"),
        ("5\u200b", "digits 0 to 9"),
        ("", "unset"),
        ("0", "looks like"),
        ("+5", "looks like"),
        ("-5", "looks like"),
        ("1" * 19, "looks like"),
        ("5.", "looks like"),
        ("5@", "looks like"),
        ("5.head@", "looks like"),
        ("5.a/../6", "looks like"),
        ("12x", "looks like"),
        ("abc", "looks like"),
        ("1e3", "looks like"),
        ("1_000", "looks like"),
        ("0x10", "looks like"),
    ],
)
def test_what_is_no_id_is_refused_with_what_to_write(text: str, hint: str) -> None:
    """Nothing is guessed: an operand that names several jobs, or none, names no job."""
    with pytest.raises(UnknownJobError) as caught:
        read_job_id(text)
    assert hint in caught.value.hint


def test_a_message_stays_short() -> None:
    """Whatever was pasted."""
    with pytest.raises(UnknownJobError) as caught:
        read_job_id("7" * 100_000)
    assert len(caught.value.message) < 100


@given(st.integers(1, 10**18 - 1))
def test_an_id_survives_being_written(number: int) -> None:
    """123.server reads back as 123."""
    assert read_job_id(format_job_id(number, "head")).number == number


@given(st.text(alphabet="0123456789.[]-,*@ab ", max_size=12))
def test_an_id_says_what_it_said(text: str) -> None:
    """Whatever is accepted is written back without a change, so nothing of it is dropped."""
    try:
        job = read_job_id(text)
    except UnknownJobError:
        return
    assert str(job) == text
