"""Arrays as users see them: one line, with how many of their elements are in which state."""

from msgspec import structs

from gsched.model.arrays import Spans, count, format_spans
from gsched.model.ids import array_of, element_number, index_of, short_job_id
from gsched.model.states import JobState
from gsched.protocol import job_rows
from gsched.protocol.job_rows import ArrayRow
from gschedd.core.state.records import Job
from gschedd.core.state.state import State


def array_row(job: Job, state: State) -> ArrayRow | None:
    """Return the summary of an array, unfinished or done; None: the job is none."""
    stated, elements = job.spec.array, job.elements
    if stated is None or elements is None:
        return None
    index = state.arrays.get(job.id)
    made, waiting = (len(index.made), index.waiting) if index is not None else (0, 0)
    return ArrayRow(
        indices=format_spans(stated.spans),
        at_once=stated.at_once,
        elements=count(stated.spans),
        left=format_spans(elements.left),
        held=format_spans(elements.held),
        cancelled=format_spans(elements.cancelled),
        waiting=waiting + count(elements.left) + count(elements.held),
        running=made - waiting,
        succeeded=elements.succeeded,
        failed=elements.failed,
        deleted=elements.deleted + count(elements.cancelled),
    )


def unstarted_row(row: job_rows.JobRow, elements: Spans) -> job_rows.JobRow:
    """Return the line of elements that were cancelled together; ``row``: that of the first one."""
    indices, number = format_spans(elements), count(elements)
    array = ArrayRow(
        indices=indices, elements=number, cancelled=indices, deleted=number, unstarted=True
    )
    return structs.replace(row, id=array_of(row.id), array=array)


def original_id(job: Job) -> str:
    """Return the identifier of the job of which one is the rerun: ``56[]``; empty: of none."""
    original = job.spec.rerun_of
    if not original:
        return ""
    if array_of(job.id):
        return short_job_id(element_number(original, index_of(job.id)))
    return f"{original}[]" if job.spec.array is not None else short_job_id(original)


def shown_state(job: Job, state: State) -> JobState:
    """Return the state that users see: an array runs as long as an element has an attempt."""
    index = state.arrays.get(job.id)
    runs = index is not None and len(index.made) > index.waiting
    return JobState.RUNNING if runs and job.state is JobState.QUEUED else job.state


def with_array(row: job_rows.JobRow, job: Job, state: State, now_s: float) -> job_rows.JobRow:
    """Return the line of an array with its summary.

    Its deadline is met when all of its elements have succeeded by then.
    """
    array = array_row(job, state)
    if array is None:
        return row
    shown = shown_state(job, state)
    elements, deadline_s = job.array_elements, job.spec.deadline_s or None
    meets = None
    if deadline_s is not None and job.ended_s is not None:
        meets = array.succeeded == array.elements and job.ended_s <= deadline_s
    elif deadline_s is not None and now_s > deadline_s:
        meets = False
    return structs.replace(
        row,
        array=array,
        deadline_s=deadline_s,
        meets_deadline=meets,
        state=shown.value,
        letter=shown.letter,
        started_s=job.started_s,
        cpu_s=elements.cpu_s,
        wall_s=elements.wall_s,
    )
