"""Which jobs are ahead of one that waits: who, and how much they request."""

import heapq
from typing import Final

from gsched.model.arrays import Span, common, count
from gsched.model.ids import array_of, index_of
from gsched.model.states import JobState
from gsched.protocol.starts import AheadRow, AheadRows
from gschedd.core.state import Job, State

#: Jobs ahead that are named.
MAX_NAMED: Final = 10


def jobs_ahead(job: Job, state: State) -> AheadRows:
    """Return the jobs of its queue that would be considered before this one, elements included."""
    key = state.order_key(job)
    jobs = cpus = gpus = 0
    first: list[tuple[int, int]] = []
    for group in state.groups.values():
        if group.job_class.queue != job.spec.queue:
            continue
        before = group.position(key)
        request = group.job_class.request
        jobs += before
        cpus += before * request.cpus
        gpus += before * request.gpus
        first.extend(group.order[: min(before, MAX_NAMED)])
    place, number = key
    for index in state.arrays.values():  # elements that are no jobs yet
        array, elements = index.job, index.job.elements
        if array.state is not JobState.QUEUED or array.spec.queue != job.spec.queue:
            continue
        array_place = state.order_key(array)[0]
        if elements is None or array_place > place:
            continue
        left = elements.left
        if array_place == place:  # of its own array
            left = common(left, (Span(0, index_of(number)),)) if array_of(number) else ()
        more = count(left)
        jobs += more
        cpus += more * array.spec.request.cpus
        gpus += more * array.spec.request.gpus
    named = (state.jobs[number] for _, number in heapq.nsmallest(MAX_NAMED, first))
    return AheadRows(jobs=jobs, cpus=cpus, gpus=gpus, first=tuple(map(_ahead_row, named)))


def _ahead_row(job: Job) -> AheadRow:
    spec = job.spec
    return AheadRow(
        id=job.id,
        name=spec.name,
        user=spec.owner.user,
        cpus=spec.request.cpus,
        gpus=spec.request.gpus,
        places=spec.request.places,
        priority=spec.priority,
        walltime_s=spec.walltime_s,
    )


def waiting_elements(array: Job) -> tuple[int, int]:
    """Return how many elements of an array are no jobs yet: those that wait as it does, and held.

    Those that are jobs are counted as such.
    """
    elements = array.elements
    return (0, 0) if elements is None else (count(elements.left), count(elements.held))
