"""What a user can do about a job that waits, in words."""

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from gsched.model.ids import short_job_id
from gsched.model.request import format_resources
from gsched.model.resources import Chunk, Request
from gsched.model.states import HoldKind, JobState
from gsched.model.wording import counted
from gschedd.core.state.elements import waiting_element
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.fit import NoFit, place
from gschedd.plan.space import Spaces

#: Smaller requests that are tried.
MAX_TRIED: Final = 8
#: On larger clusters no smaller request is looked for.
MAX_NODES: Final = 2000


class Remedies:
    """Tells for jobs that wait what would let them start earlier."""

    __slots__ = ("_safe_mode", "_settings", "_state")

    def __init__(self, state: State, settings: Settings, safe_mode: str = "") -> None:
        self._state = state
        self._settings = settings
        self._safe_mode = safe_mode

    def of(self, job: Job) -> str:
        """Return what its user can do; empty: it does not wait, or nothing helps."""
        name = short_job_id(job.id)
        match job.state:
            case JobState.HELD if set(job.holds) == {HoldKind.DEPENDENCY}:
                return f"to run it without waiting for them: galter -W depend= {name}"
            case JobState.WAITING if job.missing_since_s:
                return (
                    "create the directory, or choose another output file with "
                    f"galter -o FILE -e FILE {name}; it is then tried at once"
                )
            case JobState.WAITING if job.start_after_s <= job.spec.start_after_s:
                return f"to start it earlier: galter -a [CCYYMMDD]hhmm {name}"
            case JobState.QUEUED:
                return self._of_queued(job, name)
            case _:
                return ""

    def _of_queued(self, job: Job, name: str) -> str:
        state, spec = self._state, job.spec
        if self._safe_mode:
            return "an operator finds what is wrong with gsched doctor"
        queue = self._settings.queues.get(spec.queue)
        if queue is None or not queue.started:
            others = [n for n, q in self._settings.queues.items() if q.started and q.enabled]
            move = f"move it with gmove {others[0]} {name}, or " if others else ""
            return f"{move}ask an operator to start the queue"
        if not self._settings.scheduling:
            return "an operator starts it again: qmgr -c 'set server scheduling = True'"
        if not state.nodes:
            return "an operator starts gnode on a machine; see gnodes"
        if not any(space.open for space in state.spaces.values()):
            return "all nodes are down or drained: see gnodes for the reasons"
        array = state.arrays.get(job.id)
        # Otherwise the limit of the array itself is the cause.
        waits_for_room = array is None or waiting_element(state, array) is not None
        if waits_for_room and (smaller := self._smaller(spec.request)):
            words, request = smaller
            command = f": galter -l {format_resources(request, None)} {name}"
            return f"{words} would fit now{'' if request.places_max else command}"  # no range stays
        if waits_for_room and spec.walltime_s is None:
            limit = "a walltime lets it backfill and makes its start predictable"
            return f"{limit}: galter -l walltime=HH:MM:SS {name}"
        return ""

    def _smaller(self, request: Request) -> tuple[str, Request] | None:
        """Return a smaller request that fits on what is free now, and what is smaller in words."""
        if len(request.chunks) != 1 or len(self._state.spaces) > MAX_NODES:
            return None
        spaces = Spaces(self._state.spaces)
        if not isinstance(place(request, spaces), NoFit):
            return None  # it waits for something else than room
        for words, chunk in _variants(request.chunks[0]):
            smaller = structs.replace(request, chunks=(chunk,))
            if not isinstance(place(smaller, spaces), NoFit):
                return words, smaller
        return None


def _variants(chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
    """Yield smaller chunks, with what is smaller in words: the least change first."""
    most = MAX_TRIED
    for gpus in range(chunk.gpus - 1, max(chunk.gpus - 1 - most, 0), -1):
        yield f"{counted(gpus, 'GPU')} instead of {chunk.gpus}", structs.replace(chunk, gpus=gpus)
    for nodes in range(chunk.count - 1, max(chunk.count - 1 - most, 0), -1):
        yield (
            f"{counted(nodes, 'node')} instead of {chunk.count}",
            structs.replace(chunk, count=nodes),
        )
    cpus = chunk.cpus // 2
    while cpus:
        yield f"{counted(cpus, 'CPU')} instead of {chunk.cpus}", structs.replace(chunk, cpus=cpus)
        cpus //= 2
