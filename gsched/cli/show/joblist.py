"""The lists of gstat: which fields they have, and lines that stand for several equal jobs."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from gsched.cli.common import printable
from gsched.cli.show.columns import Column
from gsched.cli.show.jobfields import FIELDS, cells_of
from gsched.cli.show.render import EMPTY, all_printable, plain_lines
from gsched.model.arrays import compressed, format_spans
from gsched.model.ids import array_of, index_of
from gsched.model.states import JobState
from gsched.model.wording import behind_words
from gsched.protocol.columns import reasons
from gsched.protocol.job_rows import JobColumns, JobList

Table = tuple[Sequence[Column], Sequence[Sequence[str]]]
#: A job's id, whether it waits and is no array, and its texts.
Line = tuple[int, bool, tuple[str, ...]]

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
_OF_USERS: Final = ("name", "user")  # texts of users; others are made here
_IDS_MOST: Final = 14  # characters of the identifiers of a line


def table_of(names: Sequence[str], reply: JobList, *, terminal: bool) -> Table:
    """Return columns and lines of some fields, on a terminal in a shorter form."""
    if terminal:
        names = [_ON_TERMINAL.get(name, name) for name in names]
    return cells_of(names, reply.jobs, reply)


def plain_list(reply: JobList) -> Iterator[str]:
    """Yield the lines of a pipe, titles first: those of deadlines only where there are some."""
    late = any(job.deadline_s is not None for job in reply.jobs)
    names = _PLAIN_DEADLINES if late else _PLAIN
    columns, cells = cells_of(names, reply.jobs, reply)
    titles, *texts = plain_lines(columns, cells)
    lines = list(zip([row.id for row in reply.jobs], texts, strict=True))
    for group in reply.columns or ():
        lines += zip(group.ids, _lines_of_group(names, group, reply), strict=True)
    if reply.columns:
        lines.sort(key=itemgetter(0))
    yield titles
    yield from map(itemgetter(1), lines)


def terminal_list(reply: JobList, *, nodes: bool = False, fold: bool = True) -> Table:
    """Return columns and lines for a terminal: one line a job, or for several equal ones.

    Args:
        nodes: show the nodes of jobs instead of reasons.
        fold: put jobs that wait and differ in nothing but their numbers into one line.
    """
    columns, lines = list_lines(_terminal_fields(nodes=nodes), reply)
    groups = list(equal_jobs(lines) if fold else ([line] for line in lines))
    if len(groups) == len(lines):
        return columns, [cells for _, _, cells in lines]
    first, *others = columns
    folded = []
    for group in groups:
        number, count = group[0][2][0], len(group)
        ids = number if count == 1 else ids_words([each for each, _, _ in group])
        folded.append((ids, str(count) if count > 1 else "", *group[0][2][1:]))
    return (first, FIELDS["jobs"], *others), folded


def _terminal_fields(*, nodes: bool) -> Sequence[str]:
    return (*_TERMINAL[:-1], "nodes_first") if nodes else _TERMINAL


def first_page(reply: JobList, *, nodes: bool = False) -> Iterable[str] | None:
    """Return the first lines of a long list, titles first; None: some would be folded.

    Lines of a terminal that are too many for a table are those of a pipe.
    """
    columns, lines = list_lines(_terminal_fields(nodes=nodes), reply)
    if sum(1 for _ in equal_jobs(lines)) < len(lines):
        return None
    return plain_lines(columns, [cells for _, _, cells in lines])


def other_lines(reply: JobList, shown: Collection[int], *, nodes: bool = False) -> Iterator[str]:
    """Yield the lines of a list behind its first page."""
    columns, lines = list_lines(_terminal_fields(nodes=nodes), reply)
    others = plain_lines(columns, [cells for number, _, cells in lines if number not in shown])
    next(others)  # titles
    yield from others


def list_lines(names: Sequence[str], reply: JobList) -> tuple[Sequence[Column], list[Line]]:
    """Return columns and lines of some fields; those of jobs in columns are put in their place."""
    columns, cells = cells_of(names, reply.jobs, reply)
    numbers = [row.id for row in reply.jobs]
    waits = [row.state in _WAITING and row.array is None for row in reply.jobs]
    lines: list[Line] = list(zip(numbers, waits, cells, strict=True))
    for group in reply.columns or ():
        cells_of_jobs = _cells_of_group(names, group, reply)
        waiting = [True] * len(group.ids)
        lines += zip(group.ids, waiting, cells_of_jobs, strict=True)
    if reply.columns:
        lines.sort(key=itemgetter(0))
    return columns, lines


def _lines_of_group(names: Sequence[str], group: JobColumns, reply: JobList) -> Iterable[str]:
    """Return the lines of jobs in columns for a pipe: texts that all have are joined once."""
    form, differing = list[str](), list[Sequence[str]]()
    for name, texts in zip(names, _texts_of_group(names, group, reply), strict=True):
        if isinstance(texts, str):
            form.append((printable(texts) or EMPTY).replace("%", "%%"))
        else:
            form.append("%s")
            differing.append(all_printable(texts) if name in _OF_USERS else texts)
    return map(("\t".join(form) + "\n").__mod__, zip(*differing, strict=True))


def _cells_of_group(
    names: Sequence[str], group: JobColumns, reply: JobList
) -> Iterator[tuple[str, ...]]:
    """Yield the cells of jobs in columns."""
    texts = _texts_of_group(names, group, reply)
    return zip(*(repeat(each) if isinstance(each, str) else each for each in texts), strict=False)


def _texts_of_group(
    names: Sequence[str], group: JobColumns, reply: JobList
) -> Iterator[str | list[str]]:
    """Yield the text that all jobs in columns have in a field, most of them, or that of each."""
    row = group.row
    server = row.shown_id(reply.server).removeprefix(str(row.id))
    _, [same] = cells_of(names, [row], reply)
    for name, text in zip(names, same, strict=True):
        match name:
            case "id":
                yield [f"{number}{server}" for number in group.ids]
            case "job":
                yield list(map(str, group.ids))
            case "name":
                yield group.names
            case "user" if group.users:
                yield group.users
            case "reason" if group.ahead:
                yield reasons(group, printable(text))
            case "nodes_or_reason" | "nodes_first" if group.ahead:
                behind = behind_words(group.first)
                yield [behind if ahead else text for ahead in group.ahead]
            case _:
                yield text


def equal_jobs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Yield lines, those together that wait and that differ in the id only, their first text."""

    def key(line: Line) -> object:
        number, waits, cells = line
        return (array_of(number), cells[1:]) if waits else number

    for _, group in groupby(lines, key=key):
        yield list(group)


def ids_words(numbers: Sequence[int]) -> str:
    """Return ``7-26``, ``9[3-19]`` or ``7,9,...``: jobs, or elements of one array."""
    array = array_of(numbers[0])
    spans = format_spans(compressed(sorted(map(index_of, numbers) if array else numbers)))
    if len(spans) > _IDS_MOST:
        spans = spans[:_IDS_MOST].rpartition(",")[0] + ",..."
    return f"{array}[{spans}]" if array else spans
