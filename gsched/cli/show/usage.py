"""The lists of greport: usage of past jobs, in groups. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from gsched.cli.show.columns import Column
from gsched.model.units import format_duration
from gsched.protocol.reports import UsageRow

#: By what jobs are put into groups; a project is what an account is called where there are some.
GROUPS: Final = (
    *("user", "project", "account", "queue", "name", "outcome", "node", "gpu-type"),
    *("day", "week", "month"),
)
COLUMNS: Final = (
    Column("Jobs", right=True),
    Column("Failed", right=True),
    Column("Cancelled", right=True, drop=3),
    Column("CPU-hours", right=True),
    Column("CPU used", right=True, drop=2),
    Column("GPU-hours", right=True),
    Column("Wait", right=True),
    Column("Causes", wraps=True, least=16),
)
CSV_FIELDS: Final = (
    *("group", "jobs", "succeeded", "failed", "cancelled", "cpu_hours", "cpu_hours_used"),
    *("gpu_hours", "cpu_efficiency", "wait_mean_s", "wall_s", "failed_jobs_by_cause"),
)
#: With these at its beginning a spreadsheet takes a text for a formula.
FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


def table_rows(rows: Iterable[UsageRow]) -> list[Sequence[str]]:
    """Return the lines of a table: the group, then `COLUMNS`."""
    return [
        (
            row.group,
            str(row.jobs),
            str(row.failed),
            str(row.cancelled),
            f"{row.cpu_hours:.1f}",
            "" if row.cpu_efficiency is None else f"{row.cpu_efficiency:.0%}",
            f"{row.gpu_hours:.1f}",
            "" if row.wait_mean_s is None else format_duration(row.wait_mean_s),
            ", ".join(f"{count} {cause}" for cause, count in row.causes.items()),
        )
        for row in rows
    ]


def csv_rows(rows: Iterable[UsageRow]) -> list[list[str]]:
    """Return the lines of a file of comma-separated values, titles first."""
    lines = [list(CSV_FIELDS)]
    for row in rows:
        causes = "; ".join(f"{count} {cause}" for cause, count in row.causes.items())
        values = [getattr(row, name) for name in CSV_FIELDS[:-1]]
        lines.append([*map(csv_cell, values), csv_cell(causes)])
    return lines


def csv_cell(value: object) -> str:
    """Return a value as it stands in comma-separated values: numbers whole, texts as texts.

    A text that begins as a formula gets an apostrophe before it; a dash alone is none.
    """
    if value is None:
        return ""
    if isinstance(value, str) and len(value) > 1 and value.startswith(FORMULAS):
        return f"'{value}"
    return str(value)
