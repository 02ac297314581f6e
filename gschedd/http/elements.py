"""Which job, or which elements of an array, an identifier means to the head."""

import contextlib
from collections.abc import Iterable, Mapping

from gsched.errors import GschedError, StorageError, UnknownJobError
from gsched.model.arrays import Spans, read_spans
from gsched.model.ids import (
    JobId,
    array_of,
    element_number,
    format_job_id,
    index_of,
    own_job,
    own_job_number,
)
from gschedd.core.state.elements import meant_number, named_element, unmade_element
from gschedd.core.state.records import Job
from gschedd.core.state.state import State

#: Jobs that were read from the database, or why one cannot be.
Past = Mapping[int, Job | StorageError]


def meant(job: JobId, state: State) -> tuple[int, Spans]:
    """Return the number of the job that an identifier means, and which elements of that array.

    Raises:
        UnknownJobError: elements of a job that is no array.
    """
    if job.element is not None:
        return element_number(job.number, job.element), ()
    if not job.elements:
        return meant_number(state, job.number), ()
    known = state.jobs.get(job.number)
    if known is not None:
        check_array(job, known)
    return job.number, read_spans(job.elements[1:-1]) if job.elements != "[]" else ()


def check_array(job: JobId, known: Job) -> None:
    """Check that a job whose identifier says so is an array.

    Raises:
        UnknownJobError: it is none.
    """
    if job.elements and job.element is None and known.spec.array is None:
        raise UnknownJobError(
            f"Unknown Job Id {job}: job {job.number} is not an array",
            hint=f"write {job.number} for the job",
        )


def found_job(text: str, state: State, past: Past, server: str) -> Job:
    """Return a job by its id, from the state or from what was read.

    Raises:
        UnknownJobError: the id is unknown.
        StorageError: its row is damaged.
    """
    number = own_job_number(text, server=server)
    job = _known(number, state, past)
    if job is None and array_of(number):
        array = _known(array_of(number), state, past)
        job = unmade_element(array, index_of(number)) if array is not None else None
    if job is None:
        name = format_job_id(number, server)
        raise UnknownJobError(f"Unknown Job Id {name}", hint="see gstat and ghist")
    check_array(own_job(text, server=server), job)
    return job


def found_jobs(
    texts: Iterable[str], state: State, past: Past, server: str
) -> tuple[dict[int, Job], dict[str, GschedError]]:
    """Return the jobs that some ids mean, each once, and why the others mean none."""
    jobs: dict[int, Job] = {}
    errors: dict[str, GschedError] = {}
    for text in texts:
        try:
            job = found_job(text, state, past, server)
        except (UnknownJobError, StorageError) as error:
            errors[text] = error
            continue
        jobs[job.id] = job
    return jobs, errors


def _known(number: int, state: State, past: Past) -> Job | None:
    """Return a job; what a short number means was read from the database, under that number."""
    job = state.jobs.get(number) or past.get(number)
    if isinstance(job, StorageError):
        raise job
    if job is None or job.id == number:
        return job
    job = state.jobs.get(job.id, job)
    named = named_element(job, number) if job.spec.array is not None else None
    return job if named is None else unmade_element(job, index_of(named))


def in_state(number: int, state: State) -> dict[int, Job]:
    """Return what of a job is in the state, which may lose it while the database is read."""
    return {each: state.jobs[each] for each in (number, array_of(number)) if each in state.jobs}


def wanted_of(texts: Iterable[str], state: State, server: str) -> tuple[dict[int, Job], list[int]]:
    """Return the jobs of some ids that the state has, and those only the database can know."""
    live: dict[int, Job] = {}
    numbers: dict[int, None] = {}
    for text in texts:
        with contextlib.suppress(UnknownJobError):
            number = own_job_number(text, server=server)
            live.update(in_state(number, state))
            numbers.update(dict.fromkeys(to_read(number, state)))
    return live, list(numbers)


def to_read(number: int, state: State) -> list[int]:
    """Return what of a job only the database can know: it, and the array that it belongs to."""
    numbers = [number, array_of(number)] if array_of(number) else [number]
    return [each for each in numbers if number not in state.jobs and each not in state.jobs]
