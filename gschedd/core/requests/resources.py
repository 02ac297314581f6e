"""Resources of a submission: chunks, memory and walltime, after the defaults of site and queue."""

from functools import lru_cache
from typing import Final

from msgspec import structs

from gsched.errors import (
    BadResourceError,
    InvalidRequestError,
    RequestTooLargeError,
    UnknownQueueError,
)
from gsched.model.request import ResourceList, parse_resources
from gsched.model.resources import Chunk, Request
from gsched.model.units import format_duration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.containers import with_container
from gschedd.core.requests.sharing import with_node_words
from gschedd.core.requests.staged import with_staging
from gschedd.core.requests.within_limits import limited_walltime
from gschedd.core.state.settings import QueueLimits, Settings
from gschedd.core.state.state import State
from gschedd.plan.fit import NoFit, place
from gschedd.plan.limits import Party
from gschedd.plan.never import explain_never
from gschedd.plan.space import Spaces, emptied

MAX_PARSED: Final = 4096  # different resource lists that are remembered as read
MAX_REMEMBERED: Final = 256  # characters of a resource list that is remembered
MAX_POSSIBLE: Final = 10_000  # requests that are remembered as possible; then it begins anew


def resources_of(
    submitted: SubmitJob, party: Party, state: State, settings: Settings
) -> ResourceList:
    """Return what a submission requests, with the walltime that it gets.

    Raises:
        GschedError: a resource list cannot be read, or more is requested than the queue allows.
    """
    resources = _read(submitted, party.queue, state, settings)
    walltime_s = checked_walltime(
        resources.walltime_s,
        party.queue,
        settings,
        is_interactive=submitted.interactive is not None,
    )
    walltime_s = limited_walltime(walltime_s, party, state)
    return structs.replace(resources, walltime_s=walltime_s)


def _read_resources(
    texts: tuple[str, ...],
    generic_names: frozenset[str],
    warn_unknown: bool,  # noqa: FBT001 - the key of a cache
    exclusive: bool,  # noqa: FBT001 - as above
) -> ResourceList:
    """Return what resource lists say."""
    return parse_resources(
        texts, generic_names=generic_names, warn_unknown=warn_unknown, exclusive=exclusive
    )


_read_before: Final = lru_cache(MAX_PARSED)(_read_resources)


def _read(submitted: SubmitJob, queue: str, state: State, settings: Settings) -> ResourceList:
    # Many jobs say the same, and reading is half the work; long lists are not worth the memory.
    is_short = sum(map(len, submitted.resources)) <= MAX_REMEMBERED
    parse = _read_before if is_short else _read_resources
    resources = parse(
        submitted.resources,
        state.generic_names(),
        settings.config.head.unknown_resource == "warn" or submitted.warn_unknown,
        submitted.exclusive,
    )
    change_s = resources.walltime_change_s
    if change_s is not None and change_s < 0:
        raise BadResourceError(
            f"walltime must be greater than zero, got -{format_duration(-change_s)}",
            hint="give a time such as 01:00:00",
        )
    if change_s is not None:
        raise BadResourceError(
            "+TIME and -TIME change an existing walltime: use galter",
            hint="give walltime=HH:MM:SS without a sign",
        )
    request = with_memory(resources.request, settings.limits_of(queue))
    if submitted.container is not None:
        request = with_container(request, submitted.container, state, settings)
    request = with_staging(request, submitted)
    if request is resources.request:
        return resources
    return structs.replace(resources, request=request)


def with_memory(request: Request, queue: QueueLimits) -> Request:
    """Return a request whose chunks all have a memory limit, if the queue or site has a default.

    A job that has its nodes for itself harms nobody else there and keeps none.
    """
    per_cpu = queue.default_memory_per_cpu_bytes
    per_gpu = queue.default_memory_per_gpu_bytes
    if not (per_cpu or per_gpu) or request.exclusive:
        return request

    def default_of(chunk: Chunk) -> int:
        gpus = chunk.gpus + (chunk.gpu_share is not None)
        return gpus * per_gpu if gpus and per_gpu else chunk.cpus * per_cpu

    if all(chunk.memory_bytes for chunk in request.chunks):
        return request
    chunks = tuple(
        chunk if chunk.memory_bytes else structs.replace(chunk, memory_bytes=default_of(chunk))
        for chunk in request.chunks
    )
    return structs.replace(request, chunks=chunks)


def checked_walltime(
    walltime_s: float | None, queue: str, settings: Settings, *, is_interactive: bool
) -> float | None:
    """Return the walltime after the defaults of the queue and of interactive jobs, seconds.

    Raises:
        UnknownQueueError: no such queue, or it takes no jobs.
        InvalidRequestError: more than the queue allows, or queue or site for interactive jobs.
    """
    config = settings.queues.get(queue)
    if config is None:
        raise UnknownQueueError(
            f"unknown queue {queue!r}", hint=f"queues here: {', '.join(settings.queues)}"
        )
    if not config.enabled:
        raise UnknownQueueError(f"queue {queue!r} takes no jobs now", hint="choose another with -q")
    queue_limits = settings.limits_of(queue)
    most_s = queue_limits.max_interactive_walltime_s if is_interactive else 0.0
    if walltime_s is None:
        walltime_s = config.default_walltime_s or config.max_walltime_s or None
        if most_s:
            walltime_s = min(walltime_s or most_s, config.max_walltime_s or most_s, most_s)
    limit_s = config.max_walltime_s
    if limit_s and walltime_s is not None and walltime_s > limit_s:
        raise InvalidRequestError(
            f"walltime {format_duration(walltime_s)} is over the limit of queue {queue}, "
            f"{format_duration(limit_s)}",
            hint="ask for less, or choose another queue with -q",
        )
    if most_s and walltime_s is not None and walltime_s > most_s:
        raise InvalidRequestError(
            f"walltime {format_duration(walltime_s)} is over the limit of interactive jobs "
            f"{queue_limits.where_walltime}, {format_duration(most_s)}",
            hint="ask for less, or submit a script",
        )
    return walltime_s


def check_possible(request: Request, state: State) -> None:
    """Refuse a request that no registered hardware can ever satisfy.

    Raises:
        RequestTooLargeError: none can.
    """
    refusal = never_fits(request, state)
    if refusal:
        raise RequestTooLargeError(refusal[0], hint=refusal[1])


def never_fits(request: Request, state: State) -> tuple[str, str] | None:
    """Return (message, hint) if no registered hardware can ever satisfy the request, else None.

    Nodes that are drained, unreachable or busy count as if idle: they may come back.
    """
    if not state.nodes or request in state.caches.possible:
        return None
    idle = Spaces({name: emptied(space) for name, space in state.spaces.items()})
    if not isinstance(place(request, idle), NoFit):
        if len(state.caches.possible) >= MAX_POSSIBLE:
            state.caches.possible.clear()
        state.caches.possible.add(request)
        return None
    message, hint = explain_never(request, idle)
    return message, hint if request.gpu_share is None else with_node_words(hint, state)
