"""The lists of gstat: which fields they have, and lines that stand for several equal jobs."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final

from gsched.cli.show.columns import Column
from gsched.cli.show.jobfields import FIELDS, cells_of
from gsched.model.arrays import compressed, format_spans
from gsched.model.ids import array_of, index_of
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobList, JobRow

Table = tuple[Sequence[Column], Sequence[Sequence[str]]]

#: In a pipe. The first six are Torque's, in its order: id, name, owner, CPU time, state, queue.
_PLAIN: Final = (
    *("id", "name", "user", "cputime", "letter", "queue", "cpus", "gpu", "elapsed", "limit"),
    *("nodes", "reason"),
)
#: The same where any job has a deadline.
_PLAIN_DEADLINES: Final = (*_PLAIN, "by", "ends_by", "slack", "late")
_TERMINAL: Final = (
    *("job", "name", "user", "cputime", "letter", "queue", "any_gpu", "elapsed", "by"),
    *("marked_slack", "nodes_or_reason"),
)
WHY: Final = ("id", "name", "user", "letter", "expected", "why")
#: What a terminal shows in place of a field.
_ON_TERMINAL: Final = {"id": "job", "reason": "short_reason", "why": "why_once"}
#: Tables that have a name for ``--format``.
TABLES: Final = MappingProxyType(
    {
        "short": ("id", "letter", "name"),
        "long": (
            *("id", "name", "user", "letter", "queue", "cpus", "gpu", "elapsed", "limit"),
            *("nodes", "reason"),
        ),
        "start": ("id", "name", "letter", "start", "reason"),
        "usage": (
            *("id", "name", "user", "letter", "elapsed", "cpus", "cpu_use", "memory"),
            *("memory_use", "any_gpu", "gpu_use", "gpu_memory_use", "gpus_idle", "use_age"),
        ),
    }
)
_WAITING: Final = (JobState.QUEUED, JobState.HELD, JobState.WAITING)
_IDS_MOST: Final = 14  # characters of the identifiers of a line


def table_of(names: Sequence[str], reply: JobList, *, terminal: bool) -> Table:
    """Return columns and lines of some fields, on a terminal in a shorter form."""
    if terminal:
        names = [_ON_TERMINAL.get(name, name) for name in names]
    return cells_of(names, reply.jobs, reply)


def plain_list(reply: JobList) -> Table:
    """Return columns and lines for a pipe: those of deadlines only where there are some."""
    late = any(job.deadline_s is not None for job in reply.jobs)
    return cells_of(_PLAIN_DEADLINES if late else _PLAIN, reply.jobs, reply)


def terminal_list(reply: JobList, *, nodes: bool = False, fold: bool = True) -> Table:
    """Return columns and lines for a terminal: one line a job, or for several equal ones.

    Args:
        nodes: show the nodes of jobs instead of reasons.
        fold: put jobs that wait and differ in nothing but their numbers into one line.
    """
    names = (*_TERMINAL[:-1], "nodes_first") if nodes else _TERMINAL
    columns, lines = cells_of(names, reply.jobs, reply)
    if fold:
        both = list(_folded(reply.jobs, lines))
        if len(both) < len(lines):
            first, *others = columns
            lines = [(ids, str(count) if count > 1 else "", *rest) for (ids, *rest), count in both]
            return (first, FIELDS["jobs"], *others), lines
    return columns, lines


def _folded(
    rows: Sequence[JobRow], lines: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield lines, and for how many jobs each stands: those of a run of equal jobs that wait."""
    for group in equal_jobs(rows, lines):
        line = group[0][1]
        if len(group) > 1:
            line = (ids_words([row.id for row, _ in group]), *line[1:])
        yield line, len(group)


def equal_jobs(
    rows: Sequence[JobRow], lines: Sequence[tuple[str, ...]]
) -> Iterator[list[tuple[JobRow, tuple[str, ...]]]]:
    """Yield jobs with their lines, those together that wait and whose lines differ in the id only.

    The id is the first text of a line.
    """

    def key(pair: tuple[JobRow, tuple[str, ...]]) -> object:
        row, line = pair
        waits = row.state in _WAITING and row.array is None
        return (array_of(row.id), line[1:]) if waits else row.id

    for _, group in groupby(zip(rows, lines, strict=True), key=key):
        yield list(group)


def ids_words(numbers: Sequence[int]) -> str:
    """Return ``7-26``, ``9[3-19]`` or ``7,9,...``: jobs, or elements of one array."""
    array = array_of(numbers[0])
    spans = format_spans(compressed(sorted(map(index_of, numbers) if array else numbers)))
    if len(spans) > _IDS_MOST:
        spans = spans[:_IDS_MOST].rpartition(",")[0] + ",..."
    return f"{array}[{spans}]" if array else spans
