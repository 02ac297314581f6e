"""Tables on a terminal, drawn with rich; only imported when there is a terminal."""

import io
import re
from collections.abc import Sequence
from typing import IO

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gsched.cli.common import printable
from gsched.cli.show.columns import Column
from gsched.cli.show.widths import fitted_widths, trimmed

#: Cells are filled with blanks, also the last one of a line; between them are colours' escapes.
_BLANKS_AT_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> Group:
    """Return a table of at most ``width`` characters: texts wrap or are cut where they may.

    What is common to all lines stands above them.
    """
    heading, columns, rows = trimmed(columns, rows)
    cells = [[printable(value) for value in row] for row in rows]
    natural = [
        max([len(column.title), *(cell_len(row[at]) for row in cells)])
        for at, column in enumerate(columns)
    ]
    widths = fitted_widths(columns, natural, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column_width in widths.items():
        column = columns[at]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            style=column.style or None,
            width=column_width,
        )
    for row in cells:
        table.add_row(*[Text(row[at]) for at in widths])
    return Group(*([Text(printable(heading))] if heading else []), table)


def console(out: IO[str], *, colored: bool, width: int | None = None) -> Console:
    """Return a console for ``out`` that follows our rules of colour, not its own."""
    return Console(
        file=out,
        width=width,
        no_color=not colored,
        color_system="auto" if colored else None,
        force_terminal=True if colored else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_rich_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    colored: bool,
    out: IO[str],
    width: int | None = None,
) -> None:
    """Print a table on a terminal; ``width``: of the terminal, where ``out`` is none."""
    width = width or console(out, colored=colored).width
    drawn = io.StringIO()
    console(drawn, colored=colored, width=width).print(rich_table(columns, rows, width=width))
    out.write(_BLANKS_AT_END.sub(_escapes_of, drawn.getvalue()))


def _escapes_of(found: re.Match[str]) -> str:
    return found[0].replace(" ", "")
