"""What a table on a terminal shows where there is no room for all of it."""

from gsched.cli.show.columns import Column
from gsched.cli.show.terminal import GAP, fitted_widths, trimmed

COLUMNS = (
    Column("Job ID"),
    Column("Name", least=10),
    Column("Used", drop=1),
    Column("Queue", drop=2),
    Column("Reason", wraps=True, least=30),
)
USERS = (Column("Job ID"), Column("User", once=True), Column("GPUs"), Column("Queue", once=True))
NATURAL = (6, 40, 8, 5, 100)


def total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def test_all_columns_have_their_own_width_where_there_is_room() -> None:
    assert fitted_widths(COLUMNS, NATURAL, 200) == dict(enumerate(NATURAL))


def test_what_wraps_gets_lines_that_read_well_before_names_are_whole() -> None:
    """The line is used up."""
    widths = fitted_widths(COLUMNS, NATURAL, 140)

    assert widths == {0: 6, 1: 40, 2: 8, 3: 5, 4: 73}
    assert total(widths) == 140
    assert fitted_widths(COLUMNS, NATURAL, 110) == {0: 6, 1: 23, 2: 8, 3: 5, 4: 60}


def test_names_are_cut_before_a_column_goes() -> None:
    assert fitted_widths(COLUMNS, NATURAL, 70) == {0: 6, 1: 10, 2: 8, 3: 5, 4: 33}


def test_columns_go_in_their_order_and_an_id_is_never_cut() -> None:
    assert fitted_widths(COLUMNS, NATURAL, 66) == {0: 6, 1: 10, 3: 5, 4: 39}
    assert fitted_widths(COLUMNS, NATURAL, 52) == {0: 6, 1: 10, 4: 32}


def test_where_nothing_helps_the_text_gets_narrow_and_the_id_stays_whole() -> None:
    assert fitted_widths(COLUMNS, NATURAL, 40) == {0: 6, 1: 10, 4: 20}
    assert fitted_widths(COLUMNS, NATURAL, 20) == {0: 6, 1: 10, 4: 8}


def test_a_narrow_column_comes_back_where_a_wide_one_had_to_go_after_it() -> None:
    columns = (*COLUMNS[:2], Column("User", drop=1), Column("Deadline", drop=2), COLUMNS[-1])

    assert fitted_widths(columns, (6, 40, 5, 16, 100), 60) == {0: 6, 1: 10, 2: 5, 4: 33}


def test_a_luxury_is_shown_only_where_no_text_is_cut_for_it() -> None:
    columns = (*COLUMNS[:2], Column("Used", drop=-1), *COLUMNS[3:])

    assert fitted_widths(columns, NATURAL, 127) == dict(enumerate((6, 40, 8, 5, 60)))
    assert fitted_widths(columns, NATURAL, 126) == {0: 6, 1: 40, 3: 5, 4: 69}


def test_a_value_that_all_lines_share_stands_above_them_and_an_empty_column_goes() -> None:
    """Of one line alone nothing is common."""
    lines = [("1", "ann", "", "batch"), ("2", "ann", "", "long")]
    heading, columns, rows = trimmed(USERS, lines)

    assert heading == "User: ann"
    assert [column.title for column in columns] == ["Job ID", "Queue"]
    assert rows == [["1", "batch"], ["2", "long"]]
    assert trimmed(USERS, lines[:1])[0] == ""
    assert [len(trimmed(USERS, some)[1]) for some in (lines[:1], [])] == [3, 4]
