"""The figures of greport: usage of past jobs, in groups. Pure."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gsched.cli.show.columns import Column
from gsched.cli.show.jobfields import gpus_of
from gsched.model.states import OutcomeKind
from gsched.model.units import format_duration
from gsched.protocol.api import JobRow

HOUR_S: Final = 3600.0
#: By what jobs are put into groups.
GROUPS: Final[Mapping[str, Callable[[JobRow], str]]] = MappingProxyType(
    {
        "user": lambda row: row.user,
        "account": lambda row: row.account or "-",
        "queue": lambda row: row.queue,
        "name": lambda row: row.name,
        "outcome": lambda row: _cause(row) or "succeeded",
        "node": lambda row: row.nodes[0] if row.nodes else "-",
        "day": lambda row: _local("%Y-%m-%d", row),
        "month": lambda row: _local("%Y-%m", row),
    }
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
    *("gpu_hours", "cpu_efficiency", "wait_mean_s", "wall_s", "causes"),
)


class UsageRow(Struct, kw_only=True):
    """The usage of one group of past jobs.

    Attributes:
        group: the user, queue and so on; ``total`` of all.
        cpu_hours, gpu_hours: that they had, whether they used them or not.
        cpu_hours_used: CPU time that they used.
        cpu_efficiency: the second part of the first; None: they had none.
        wait_mean_s: from submission to the start, of those that started.
        wall_s: for how long their attempts ran, seconds.
        causes: failed jobs by cause.
    """

    group: str
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    cpu_hours: float = 0.0
    cpu_hours_used: float = 0.0
    gpu_hours: float = 0.0
    cpu_efficiency: float | None = None
    wait_mean_s: float | None = None
    wall_s: float = 0.0
    causes: dict[str, int] = {}


def usage_of(rows: Iterable[JobRow], by: str) -> list[UsageRow]:
    """Return the usage of past jobs in groups, those with the most CPU- and GPU-hours first.

    The last one is the total. An array counts as its elements: those that were jobs have rows of
    their own, and those that never started are together in rows that stand for them.
    """
    of = GROUPS[by]
    groups: dict[str, _UsageSum] = {}
    total = _UsageSum("total")
    for row in rows:
        if not row.jobs:
            continue
        group = groups.setdefault(of(row), _UsageSum(of(row)))
        group.add(row)
        total.add(row)
    found = [each.row() for each in groups.values()]
    if by in {"day", "month"}:
        found.sort(key=lambda each: each.group)
    else:
        found.sort(key=lambda each: (-each.gpu_hours, -each.cpu_hours, each.group))
    return [*found, total.row()]


class _UsageSum:
    """Sums over the jobs of one group."""

    def __init__(self, name: str) -> None:
        self._row = UsageRow(group=name, causes={})
        self._wait_s = 0.0
        self._started = 0

    def add(self, job: JobRow) -> None:
        row = self._row
        row.jobs += job.jobs
        cause = _cause(job)
        if not cause:
            row.succeeded += job.jobs
        elif cause == OutcomeKind.CANCELLED:
            row.cancelled += job.jobs
        else:
            row.failed += job.jobs
            row.causes[cause] = row.causes.get(cause, 0) + job.jobs
        row.wall_s += job.wall_s
        row.cpu_hours += job.cpus * job.wall_s / HOUR_S
        row.gpu_hours += gpus_of(job) * job.wall_s / HOUR_S
        row.cpu_hours_used += job.cpu_s / HOUR_S
        if job.started_s is not None:
            self._wait_s += max(0.0, job.started_s - job.submitted_s)
            self._started += 1

    def row(self) -> UsageRow:
        row = self._row
        if row.cpu_hours > 0:
            row.cpu_efficiency = round(row.cpu_hours_used / row.cpu_hours, 4)
        if self._started:
            row.wait_mean_s = round(self._wait_s / self._started, 1)
        for name in ("cpu_hours", "cpu_hours_used", "gpu_hours", "wall_s"):
            setattr(row, name, round(getattr(row, name), 4))
        row.causes = dict(sorted(row.causes.items(), key=lambda each: (-each[1], each[0])))
        return row


def _cause(row: JobRow) -> str:
    """Return how a job failed, in a word; empty: it succeeded."""
    outcome = row.outcome
    if outcome is None:
        return "unknown"
    if outcome.kind == OutcomeKind.EXITED:
        return "" if outcome.exit_code == 0 else "exit code"
    return str(outcome.kind).replace("_", " ")


def _local(form: str, row: JobRow) -> str:
    return time.strftime(form, time.localtime(row.ended_s or row.submitted_s))


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
        causes = ";".join(f"{cause}={count}" for cause, count in row.causes.items())
        values = [getattr(row, name) for name in CSV_FIELDS[:-1]]
        lines.append(["" if value is None else str(value) for value in values] + [causes])
    return lines
