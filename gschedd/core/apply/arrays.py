"""The part of `gschedd.core.apply` for arrays and their elements."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import structs

from gsched.model.arrays import Spans, indices, merged, without
from gsched.model.ids import array_of
from gsched.model.states import OutcomeKind
from gschedd.core.state import facts as f
from gschedd.core.state.elements import element_spec, new_element, one, worse
from gschedd.core.state.indexing import MORE_BELOW, touch
from gschedd.core.state.limit_use import count_submitted
from gschedd.core.state.records import Elements, Job
from gschedd.core.state.state import State
from gschedd.core.state.transitions import next_job_state


class Place(StrEnum):
    """Where indices of elements are that are no jobs yet, or never will be."""

    LEFT = "left"
    HELD = "held"
    CANCELLED = "cancelled"


def elements_made(state: State, fact: f.ElementsMade) -> Iterator[Job]:
    """Yield the jobs that elements of an array have become."""
    array = _put(state, fact, None)
    spec = element_spec(array.spec)
    for index in indices(fact.elements):
        yield new_element(array, index, spec, fact.at_s)


def elements_dropped(state: State, fact: f.ElementsDropped) -> None:
    """Elements will never be jobs."""
    _put(state, fact, Place.CANCELLED)


def elements_held(state: State, fact: f.ElementsHeld) -> None:
    """Elements wait for their release."""
    _put(state, fact, Place.HELD)


def elements_released(state: State, fact: f.ElementsReleased) -> None:
    """Elements may become jobs again, in the order of their indices."""
    array = _put(state, fact, Place.LEFT)
    state.dirty.mark_array(array.id)


def _put(
    state: State,
    fact: f.ElementsMade | f.ElementsDropped | f.ElementsHeld | f.ElementsReleased,
    place: Place | None,
) -> Job:
    """Take the elements of a fact from where they are to a place, or to none; return the array."""
    array = state.jobs[fact.job]
    next_job_state(array.state, fact, array.state)
    touch(state, array)
    array.elements = _with(array.array_elements, fact.elements, place)
    count_submitted(state, array)
    return array


def _with(elements: Elements, chosen: Spans, place: Place | None) -> Elements:
    """Return an array's elements with some of them at a place, and at no other."""

    def at(here: Place, before: Spans) -> Spans:
        return merged(before, chosen) if here is place else without(before, chosen)

    return structs.replace(
        elements,
        left=at(Place.LEFT, elements.left),
        held=at(Place.HELD, elements.held),
        cancelled=at(Place.CANCELLED, elements.cancelled),
    )


def note_recovered(state: State, job: Job) -> None:
    """Note that an element which a node knew is a job, so that it does not become one again."""
    index = state.arrays.get(array_of(job.id))
    elements = index.job.elements if index is not None else None
    if index is None or elements is None:
        return
    index.job.elements = _with(elements, one(job.id), None)
    count_submitted(state, index.job)
    touch(state, index.job)


def note_started(state: State, job: Job) -> None:
    """Note that an array has started with the first of its elements."""
    index = state.arrays.get(array_of(job.id))
    if index is not None and index.job.started_s is None:
        index.job.started_s = job.started_s
        touch(state, index.job)


def note_ended(state: State, job: Job) -> None:
    """Count the end of an element, and forget an array that is over."""
    state.arrays.pop(job.id, None)
    index = state.arrays.get(array_of(job.id))
    if index is None or job.outcome is None:
        return
    index.made.discard(job.id)
    array, elements, outcome = index.job, index.job.array_elements, job.outcome
    deleted = outcome.kind is OutcomeKind.CANCELLED
    array.elements = structs.replace(
        elements,
        succeeded=elements.succeeded + outcome.succeeded,
        deleted=elements.deleted + deleted,
        failed=elements.failed + (not outcome.succeeded and not deleted),
        worst=worse(elements.worst, outcome),
        cpu_s=elements.cpu_s + job.cpu_s,
        wall_s=elements.wall_s + job.wall_s,
        gpu_s=elements.gpu_s + job.gpu_s,
    )
    if job.started_s is not None:
        began_s = job.started_s if array.started_s is None else array.started_s
        array.started_s = min(began_s, job.started_s)
    if elements.left and index.waiting <= MORE_BELOW:
        state.dirty.mark_array(array.id)
    touch(state, array)
