"""Tables: with rich on a terminal, fitted to its width; TAB-separated and whole in a pipe.

In a pipe each row is one line, the first line holds the titles, no value is cut and an empty value
is ``-``, so ``cut -f5``, ``awk`` and spreadsheets can read it.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import IO

from gsched.cli.common import is_terminal, printable, wants_color
from gsched.cli.show.columns import Column

EMPTY = "-"
DRAWN_ROWS_MOST = 2000  # rich draws about 3,000 rows a second; who asks for more wants lines


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


def write_plain(columns: Sequence[Column], rows: Iterable[Sequence[str]], stream: IO[str]) -> None:
    """Write TAB-separated lines, titles first."""
    lines = ["\t".join([column.title for column in columns])]
    for row in rows:
        line = "\t".join([value or EMPTY for value in row])
        # Fast for the many rows that are clean: one test of the whole line.
        if not line.replace("\t", "").isprintable() or line.count("\t") >= len(row):
            line = "\t".join([printable(value) or EMPTY for value in row])
        lines.append(line)
    lines.append("")
    stream.write("\n".join(lines))


def print_fields(fields: Iterable[tuple[str, str]], *, out: IO[str] | None = None) -> None:
    """Print ``name = value`` lines, indented by four, as ``qstat -f`` does."""
    stream = out or sys.stdout
    stream.write("".join(f"    {name} = {printable(value)}\n" for name, value in fields))
