"""Jobs that a list has in columns, as rows."""

from collections import deque
from collections.abc import Iterator
from copy import copy
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from msgspec import structs

from gsched.model.job import labels_of
from gsched.model.wording import ahead_words, behind_words
from gsched.protocol.job_rows import JobColumns, JobList, JobRow


def with_rows(reply: JobList) -> JobList:
    """Return a list with a row for each job, in the order of ids."""
    if not reply.columns:
        return reply
    rows = [*reply.jobs, *chain.from_iterable(map(rows_of, reply.columns))]
    rows.sort(key=attrgetter("id"))
    return JobList(
        server=reply.server,
        now_s=reply.now_s,
        jobs=tuple(rows),
        errors=reply.errors,
        warning=reply.warning,
    )


def rows_of(group: JobColumns) -> list[JobRow]:
    """Return the rows of jobs in columns, those of ``columns=all``."""
    rows = list(map(copy, repeat(group.row, len(group.ids))))
    for name, values in _differing(group):  # the copies are of this module until it returns
        deque(map(structs.force_setattr, rows, repeat(name), values), maxlen=0)
    return rows


def _differing(group: JobColumns) -> Iterator[tuple[str, list[Any]]]:
    """Yield the fields that are not those of the first row, with their values."""
    yield "id", group.ids
    yield "name", group.names
    yield "submitted_s", group.submitted_s
    for name in ("users", "priorities", "terms"):
        values = getattr(group, name)
        if values:
            yield {"users": "user", "priorities": "priority"}.get(name, name), values
    if group.labels:
        for name in labels_of(group.labels[0]):
            yield name, [getattr(labels, name) for labels in group.labels]
    if group.ahead:
        row, behind = group.row, behind_words(group.first)
        yield "reason", reasons(group, row.reason)
        yield "short_reason", [behind if ahead else row.short_reason for ahead in group.ahead]


def reasons(group: JobColumns, reason: str) -> list[str]:
    """Return why each job of a group waits, as `gschedd` words it for one job."""
    many = f"{ahead_words(2, group.first).removeprefix('2')}; {reason}"
    few = (reason, f"{ahead_words(1, group.first)}; {reason}")
    return [f"{ahead}{many}" if ahead > 1 else few[ahead] for ahead in group.ahead]
