"""Lists in which the elements of arrays stand beside their array, each once."""

from typing import Final

from msgspec import structs

from gsched.client import Head
from gsched.model.ids import array_of
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.model.states import JobState
from gsched.protocol.api import JobList, JobRow

_RESTING: Final = (JobState.QUEUED, JobState.HELD, JobState.WAITING)


def with_running_elements(head: Head, reply: JobList) -> JobList:
    """Return a list with the elements of its arrays that run; the array stands for the others."""
    arrays = {row.id for row in reply.jobs if row.array is not None}
    every = head.jobs(elements=True).jobs
    running = [r for r in every if array_of(r.id) in arrays and r.state not in _RESTING]
    rows = [
        structs.replace(row, state=JobState.QUEUED.value) if _has_waiting(row) else row
        for row in reply.jobs
        if row.array is None or row.state == JobState.DONE or _has_waiting(row)
    ]
    return structs.replace(reply, jobs=tuple({row.id: row for row in (*rows, *running)}.values()))


def _has_waiting(row: JobRow) -> bool:
    return row.array is not None and row.state == JobState.RUNNING and row.array.waiting > 0


def with_elements(head: Head, reply: JobList) -> JobList:
    """Return a list in which the elements of arrays stand beside those that still wait."""
    arrays = [row for row in reply.jobs if row.array is not None]
    if not arrays:
        return reply
    past = head.history(ids=",".join(f"{row.id}[]" for row in arrays), limit=str(MAX_HISTORY_ROWS))
    ended = sorted((row for row in past.jobs if _is_element(row)), key=lambda each: each.id)
    seen = with_running_elements(head, reply)
    known = {array_of(row.id) or row.id for row in ended}
    rows = [r for r in seen.jobs if r.state != JobState.DONE or r.id not in known]
    every = {row.shown_id(past.server): row for row in (*rows, *ended)}
    return structs.replace(reply, jobs=tuple(every.values()))


def _is_element(row: JobRow) -> bool:
    """Return whether a row stands for an element of an array, or for several of them."""
    return array_of(row.id) > 0 or (row.array is not None and row.array.unstarted)
