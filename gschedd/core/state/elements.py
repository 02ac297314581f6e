"""What an array says of its elements: their jobs, how many may be made, and how the array ends."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec import structs

from gsched.model.arrays import Array, Span, count, holds, index_at, indices, place_of, take
from gsched.model.ids import (
    ELEMENT_BASE,
    array_of,
    element_number,
    index_of,
    submitted_number,
)
from gsched.model.job import JobSpec, Outcome
from gsched.model.states import HoldKind, JobState, OutcomeKind
from gschedd.core.state import facts as f
from gschedd.core.state.indexing import RESTING
from gschedd.core.state.records import ArrayIndex, Elements, Job
from gschedd.core.state.state import State

#: A job whose environment has this variable was submitted by a command of Slurm.
SLURM_MARK: Final = "SLURM_SUBMIT_DIR"
SHORT_NUMBERS_MOST: Final = 2**31 - 1
#: So many elements of an array may wait as jobs: as many as a cycle starts at most.
WAITING_MOST: Final = 256
#: So many elements of all arrays of a user, but at least one of each array.
WAITING_OF_USER: Final = 32 * WAITING_MOST
#: So many elements become jobs before one cycle, of all arrays together.
MADE_MOST: Final = 4 * WAITING_MOST


def element_spec(spec: JobSpec) -> JobSpec:
    """Return what every element of an array states: one record for all of them."""
    return structs.replace(spec, array=None, client_key="", holds=(), depends=())


def new_element(array: Job, index: int, spec: JobSpec, at_s: float) -> Job:
    """Return the job that an element of an array begins as; ``spec`` is that of all elements."""
    job = Job(
        id=element_number(array.id, index),
        spec=spec,
        state=JobState.WAITING if array.spec.start_after_s > at_s else JobState.QUEUED,
        submitted_s=array.submitted_s,
        eligible_s=max(array.eligible_s, array.spec.start_after_s),
    )
    job.short_number = short_number_of(array, index)
    return job


# --- short numbers ---


def reserved(array: Array | None, number: int) -> int:
    """Return the short number of the first element of an array of Slurm; 0: there is none.

    Slurm's elements are jobs with numbers of their own, and programs store them in 32 bits. So the
    numbers behind that of an array are reserved if it was submitted by Slurm's commands.

    Args:
        array: what a submission states of its elements; None: it is no array.
        number: of the job.
    """
    if array is None:
        return 0
    return number + 1 if number + count(array.spans) <= SHORT_NUMBERS_MOST else 0


def short_number_of(array: Job, index: int) -> int:
    """Return the short number of an element of an array; 0: it has none."""
    if not array.short_number or array.spec.array is None:
        return 0
    place = place_of(array.spec.array.spans, index)
    return 0 if place is None else array.short_number + place


def next_number(job: Job) -> int:
    """Return the first number behind a job's, and behind those that are reserved with it."""
    behind = submitted_number(job.id) + 1
    if not job.short_number or job.spec.array is None:
        return behind
    return max(behind, job.short_number + count(job.spec.array.spans))


def named_element(array: Job, number: int) -> int | None:
    """Return the number of the element that has a short number; None: the array has no such."""
    place = number - array.short_number
    if not array.short_number or array.spec.array is None or place < 0:
        return None
    index = index_at(array.spec.array.spans, place)
    return None if index is None else element_number(array.id, index)


def meant_number(state: State, number: int) -> int:
    """Return the number of the element that a short number means, of an unfinished array.

    Any other number is returned as it is.
    """
    if number in state.jobs or number >= ELEMENT_BASE:
        return number
    before = max((array for array in state.arrays if array < number), default=0)
    named = named_element(state.arrays[before].job, number) if before else None
    return number if named is None else named


# --- elements that are no jobs ---


def unmade_element(array: Job, index: int) -> Job | None:
    """Return an element that is no job as if it were one; None: it has been one, or is unknown.

    It is in the state of its array, or cancelled.
    """
    elements = array.elements
    if elements is None:
        return None
    job = new_element(array, index, element_spec(array.spec), 0.0)
    if holds(elements.left, index):
        job.state, job.holds = array.state, array.holds
        job.hold_reason = array.hold_reason
    elif holds(elements.held, index):
        job.state = JobState.HELD
        job.holds = tuple(sorted({*array.holds, HoldKind.USER}))
    elif holds(elements.cancelled, index):
        job.state, job.ended_s = JobState.DONE, array.ended_s
        job.outcome = Outcome(kind=OutcomeKind.CANCELLED, message="cancelled before it started")
    else:
        return None
    return job


def dropped_element(array: Job, index: int, fact: f.ElementsDropped) -> Job:
    """Return an element that was cancelled before it became a job, as if it had been one."""
    job = new_element(array, index, element_spec(array.spec), fact.at_s)
    job.state, job.ended_s = JobState.DONE, fact.at_s
    because = f": {fact.message}" if fact.message else ""
    message = f"cancelled by {fact.by} before it started{because}"
    job.outcome = Outcome(kind=OutcomeKind.CANCELLED, message=message)
    return job


