"""Job identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import UnknownJobError
from gsched.model.ids import (
    ARRAYS_END,
    ELEMENT_BASE,
    INDICES,
    array_of,
    element_number,
    format_job_id,
    index_of,
    own_job,
    own_job_number,
    read_job_id,
    short_job_id,
    submitted_number,
)


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
        ("5[", "123[5-10] for several"),
        ("5[x]", "123[5-10] for several"),
        ("5[-1]", "123[5-10] for several"),
        ("5[07]", "123[5-10] for several"),
        ("5[1-]", "123[5-10] for several"),
        ("5[1,]", "123[5-10] for several"),
        ("5[1-2-3]", "123[5-10] for several"),
        ("5[1:2]", "123[5-10] for several"),
        ("5[1048576]", "123[5-10] for several"),
        ("9999999999[1]", "123[5-10] for several"),
        ("5[3].a/../6", "123[5-10] for several"),
        ("5[3][4]", "123[5-10] for several"),
        ("12[*].head", "123[5-10] for several"),
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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("123[7]", element_number(123, 7)),
        ("123[0].head", element_number(123, 0)),
        ("1[1048575].head@head", element_number(1, INDICES - 1)),
        ("123[]", 123),
        ("123[].head", 123),
    ],
)
def test_an_element_and_an_array_are_read(text: str, number: int) -> None:
    """The whole array is a job, and so is each element."""
    assert own_job_number(text, server="head") == number
    assert str(read_job_id(text)) == text


@pytest.mark.parametrize("text", ["123[5-10]", "123[1,3].head", "123[0-99:2,7]"])
def test_several_elements_are_no_one_job(text: str) -> None:
    """They are read where several may be named, and refused where one job is wanted."""
    assert str(own_job(text, server="head")) == text
    with pytest.raises(UnknownJobError, match="several elements"):
        own_job_number(text, server="head")


def test_an_element_of_another_head_is_refused() -> None:
    """As any job is; and no element is taken for another job's."""
    with pytest.raises(UnknownJobError, match=r"job 12\[3\] belongs to 'other'"):
        own_job("12[3].other", server="head")
    numbers = {own_job_number(text, server="h") for text in ("12", "123", "12[3]", "1[23]")}
    assert len(numbers) == 4


@given(st.integers(1, ARRAYS_END - 1), st.integers(0, INDICES - 1))
def test_the_number_of_an_element_tells_array_and_index(array: int, index: int) -> None:
    """So nothing need be kept; and JSON holds it exactly."""
    number = element_number(array, index)
    assert (array_of(number), index_of(number)) == (array, index)
    assert ELEMENT_BASE <= number < 2**53
    assert short_job_id(number) == f"{array}[{index}]"
    assert own_job_number(format_job_id(number, "head"), server="head") == number


@given(st.integers(1, ELEMENT_BASE - 1))
def test_other_jobs_are_elements_of_no_array(number: int) -> None:
    """T21: Their numbers are those of their submissions."""
    assert array_of(number) == 0
    assert submitted_number(number) == number
    assert submitted_number(element_number(number % (ARRAYS_END - 1) + 1, 5)) < ARRAYS_END
    with pytest.raises(ValueError, match="no element"):
        index_of(number)


@pytest.mark.parametrize(("array", "index"), [(0, 1), (ARRAYS_END, 0), (1, -1), (1, INDICES)])
def test_an_element_out_of_range_has_no_number(array: int, index: int) -> None:
    """It would be that of another array's element."""
    with pytest.raises(ValueError, match="has no element"):
        element_number(array, index)


def test_a_message_stays_short() -> None:
    """Whatever was pasted."""
    with pytest.raises(UnknownJobError) as caught:
        read_job_id("7" * 100_000)
    assert len(caught.value.message) < 100


@given(st.integers(1, ELEMENT_BASE - 1))
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
