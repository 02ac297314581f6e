"""Lists in a pipe: one line for each row, whatever stands in it."""

import io

from gsched.cli.show.columns import Column
from gsched.cli.show.render import ROWS_AT_ONCE, write_plain


def test_a_value_that_would_break_its_line_is_made_visible_and_no_other_line_changes() -> None:
    """Lines are checked many at a time, so one bad value is among clean ones, in each part."""
    columns = (Column("Name"), Column("User"), Column("Reason"))
    clean = [(f"job {number}", "ann", "") for number in range(ROWS_AT_ONCE)]
    bad = [("a\tb", "ann", "x"), ("ann", "a\nb", "x"), ("\x1b[2J", "", "x"), ("é", "ann", "ok")]
    out = io.StringIO()

    write_plain(columns, iter([*clean, *bad, *clean]), out)

    lines = out.getvalue().split("\n")
    same = [f"job {number}\tann\t-" for number in range(ROWS_AT_ONCE)]
    assert lines[0] == "Name\tUser\tReason"
    assert lines[1:-1] == [
        *same,
        "a\\tb\tann\tx",
        "ann\ta\\nb\tx",
        "\\x1b[2J\t-\tx",
        "é\tann\tok",
        *same,
    ]
    assert lines[-1] == ""


def test_a_list_without_rows_has_its_titles() -> None:
    """So a program that reads it knows the columns."""
    out = io.StringIO()

    write_plain((Column("Name"), Column("User")), [], out)

    assert out.getvalue() == "Name\tUser\n"
