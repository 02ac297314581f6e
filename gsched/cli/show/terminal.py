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

#: Cells are filled with blanks, also the last one of a line; between them are colours' escapes.
_BLANKS_AT_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)
GAP = 2  # blanks between columns
WRAPPED_LEAST = 8  # characters: about a word
WRAPPED_FIRST = 60  # characters: a line that reads well; wider only where no text is cut for it


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


def trimmed(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[str, list[Column], list[list[str]]]:
    """Return what is common to all lines, as a heading, and the columns in which they differ.

    A column without any value is left out.
    """
    values = [{row[at] for row in rows} for at in range(len(columns))]
    common: list[str] = []
    kept: list[int] = []
    for at, column in enumerate(columns):
        if rows and values[at] == {""}:
            continue
        if column.once and len(rows) > 1 and len(values[at]) == 1:
            common.append(f"{column.title}: {rows[0][at]}")
        else:
            kept.append(at)
    lines = [[row[at] for at in kept] for row in rows]
    return ", ".join(common), [columns[at] for at in kept], lines


def fitted_widths(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its index, in order.

    Columns are dropped, the least needed first, only while the others do not fit at their least
    width; those that fit all the same come back, the most needed first. What is left over goes to
    the texts that wrap, up to `WRAPPED_FIRST`, then to those that are cut, then to the first again.

    Args:
        columns: what there is to show.
        natural: the width of the widest cell of each, titles included (characters).
        width: of the terminal (characters).
    """
    shown = dict.fromkeys(range(len(columns)))
    needed = {
        at: min(natural[at], WRAPPED_FIRST) if each.wraps else natural[at]
        for at, each in enumerate(columns)
    }
    if _total(needed) > width:
        shown = {at: None for at in shown if columns[at].drop >= 0}
    by_need = sorted((each.drop, at) for at, each in enumerate(columns) if each.drop > 0)
    dropped: list[int] = []
    for _, at in by_need:
        if _total({each: _least(columns[each], natural[each]) for each in shown}) <= width:
            break
        del shown[at]
        dropped.append(at)
    for at in reversed(dropped):  # a wide one that went later may have left room for them
        wider = {each: _least(columns[each], natural[each]) for each in (*shown, at)}
        if _total(wider) <= width:
            shown = dict.fromkeys(sorted(wider))
    widths = {at: _least(columns[at], natural[at]) for at in shown}
    spare = width - _total(widths)
    if spare < 0:  # no column is left to drop: text over many lines is better than half an id
        for at in (each for each in widths if columns[each].wraps):
            widths[at] = max(WRAPPED_LEAST, widths[at] + spare)
        return widths
    wrapped = [at for at in widths if columns[at].wraps]
    cut = [at for at in widths if not columns[at].wraps]
    for some, most in ((wrapped, WRAPPED_FIRST), (cut, width), (wrapped, width)):
        for at in some:
            more = min(max(0, min(natural[at], most) - widths[at]), spare)
            widths[at] += more
            spare -= more
    return widths


def _least(column: Column, natural: int) -> int:
    return natural if column.least is None else min(natural, column.least)


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
