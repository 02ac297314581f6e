"""Tables: with rich on a terminal, fitted to its width; TAB-separated and whole in a pipe.

In a pipe each row is one line, the first line holds the titles, no value is cut and an empty value
is ``-``, so ``cut -f5``, ``awk`` and spreadsheets can read it.
"""

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import IO

from gsched.cli.common import is_terminal, printable, wants_color
from gsched.cli.show.columns import Column
from gsched.config.environment import environment

EMPTY = "-"
DRAWN_ROWS_MOST = 2000  # rich draws about 3,000 rows a second; who requests more wants lines
ROWS_AT_ONCE = 250


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    color: str = "auto",
    out: IO[str] | None = None,
) -> None:
    """Print a table for whoever reads: a person at a terminal, or a program.

    Args:
        columns: as many as each row has values.
        rows: texts; control characters in them are made visible.
        color: ``auto``, ``always`` or ``never``.
        out: instead of stdout.
    """
    stream = out or sys.stdout
    if not is_terminal(stream):
        write_plain(columns, rows, stream)
        return
    drawn = list(rows)
    if len(drawn) > DRAWN_ROWS_MOST:
        write_plain(columns, drawn, stream)
        return
    from gsched.cli.show.terminal import print_rich_table  # late: it costs more than all the rest

    print_rich_table(columns, drawn, colored=wants_color(color, stream), out=stream)


def drawn_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], *, color: str = "auto"
) -> str:
    """Return what `print_table` prints on this terminal, for a pager."""
    stream = io.StringIO()
    drawn = list(rows)
    if len(drawn) > DRAWN_ROWS_MOST:
        write_plain(columns, drawn, stream)
        return stream.getvalue()
    from gsched.cli.show.terminal import print_rich_table  # late, as above

    colored = wants_color(color, sys.stdout)
    print_rich_table(columns, drawn, colored=colored, out=stream, width=terminal_width())
    return stream.getvalue()


def terminal_lines() -> int:
    """Return how many lines the terminal of stdout has; ``$LINES`` says more."""
    return _size("LINES") or os.get_terminal_size(sys.stdout.fileno()).lines or 24


def terminal_width() -> int:
    """Return how many columns the terminal of stdout has; ``$COLUMNS`` says more."""
    return _size("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns or 80


def _size(variable: str) -> int:
    text = environment(variable)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def write_plain(columns: Sequence[Column], rows: Iterable[Sequence[str]], stream: IO[str]) -> None:
    """Write TAB-separated lines, titles first."""
    stream.writelines(plain_lines(columns, rows))


def plain_lines(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield TAB-separated lines, titles first."""
    yield "\t".join([column.title for column in columns]) + "\n"
    remaining = iter(rows)
    while some := list(islice(remaining, ROWS_AT_ONCE)):
        yield from _lines(some, len(columns))


def _lines(rows: Sequence[Sequence[str]], width: int) -> Iterable[str]:
    """Return the lines of some rows.

    Nearly all rows are clean, so all of them are looked at together, and one by one only if any
    value holds what would break its line.
    """
    text = "\n".join(map("\t".join, rows)) + "\n"
    bare = text.replace("\t", "").replace("\n", "")
    if len(text) - len(bare) == len(rows) * width and bare.isprintable():
        # A value that is empty lies between two separators, or before the first.
        text = f"\n{text}".replace("\t\t", f"\t{EMPTY}\t").replace("\t\t", f"\t{EMPTY}\t")
        text = text.replace("\t\n", f"\t{EMPTY}\n").replace("\n\t", f"\n{EMPTY}\t")[1:]
        return text.splitlines(keepends=True)
    return ["\t".join(all_printable(row)) + "\n" for row in rows]


def all_printable(values: Sequence[str]) -> Sequence[str]:
    """Return values as a line may have them; nearly all are so already."""
    if "" not in values and "".join(values).isprintable():
        return values
    return [printable(value) or EMPTY for value in values]


def print_fields(fields: Iterable[tuple[str, str]], *, out: IO[str] | None = None) -> None:
    """Print ``name = value`` lines, indented by four, as ``qstat -f`` does."""
    stream = out or sys.stdout
    stream.write("".join(f"    {name} = {printable(value)}\n" for name, value in fields))