def waiting_job(state: State, number: int) -> Job | None:
    """Return a job that is not done, or an element that is no job yet, if it waits."""
    job = state.jobs.get(number)
    if job is None and array_of(number) in state.arrays:
        job = unmade_element(state.arrays[array_of(number)].job, index_of(number))
    return job if job is not None and job.state in RESTING else None


def waiting_element(state: State, index: ArrayIndex) -> Job | None:
    """Return the first element of an array that is a job and waits; None: there is none."""
    waiting = (state.jobs[number] for number in sorted(index.made))
    return next((job for job in waiting if job.state in RESTING), None)


def unfinished_elements(index: ArrayIndex) -> Iterator[int]:
    """Yield the indices of the elements of an array that have not ended, in no order."""
    elements = index.job.array_elements
    yield from indices((*elements.left, *elements.held))
    yield from map(index_of, index.made)


# --- making jobs of elements ---


def more_elements(state: State, now_s: float) -> Iterator[f.ElementsMade]:
    """Yield which elements become jobs before the next cycle, and take away the marks.

    Of what is too much for one cycle the marks stay.
    """
    due = [state.arrays[number] for number in state.dirty.arrays if number in state.arrays]
    if not due:
        state.dirty.arrays.clear()
        return
    due.sort(key=lambda index: state.order_key(index.job))
    of_user = Counter(index.job.spec.owner.uid for index in state.arrays.values())
    left = MADE_MOST
    for index in due:
        if left <= 0:
            return
        state.dirty.arrays.discard(index.job.id)
        fact = _more_of(index, of_user[index.job.spec.owner.uid], left, now_s)
        if fact is not None:
            left -= count(fact.elements)
            yield fact
    state.dirty.arrays.clear()


def _more_of(index: ArrayIndex, arrays: int, most: int, now_s: float) -> f.ElementsMade | None:
    """Return which elements of an array become jobs now; its user has so many arrays."""
    array = index.job
    if array.state is not JobState.QUEUED or array.elements is None:
        return None
    room = window_of(arrays) - index.waiting
    taken, _ = take(array.elements.left, min(most, room, free_slots(index)))
    return f.ElementsMade(at_s=now_s, job=array.id, elements=taken) if taken else None


def window_of(arrays: int) -> int:
    """Return how many elements of each array may wait whose user has so many arrays."""
    return max(1, min(WAITING_MOST, WAITING_OF_USER // arrays))


def free_slots(index: ArrayIndex) -> int:
    """Return how many more elements of an array may be unfinished jobs by its user's limit."""
    array = index.job.spec.array
    at_once = array.at_once if array is not None else 0
    return at_once - len(index.made) if at_once else 2**62


# --- how an array ends ---


def after_element(state: State, fact: f.JobEnded | f.ElementsDropped) -> list[f.AnyFact]:
    """Return the end of an array of which nothing is left, else nothing."""
    number = array_of(fact.job) if isinstance(fact, f.JobEnded) else fact.job
    index = state.arrays.get(number)
    if index is None or index.made:
        return []
    elements = index.job.array_elements
    if elements.left or elements.held:
        return []
    ended_s = fact.ended_s if isinstance(fact, f.JobEnded) else fact.at_s
    by = fact.by
    outcome = array_outcome(elements)
    if isinstance(fact, f.ElementsDropped) and fact.message:
        outcome = structs.replace(outcome, message=f"{outcome.message}: {fact.message}")
    return [f.JobEnded(at_s=fact.at_s, job=number, outcome=outcome, ended_s=ended_s, by=by)]


def array_outcome(elements: Elements) -> Outcome:
    """Return how an array ends: as the worst of its elements, with how many ended in which way."""
    gone = elements.deleted + count(elements.cancelled)
    total = elements.succeeded + elements.failed + gone
    parts = [f"{elements.succeeded} of {total} elements succeeded"]
    if elements.failed:
        parts.append(f"{elements.failed} failed")
    if gone:
        parts.append(f"{gone} cancelled")
    message = ", ".join(parts)
    if elements.failed and elements.worst is not None:
        return structs.replace(elements.worst, message=message)
    if gone:
        return Outcome(kind=OutcomeKind.CANCELLED, message=message)
    return Outcome(kind=OutcomeKind.EXITED, exit_code=0, message=message)


def worse(one: Outcome | None, other: Outcome) -> Outcome | None:
    """Return the worse of two outcomes by the exit status of a shell; None: both succeeded."""
    if other.succeeded or other.kind is OutcomeKind.CANCELLED:
        return one
    return other if one is None or other.shell_status > one.shell_status else one


def one(number: int) -> tuple[Span]:
    """Return the spans of the one element that has this number."""
    index = index_of(number)
    return (Span(index, index),)
