"""Which jobs are ahead of one that waits: who, and how much they request."""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from gsched.model.arrays import Span, Spans, common, count
from gsched.model.ids import array_of, element_number, index_of
from gsched.model.states import JobState
from gsched.protocol.job_rows import AheadRow, AheadRows
from gschedd.core.state.records import Job
from gschedd.core.state.state import State
from gschedd.core.state.transient import Lane
from gschedd.plan.lanes import jobs_before
from gschedd.plan.snapshot import JobClass, OrderKey

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
        order = state.ordered(group)
        before = jobs_before(order, key)
        request = group.job_class.request
        jobs += before
        cpus += before * request.cpus
        gpus += before * request.gpus
        first.extend(order[: min(before, MAX_NAMED)])
    place, number = key
    for array, left in _unmade(state):
        array_place = state.order_key(array)[0]
        if array.spec.queue != job.spec.queue or array_place > place:
            continue
        more = count(_before(left, number) if array_place == place else left)
        jobs += more
        cpus += more * array.spec.request.cpus
        gpus += more * array.spec.request.gpus
    named = (state.jobs[number] for _, number in heapq.nsmallest(MAX_NAMED, first))
    return AheadRows(jobs=jobs, cpus=cpus, gpus=gpus, first=tuple(map(_ahead_row, named)))


def _unmade(state: State) -> Iterator[tuple[Job, Spans]]:
    """Yield queued arrays with their elements that are no jobs yet."""
    for index in state.arrays.values():
        array, elements = index.job, index.job.elements
        if elements is not None and elements.left and array.state is JobState.QUEUED:
            yield array, elements.left


def _before(left: Spans, number: int) -> Spans:
    """Return which elements of its own array are before a job; of no array: none."""
    if not array_of(number) or all(span.first >= index_of(number) for span in left):
        return ()
    return common(left, (Span(0, index_of(number)),))


class _Places:
    """Elements of the arrays of one class that are no jobs yet, in the order of the queue."""

    def __init__(self, arrays: list[tuple[OrderKey, Spans]]) -> None:
        self.arrays = sorted(arrays)
        self.places = [key[0] for key, _ in self.arrays]
        self.sums = list(accumulate((count(left) for _, left in self.arrays), initial=0))


class ElementsAhead:
    """Counts elements of queued arrays that are no jobs yet ahead of jobs of their class.

    The arrays are looked at once, when the first job asks.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._places: dict[tuple[JobClass, Lane], _Places] | None = None

    def of(self, job: Job, job_class: JobClass) -> tuple[int, OrderKey | None]:
        """Return how many of its class and lane are ahead of a job, and where the first is."""
        known = self._known().get((job_class, self._state.lane_of(job)))
        if known is None:
            return 0, None
        place, number = self._state.place_of(job)
        at = bisect_left(known.places, place)
        ahead = known.sums[at]
        if at < len(known.places) and known.places[at] == place:
            ahead += count(_before(known.arrays[at][1], number))
        if not ahead:
            return 0, None
        (first, array), left = known.arrays[0]
        return ahead, (first, element_number(array, left[0].first))

    def has(self, job_class: JobClass, lane: Lane) -> bool:
        """Return whether there are such elements of a class and lane."""
        return (job_class, lane) in self._known()

    def _known(self) -> dict[tuple[JobClass, Lane], _Places]:
        if self._places is None:
            self._places = self._by_class()
        return self._places

    def _by_class(self) -> dict[tuple[JobClass, Lane], _Places]:
        found: dict[tuple[JobClass, Lane], list[tuple[OrderKey, Spans]]] = {}
        for array, left in _unmade(self._state):
            key = self._state.place_of(array)
            lane = (self._state.class_of(array), self._state.lane_of(array))
            found.setdefault(lane, []).append((key, left))
        return {lane: _Places(arrays) for lane, arrays in found.items()}


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
