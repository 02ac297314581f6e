"""Arrays expanded into their elements: those that are no jobs yet follow from their ranges."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import structs

from gsched.cli.show.jobfields import ending_words
from gsched.cli.times import local_times
from gsched.client import HeadClient
from gsched.errors import UnknownJobError, UsageError
from gsched.model.arrays import count, format_spans, indices, read_spans, shortest
from gsched.model.ids import array_of, element_number, index_of, read_job_id
from gsched.model.limits import MAX_JOBS_PER_REQUEST
from gsched.model.states import JobState
from gsched.protocol.job_rows import JobList, JobRow

#: Failed elements of an array that its line names.
MAX_FAILED: Final = 1000


def all_elements(
    head: HeadClient, reply: JobList, *, user: str = "", finished: bool = False
) -> JobList:
    """Return a list in which the unfinished elements of each array stand in its place.

    Args:
        head: knows those that are jobs.
        reply: the list with the arrays; of an array that is done its line stays.
        user: whose jobs, where the list is of one user's.
        finished: in place of an array that is done stand its elements.
    """
    if finished:
        rows = [each for row in reply.jobs for each in _done_elements(head, row)]
        reply = structs.replace(reply, jobs=tuple(rows))
    arrays = {row.id: row for row in reply.jobs if row.array is not None}
    if not arrays:
        return reply
    made: dict[int, list[JobRow]] = {number: [] for number in arrays}
    for row in head.jobs(user=user, elements=True).jobs:
        if array_of(row.id) in made:
            made[array_of(row.id)].append(row)
    return structs.replace(reply, jobs=tuple(_expanded(reply.jobs, made)))


def _done_elements(head: HeadClient, row: JobRow) -> Sequence[JobRow]:
    """Return the elements of an array that is done, or any other row as it is."""
    if row.array is None or row.array.unstarted or row.state != JobState.DONE:
        return (row,)
    ids = [f"{row.id}[{index}]" for index in indices(read_spans(row.array.indices))]
    return sorted(head.jobs(ids).jobs, key=lambda each: each.id) or (row,)


def expanded_ids(jobs: Sequence[str]) -> Sequence[str]:
    """Return operands, with those that name several elements of an array one by one.

    Raises:
        UsageError: they are too many.
    """
    if not any("[" in each for each in jobs):
        return jobs
    found: list[str] = []
    for text in jobs:
        try:
            job = read_job_id(text)
        except UnknownJobError:
            found.append(text)  # the head, or the client, says what is wrong
            continue
        if job.element is not None or job.elements in {"", "[]"}:
            found.append(text)
            continue
        spans = read_spans(job.elements[1:-1])
        if len(found) + count(spans) > MAX_JOBS_PER_REQUEST:
            raise UsageError(
                f"{text}: more than {MAX_JOBS_PER_REQUEST} jobs are named", hint="name fewer"
            )
        found += [str(job._replace(elements=f"[{index}]")) for index in indices(spans)]
    return found


def with_failed(head: HeadClient, reply: JobList) -> JobList:
    """Return a list in which the line of each array names the elements that have failed."""
    rows = tuple(
        structs.replace(row, reason=_failed_words(head, row))
        if row.array is not None and row.array.failed
        else row
        for row in reply.jobs
    )
    return structs.replace(reply, jobs=rows)


def _failed_words(head: HeadClient, row: JobRow) -> str:
    """Return ``failed: 3,7-9``, before what else is told of an array."""
    past = head.history(ids=f"{row.id}[]", outcome="failed", limit=MAX_FAILED).jobs
    spans = shortest(sorted(index_of(each.id) for each in past if array_of(each.id) == row.id))
    if not spans:
        return row.reason
    more = " and others" if len(past) >= MAX_FAILED else ""
    rest = local_times(row.reason) or ending_words(row)
    words = f"failed: {format_spans(spans)}{more}"
    return f"{words}; {rest}" if rest else words


def _expanded(rows: Sequence[JobRow], made: dict[int, list[JobRow]]) -> Iterator[JobRow]:
    for row in rows:
        if row.array is None or row.state == JobState.DONE:
            yield row
            continue
        yield from sorted([*made[row.id], *unmade(row)], key=lambda each: each.id)


def unmade(row: JobRow) -> Iterator[JobRow]:
    """Yield the lines of the elements of an array that are no jobs yet, or are on hold as such."""
    array = row.array
    assert array is not None, "it is an array"
    waits = JobState.QUEUED if row.state == JobState.RUNNING else JobState(row.state)
    why = f"waits for earlier elements of job {row.id}[]"
    behind = (why, "behind earlier elements")
    for text, state, (reason, short) in (
        (array.left, waits, behind if waits is JobState.QUEUED else (row.reason, row.short_reason)),
        (array.held, JobState.HELD, ("held by user", "")),
    ):
        like = structs.replace(
            row,
            array=None,
            state=state.value,
            letter=state.letter,
            reason=reason,
            short_reason=short,
            started_s=None,
            cpu_s=0.0,
            wall_s=0.0,
            predicted_start_s=None,
        )
        for index in indices(read_spans(text)) if text else ():
            yield structs.replace(like, id=element_number(row.id, index))
