"""The sections of a report of a day, week or month, in words: for text, CSV and the page. Pure."""

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from gsched.cli.common import printable
from gsched.cli.show.columns import Column
from gsched.cli.show.usage import csv_cell
from gsched.model.units import format_duration, format_size
from gsched.model.wording import counted
from gsched.protocol.reports import PeriodReport, UsePart

#: Rows of a section; the rest is one row.
ROWS_MOST: Final = 15
#: Below this part of their request, users could request less.
LITTLE: Final = 0.3
#: A user with fewer CPU-hours is not worth a word.
WORTH_CPU_HOURS: Final = 10.0


class ReportSection(NamedTuple):
    """A table with its title, and sentences below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str] = ()


def title_of(report: PeriodReport) -> str:
    """Return ``Weekly report of head1: 2026-11-16 to 2026-11-22``."""
    first = _day(report.since_s)
    last = _day(report.until_s - 1.0)
    period = first if first == last else f"{first} to {last}"
    whose = f", {report.filters}" if report.filters else ""
    so_far = " (so far)" if report.until_s > report.now_s else ""
    return f"{report.form.capitalize()} report of {report.server}: {period}{so_far}{whose}"


def sections_of(report: PeriodReport) -> list[ReportSection]:
    """Return the sections that are not empty."""
    found = (
        _summary(report),
        *_shares(report),
        _waits(report),
        _efficiency(report),
        _deadlines(report),
        _predictions(report),
        _moves(report),
        _preemptions(report),
        _idle(report),
        _failures(report),
    )
    return [found[0], *(section for section in found[1:] if section.rows)]


def closing_words(report: PeriodReport) -> list[str]:
    """Return sentences about what is empty, and what the figures count."""
    empty = [
        words
        for words, rows in (
            ("no node was connected", report.offered.nodes),
            ("no job had GPUs", report.gpu_types),
            ("no job that ended had started", report.waits),
            ("no job with a deadline ended", report.deadlines),
            ("no run had a prediction", report.predictions),
            ("no job was migrated", report.moves),
            ("no job was preempted", report.preemptions),
            ("no idle GPUs were recorded", report.idle),
            ("no attempt failed", report.failures),
        )
        if not rows
    ]
    sentences = []
    if empty:
        listed = ", ".join(empty)
        sentences.append(f"Left out: {listed}.")
    sentences.append(
        "Hours of users, accounts, queues and GPU types are those within the period, also of jobs "
        "that still run. All else is of the jobs and attempts that ended in it."
    )
    if report.behind:
        sentences.append(f"{counted(report.behind, 'event')} are not counted yet: report again.")
    return sentences


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_s))


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def percent(part: float | None) -> str:
    """Return ``12.3%``, or nothing where a part is not known."""
    return "" if part is None else f"{part:.1%}"


def _right(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, right=True) for title in titles)


def _summary(report: PeriodReport) -> ReportSection:
    total, offered = report.total, report.offered
    had_cpu = sum(row.cpu_hours for row in report.users)
    had_gpu = sum(row.gpu_hours for row in report.users)
    rows = [
        _offer("CPU-hours", had_cpu, offered.cpu_s, offered.down_cpu_s),
        _offer("GPU-hours", had_gpu, offered.gpu_s, offered.down_gpu_s),
    ]
    jobs = [f"{total.succeeded} succeeded", f"{total.failed} failed"]
    jobs += [f"{total.cancelled} cancelled"] if total.cancelled else []
    nodes = (
        f"Nodes: {offered.nodes}, with {counted(offered.cpus, 'CPU')} and "
        f"{counted(offered.gpus, 'GPU')}."
    )
    return ReportSection(
        "Utilisation",
        (Column(""), *_right("Offered", "Allocated", "Utilisation", "Idle", "Down")),
        [row for row in rows if row],
        (nodes, f"{counted(total.jobs, 'job')} ended: {', '.join(jobs)}."),
    )


def _offer(name: str, had: float, offered_s: float, down_s: float) -> list[str]:
    offered, down = offered_s / 3600, down_s / 3600
    if not offered and not down and not had:
        return []
    part = had / offered if offered else None
    idle = max(0.0, offered - had)
    return [name, _hours(offered), _hours(had), percent(part), _hours(idle), _hours(down)]


def _shares(report: PeriodReport) -> Iterator[ReportSection]:
    for title, heading, rows in (
        ("Use by user", "User", report.users),
        ("Use by account", "Account", report.accounts),
        ("Use by queue", "Queue", report.queues),
        ("Use by GPU type", "GPU type", report.gpu_types),
    ):
        if heading in {"Account", "Queue"} and len(rows) < 2 and not _is_named(rows):
            continue  # it would repeat the total
        columns = (Column(heading), *_right("CPU-hours", "of all", "GPU-hours", "of all"))
        yield ReportSection(title, columns, [_share(row) for row in _shortened(rows)])


def _is_named(rows: Sequence[UsePart]) -> bool:
    return any(row.group != "-" for row in rows)


def _shortened(rows: Sequence[UsePart]) -> list[UsePart]:
    """Return the first rows, and one for the others."""
    if len(rows) <= ROWS_MOST + 1:
        return list(rows)
    rest = rows[ROWS_MOST:]
    others = UsePart(
        group=f"{len(rest)} others",
        cpu_hours=sum(row.cpu_hours for row in rest),
        gpu_hours=sum(row.gpu_hours for row in rest),
        cpu_part=sum(row.cpu_part or 0.0 for row in rest),
        gpu_part=sum(row.gpu_part or 0.0 for row in rest),
    )
    return [*rows[:ROWS_MOST], others]


def _share(row: UsePart) -> list[str]:
    parts = percent(row.cpu_part), percent(row.gpu_part)
    return [row.group, _hours(row.cpu_hours), parts[0], _hours(row.gpu_hours), parts[1]]


def _waits(report: PeriodReport) -> ReportSection:
    columns = (Column("Queue"), *_right("Jobs", "Median", "90 %", "Longest"))
    rows = [
        [row.queue, str(row.jobs), *map(format_duration, (row.median_s, row.p90_s, row.longest_s))]
        for row in report.waits
    ]
    return ReportSection("Waits from submission to start", columns, rows)


def _efficiency(report: PeriodReport) -> ReportSection:
    columns = (Column("User"), *_right("CPUs", "Memory", "GPUs", "CPU-hours", "GPU-hours"))
    used = report.used if len(report.used) > 2 else report.used[1:]  # all of one user are his
    rows = [
        [
            *(each.user, percent(each.cpu), percent(each.memory), percent(each.gpu)),
            *(_hours(each.cpu_hours), _hours(each.gpu_hours)),
        ]
        for each in used[: ROWS_MOST + 1]
    ]
    low = [
        each.user
        for each in report.used[1:]
        if each.cpu is not None and each.cpu < LITTLE and each.cpu_hours > WORTH_CPU_HOURS
    ]
    words = f"Less than {LITTLE:.0%} of their CPUs used: {', '.join(low[:ROWS_MOST])}."
    return ReportSection(
        "Efficiency: part of the requested resources that was used",
        columns,
        rows,
        (words,) if low else (),
    )


def _deadlines(report: PeriodReport) -> ReportSection:
    columns = _right("Jobs", "Met", "Missed", "Guaranteed", "Guaranteed and missed")
    count = report.deadlines
    if count is None:
        return ReportSection("Deadlines", columns, ())
    values = (count.jobs, count.met, count.missed, count.guaranteed, count.broken)
    return ReportSection("Deadlines", columns, [[str(value) for value in values]])


def _predictions(report: PeriodReport) -> ReportSection:
    columns = (Column(""), *_right("Runs", "Bias", "Error", "Below the high prediction"))
    rows = [
        [
            *(each.quantity, str(each.runs), f"{each.bias:+.0%}"),
            *(f"{each.error:.0%}", f"{each.covered:.0%}"),
        ]
        for each in report.predictions
    ]
    words = "Bias and error are medians of (predicted - measured) / measured, with and without sign"
    return ReportSection("Predictions", columns, rows, (f"{words}.",))


def _moves(report: PeriodReport) -> ReportSection:
    columns = _right(
        "Migrations", "Without progress", "Mean", "Longest", "GPU-hours lost", "Checkpoints"
    )
    cost = report.moves
    if cost is None:
        return ReportSection("Migrations", columns, ())
    times = (cost.cost_s, cost.cost_s / cost.moves, cost.longest_s)
    row = [
        *(str(cost.moves), *map(format_duration, times)),
        *(_hours(cost.gpu_hours), format_size(cost.checkpoint_bytes)),
    ]
    return ReportSection("Migrations", columns, [row])


def _preemptions(report: PeriodReport) -> ReportSection:
    columns = _right("Preempted attempts", "Saved", "Jobs", "Users", "GPU-hours lost", "Of all")
    cost = report.preemptions
    if cost is None:
        return ReportSection("Pre-emption", columns, ())
    offered = report.offered.gpu_s / 3600
    row = [
        *(str(cost.attempts), str(cost.saved), str(cost.jobs), str(cost.users)),
        *(_hours(cost.gpu_hours), f"{cost.gpu_hours / offered:.1%}" if offered else ""),
    ]
    words = "Saved are attempts that kept their work: they shrank, migrated or were checkpointed"
    return ReportSection("Pre-emption", columns, [row], (f"{words}.",))


def _idle(report: PeriodReport) -> ReportSection:
    columns = (Column("User"), *_right("Idle GPU-hours", "Given back"))
    rows = [
        [row.user, _hours(row.gpu_hours), _hours(row.returned_gpu_hours)]
        for row in report.idle[:ROWS_MOST]
    ]
    return ReportSection("Idle GPUs", columns, rows)


def _failures(report: PeriodReport) -> ReportSection:
    columns = (Column("Cause"), *_right("Attempts", "Users", "CPU-hours", "GPU-hours"))
    rows = [
        [
            *(row.cause, str(row.attempts), str(row.users)),
            *(_hours(row.cpu_hours), _hours(row.gpu_hours)),
        ]
        for row in report.failures
    ]
    sentences = [
        f"{row.cause.capitalize()}: "
        + ", ".join(f"{node} ({count})" for node, count in row.nodes.items())
        + "."
        for row in report.failures
        if row.nodes
    ]
    return ReportSection("Failed attempts by cause", columns, rows, sentences)


def text_of(report: PeriodReport) -> str:
    """Return the report as text with aligned columns."""
    parts = [title_of(report), ""]
    for section in sections_of(report):
        parts += [section.title, *aligned(section.columns, section.rows), *section.sentences, ""]
    return "\n".join([*parts, *closing_words(report)]) + "\n"


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the columns below each other; none without rows."""
    if not rows:
        return []
    lines = [[column.title for column in columns], *([*map(printable, row)] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return [
        "  "
        + "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def csv_lines(report: PeriodReport) -> Iterator[list[str]]:
    """Yield lines of comma-separated values: section, line, column, value.

    Sections and columns have the names of the JSON document, which end in the unit. The figure's
    points are left out.
    """
    yield ["section", "line", "column", "value"]
    for section in PeriodReport.__struct_fields__:
        value = getattr(report, section)
        if section == "busy" or value is None:
            continue
        if not isinstance(value, list | Struct):
            yield ["report", "", section, csv_cell(value)]
            continue
        for row in value if isinstance(value, list) else [value]:
            name, *columns = row.__struct_fields__
            line = getattr(row, name)
            if not isinstance(line, str):  # a section of one line
                line, columns = "", [name, *columns]
            for column in columns:
                yield from _csv_values(section, csv_cell(line), column, getattr(row, column))


def _csv_values(section: str, line: str, column: str, value: object) -> Iterator[list[str]]:
    """Yield the line of a value, or those of the values in a table."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield [section, line, f"{column}.{key}", csv_cell(each)]
    else:
        yield [section, line, column, csv_cell(value)]
