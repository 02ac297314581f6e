"""Lists in which the elements of arrays stand beside their array, each once."""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from msgspec import structs

from gsched.client import HeadClient
from gsched.model.arrays import compressed, format_spans, merged, read_spans
from gsched.model.ids import array_of, index_of
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobList, JobRow

_RESTING: Final = (JobState.QUEUED, JobState.HELD, JobState.WAITING)


def with_running_elements(head: HeadClient, reply: JobList) -> JobList:
    """Return a list with the elements of its arrays that run; the array stands for the others."""
    arrays = {row.id for row in reply.jobs if row.array is not None}
    every = [each for each in head.jobs(elements=True).jobs if array_of(each.id) in arrays]
    running = [each for each in every if each.state not in _RESTING]
    resting: dict[int, list[int]] = {}
    for each in every:
        if each.state in _RESTING:
            resting.setdefault(array_of(each.id), []).append(index_of(each.id))
    rows = [
        _waiting(row, resting.get(row.id, ()))
        for row in reply.jobs
        if row.array is None or row.state != JobState.RUNNING or row.array.waiting > 0
    ]
    return structs.replace(reply, jobs=tuple({row.id: row for row in (*rows, *running)}.values()))


def _waiting(row: JobRow, resting: Sequence[int]) -> JobRow:
    """Return an array as the one job that its waiting elements are.

    Args:
        row: of the array, or of another job.
        resting: indices of its elements that are jobs and wait.
    """
    if row.array is None or row.state == JobState.DONE:
        return row
    unmade = [read_spans(text) for text in (row.array.left, row.array.held) if text]
    left = reduce(merged, unmade, compressed(sorted(resting)))
    array = structs.replace(row.array, left=format_spans(left))
    state = JobState.QUEUED.value if row.state == JobState.RUNNING else row.state
    return structs.replace(row, array=array, state=state, started_s=None)


def with_elements(head: HeadClient, reply: JobList) -> JobList:
    """Return a list in which the elements of arrays stand beside those that still wait."""
    arrays = {row.id for row in reply.jobs if row.array is not None}
    if not arrays:
        return reply
    past = head.history(ids=",".join(f"{each}[]" for each in arrays), limit=str(MAX_HISTORY_ROWS))
    ended = sorted((row for row in past.jobs if _is_element(row)), key=lambda each: each.id)
    seen = with_running_elements(head, reply)
    known = {array_of(row.id) or row.id for row in ended}
    rows = [r for r in seen.jobs if r.state != JobState.DONE or r.id not in known]
    every = {row.shown_id(past.server): row for row in (*rows, *ended)}
    return structs.replace(reply, jobs=tuple(every.values()))


def _is_element(row: JobRow) -> bool:
    """Return whether a row stands for an element of an array, or for several of them."""
    return array_of(row.id) > 0 or (row.array is not None and row.array.unstarted)
