"""Lists in a pipe: one line for each row, whatever stands in it."""

import io
from collections.abc import Sequence

import pytest

from gsched.cli.commands import gprio, gshare
from gsched.cli.show.columns import Column
from gsched.cli.show.render import ROWS_AT_ONCE, write_plain
from gsched.cli.show.terminal import print_rich_table


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


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (
            gshare.COLUMNS,
            "    vision|elisabeth|40|0.333333|12345.67|12345.67|4940000|0.333326|1.000023|0.800000",
        ),
        (
            gprio.COLUMNS,
            "1234567.site|elisabeth|vision|gpu|urgent|900.00|0.4000|400.00|7.25|12.50|0.00|500.00|0.00",
        ),
    ],
)
@pytest.mark.parametrize("width", [80, 120])
def test_a_list_of_shares_or_terms_leaves_columns_out_instead_of_cutting_all(
    columns: Sequence[Column], row: str, width: int
) -> None:
    """Names and factors are whole, and the lines fit."""
    out = io.StringIO()
    print_rich_table(columns, [row.split("|")], colored=False, out=out, width=width)

    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    assert "elisabeth" in lines[1]
    assert "Fair share" in lines[0]
