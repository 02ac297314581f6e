"""Tables on a terminal, drawn with rich; only imported when there is a terminal."""

from collections.abc import Iterable, Sequence
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gsched.cli.common import printable
from gsched.cli.render import Column


def rich_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table that fits the console: texts wrap where they may, else are cut with ``…``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            style=column.style or None,
            min_width=min(len(column.title), 4),
        )
    for row in rows:
        table.add_row(*[Text(printable(value)) for value in row])
    return table


def console(out: IO[str], *, colored: bool) -> Console:
    """Return a console for ``out`` that follows our rules of colour, not its own."""
    return Console(
        file=out,
        no_color=not colored,
        color_system="auto" if colored else None,
        force_terminal=True if colored else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_rich_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, colored: bool, out: IO[str]
) -> None:
    """Print a table on a terminal."""
    console(out, colored=colored).print(rich_table(columns, rows))
