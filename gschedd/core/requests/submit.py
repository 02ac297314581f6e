"""From what a user sent to a `JobSpec`: defaults, limits, and refusals in words."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, structs

from gsched.errors import (
    BadResourceError,
    InvalidRequestError,
    NotPermittedError,
    RequestTooLargeError,
    TryAgainError,
    UnknownQueueError,
)
from gsched.model import limits
from gsched.model.arrays import Array, read_array
from gsched.model.job import DEFAULT_GRACE_S, JobSpec, Owner, stated_of
from gsched.model.request import ResourceList, parse_resources
from gsched.model.resources import Chunk, Request
from gsched.model.states import STATED_HOLDS, HoldKind, JobState, Join, LaunchKind
from gsched.model.units import format_duration, format_size
from gsched.protocol.api import SubmitJob
from gschedd.core.apply.jobs import argument_bytes
from gschedd.core.requests.adaptive import adaptive_notes
from gschedd.core.requests.checkpointing import early_notes, lease_of, saving_of
from gschedd.core.requests.commands import Submit
from gschedd.core.requests.containers import with_container
from gschedd.core.requests.deadline import aim_of
from gschedd.core.requests.dependencies import (
    Depends,
    checked_dependencies,
    with_dependencies,
)
from gschedd.core.requests.dependencies import Stated as StatedDependencies
from gschedd.core.requests.interactive import with_terminal
from gschedd.core.requests.notify import checked_notify
from gschedd.core.requests.sharing import check_sharing, with_node_words
from gschedd.core.requests.staging import check_staging
from gschedd.core.state.settings import Caller, QueueLimits, Settings
from gschedd.core.state.state import State, client_key
from gschedd.plan.fit import NoFit, place
from gschedd.plan.never import explain_never
from gschedd.plan.space import Spaces, emptied

OVERFLOW_UID: Final = 65534  # "nobody": what a user of another namespace looks like
PRIORITY_RANGE: Final = (-1024, 1023)
_TEXTS: Final = limits.texts_of(SubmitJob)
MAX_GRACE_S: Final = 86400.0
MAX_START_S: Final = 7_258_118_400.0  # 2200-01-01: later is a typing error
MAX_PARSED: Final = 4096  # different resource lists that are remembered as read
MAX_REMEMBERED: Final = 256  # characters of a resource list that is remembered
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f]+")
_LAUNCHES: Final = frozenset(kind.value for kind in LaunchKind)
_JOINS: Final = frozenset(kind.value for kind in Join)
MAX_POSSIBLE: Final = 10_000  # requests that are remembered as possible; then it begins anew


class Submission(Struct, frozen=True, kw_only=True):
    """A job ready to be queued, and what its user should be told."""

    spec: JobSpec
    warnings: tuple[str, ...]
    depends: Depends = Depends()


def known_submission(state: State, uid: int, key: str) -> int | None:
    """Return the job of a user that an earlier try of the same submission made, or None."""
    return state.keys.get(client_key(uid, key)) if key else None


def prepare(
    command: Submit,
    *,
    state: State,
    settings: Settings,
    intern: Callable[[Request], Request],
    now_s: float,
) -> Submission:
    """Return the job that is asked for, after defaults and every check that can be made now.

    Args:
        command: who asks, and for what.
        intern: returns an equal request, always the same object, so that memory is shared.

    Raises:
        GschedError: the job cannot be taken; the message says what, why and what to do.
    """
    asked, caller, digests = command.asked, command.caller, command.digests
    check_caller(caller, state, settings)
    check_size(asked)
    asked = with_terminal(asked, settings)
    _check_content(asked)
    check_staging(asked)
    check_arguments(asked.arguments, caller, state)
    queue = asked.queue or settings.default_queue
    resources = _resources(asked, queue, state, settings)
    walltime_s = checked_walltime(
        resources.walltime_s, queue, settings, is_interactive=asked.interactive is not None
    )
    warnings = list(resources.warnings)
    aim, notes = aim_of(
        asked, resources.request, walltime_s, state=state, settings=settings, now_s=now_s
    )
    warnings.extend(notes)
    saving = saving_of(asked)
    warnings.extend(adaptive_notes(asked, aim.request, state))
    warnings.extend(early_notes(asked, walltime_s))
    refusal = never_fits(resources.request, state)
    if refusal:
        raise RequestTooLargeError(refusal[0], hint=refusal[1])
    if not state.nodes:
        warnings.append("no node has registered yet: the job waits for one")
    priority, notes = capped_priority(checked_priority(asked.priority), caller, settings)
    warnings.extend(notes)
    spec = JobSpec(
        owner=Owner(
            user=caller.user,
            uid=caller.uid,
            gid=caller.gid,
            host=asked.environment.get("PBS_O_HOST", "")[: limits.MAX_WORD],
        ),
        name=asked.name,
        queue=queue,
        request=intern(aim.request),
        workdir=asked.workdir,
        walltime_s=walltime_s,
        priority=priority,
        start_after_s=checked_start(asked.start_after_s),
        join=checked_join(asked.join),
        umask=asked.umask & 0o777,
        launch=LaunchKind(asked.launch),
        grace_s=checked_grace(asked.grace_s),
        array=_array_of(asked, settings),
        lines_digest=command.lines_digest,
        script_digest=digests[0],
        environment_digest=digests[1],
        client_key=asked.key,
        holds=checked_holds(asked.holds, caller),
        deadline_s=aim.deadline_s,
        urgency=aim.urgency,
        training=aim.training,
        movable=saving.movable,
        checkpoint_dir=saving.checkpoint_dir,
        checkpoint_interval_s=saving.checkpoint_interval_s,
        checkpoint_signal=saving.checkpoint_signal,
        restarts_max=saving.restarts_max,
        lease_s=lease_of(asked, settings),
    )
    notify = checked_notify(asked, settings.notify)
    warnings.extend(notify.warnings)
    spec = structs.replace(spec, **(stated_of(asked) | notify.stated))
    check_sharing(spec)
    depends = Depends()
    if asked.depends:
        stated = StatedDependencies(
            texts=asked.depends, caller=caller, name=spec.name, past=command.past, now_s=now_s
        )
        depends = checked_dependencies(stated, state, settings)
        spec = with_dependencies(spec, depends)
    return Submission(spec=spec, warnings=tuple(warnings), depends=depends)


def first_state(spec: JobSpec, now_s: float) -> JobState:
    """Return the state in which a job begins."""
    if spec.holds:
        return JobState.HELD
    return JobState.WAITING if spec.start_after_s > now_s else JobState.QUEUED


def _array_of(asked: SubmitJob, settings: Settings) -> Array | None:
    """Return the elements of an array, None for an ordinary job.

    Raises:
        InvalidRequestError: they cannot be, or say something that an array cannot have.
    """
    if not asked.array:
        if asked.lines:
            raise InvalidRequestError("lines without an array", hint="state its indices, too")
        return None
    array = read_array(asked.array, most=settings.max_array_elements)
    if asked.reject_if_late:
        raise InvalidRequestError(
            "an array cannot be refused for its deadline: its elements are judged one by one",
            hint="leave out --reject-if-late",
        )
    if asked.lines:
        most = max(span.last for span in array.spans)
        lines = asked.lines.count("\n") + (not asked.lines.endswith("\n"))
        longest = max(map(limits.byte_count, asked.lines.split("\n")))
        if longest > limits.MAX_LINE_BYTES:
            raise InvalidRequestError(
                f"a line has {longest} bytes; the limit is {limits.MAX_LINE_BYTES}",
                hint="name a file in the line instead",
            )
        if most >= lines:
            raise InvalidRequestError(
                f"element {most} of the array has no line: there are {lines}",
                hint="the indices are those of the lines, from 0 on",
            )
    return array


def check_caller(caller: Caller, state: State, settings: Settings) -> None:
    """Check that a user may have one more job.

    Raises:
        NotPermittedError: this user may have none here.
        TryAgainError: there are too many, or the user has no name now.
    """
    if caller.uid == OVERFLOW_UID:
        raise NotPermittedError(
            "the caller's user id is 65534 (nobody, or a user of another namespace)",
            hint="submit as a user of this machine",
        )
    if caller.uid == 0 and not settings.allow_root_jobs:
        raise NotPermittedError(
            "root may not submit jobs on this cluster",
            hint="submit as an ordinary user, or set head.allow_root_jobs = true",
        )
    if 0 < caller.uid < settings.min_uid and caller.uid != settings.only_uid:
        raise NotPermittedError(
            f"{caller.user} (uid {caller.uid}) is a system account, below {settings.min_uid}: "
            "system accounts may not submit jobs on this cluster",
            hint="submit as an ordinary user; head.min_uid and node.min_uid say who is one",
        )
    if caller.is_nameless:
        raise TryAgainError(
            f"the head's machine knows no user with uid {caller.uid}",
            hint="try again if its name service was away; else an administrator adds the account",
        )
    if settings.only_uid is not None and caller.uid != settings.only_uid:
        raise NotPermittedError(
            f"this cluster runs jobs of uid {settings.only_uid} only",
            hint="its daemons run without root and cannot become another user",
        )
    if state.jobs_by_user.get(caller.uid, 0) >= settings.max_queued_per_user:
        raise TryAgainError(
            f"{caller.user} has {settings.max_queued_per_user} unfinished jobs, the limit here",
            hint="wait until some have ended, or delete some",
        )


def check_arguments(arguments: Sequence[str], caller: Caller, state: State) -> None:
    """Check that the head has memory for the arguments of one more job of a user.

    Raises:
        TryAgainError: the user's jobs would take too much.
    """
    held_bytes = state.argument_bytes_by_user.get(caller.uid, 0) + argument_bytes(arguments)
    most_bytes = limits.MAX_USER_ARGUMENT_BYTES
    if held_bytes > most_bytes:
        raise TryAgainError(
            f"the arguments of {caller.user}'s unfinished jobs would take {format_size(held_bytes)}"
            f" of the head's memory, and {format_size(most_bytes)} is the limit",
            hint="give long lists in a file, or wait until some jobs have ended",
        )


def check_size(asked: SubmitJob) -> None:
    """Check how much a submission brings; all further work for it is bounded then.

    Raises:
        InvalidRequestError: too much.
    """
    limits.check_texts(asked, _TEXTS)
    limits.check_bytes(
        "arguments",
        asked.arguments,
        count=limits.MAX_ARGUMENTS,
        size_bytes=limits.MAX_ARGUMENT_BYTES,
    )
    limits.check_words("holds", asked.holds, most=len(STATED_HOLDS), longest=limits.MAX_WORD)
    if limits.byte_count(asked.lines) > limits.MAX_LINES_BYTES:
        raise InvalidRequestError(f"the lines have more than {limits.MAX_LINES_BYTES} bytes")
    if limits.byte_count(asked.script) > limits.MAX_SCRIPT_BYTES:
        raise InvalidRequestError(f"the script has more than {limits.MAX_SCRIPT_BYTES} bytes")
    if len(asked.environment) > limits.MAX_VARIABLES:
        raise InvalidRequestError(
            f"the environment has {len(asked.environment)} variables, "
            f"{limits.MAX_VARIABLES} are the limit",
            hint="pass single variables with -v instead of all with -V",
        )
    if asked.training is not None and len(asked.training.rates) > limits.MAX_RATES:
        raise InvalidRequestError(
            f"{len(asked.training.rates)} rates of a training, {limits.MAX_RATES} are the limit"
        )


def _check_content(asked: SubmitJob) -> None:
    check_name(asked.name)
    if not asked.workdir.startswith("/"):
        raise InvalidRequestError(
            f"working directory {limits.shown(asked.workdir)} is not absolute"
        )
    if asked.launch not in _LAUNCHES:
        raise InvalidRequestError(
            f"launch {asked.launch!r} is not known", hint="say script, command or torchrun"
        )
    if asked.launch == LaunchKind.SCRIPT and not asked.script.strip():
        raise InvalidRequestError("the script is empty", hint="give a script with commands")
    is_shell = asked.interactive is not None and asked.launch == LaunchKind.COMMAND
    if asked.launch != LaunchKind.SCRIPT and not asked.arguments and not is_shell:
        raise InvalidRequestError(f"a {asked.launch} job without anything to run")
    _check_environment(asked)


def _check_environment(asked: SubmitJob) -> None:
    size = sum(
        limits.byte_count(name) + limits.byte_count(value)
        for name, value in asked.environment.items()
    )
    if size > limits.MAX_ENVIRONMENT_BYTES:
        raise InvalidRequestError(
            f"the environment has {size} bytes, {limits.MAX_ENVIRONMENT_BYTES} are the limit",
            hint="pass single variables with -v instead of all with -V",
        )
    for name, value in asked.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidRequestError(
                f"environment variable {limits.shown(name)} has no usable name or value"
            )
    check_texts(
        *(value for value in stated_of(asked).values() if isinstance(value, str)),
        *(asked.workdir, asked.queue, asked.checkpoint_dir, asked.lines),
        *asked.arguments,
    )


def check_texts(*texts: str | None) -> None:
    """Check paths, arguments and words: the kernel and its programs end a text at a NUL byte.

    Raises:
        InvalidRequestError: one holds a NUL byte.
    """
    for text in texts:
        if text is not None and "\0" in text:
            raise InvalidRequestError(f"{limits.shown(text)} holds a NUL byte")


def checked_start(start_after_s: float) -> float:
    """Return the time before which a job does not start, seconds since the epoch.

    Raises:
        InvalidRequestError: it is no time, or beyond the year 2200.
    """
    if not 0 <= start_after_s <= MAX_START_S:
        raise InvalidRequestError(
            f"a start after {start_after_s:g} s since 1970 is not possible",
            hint="give a time before the year 2200",
        )
    return start_after_s


def check_name(name: str) -> None:
    """Check a job name: a word; nodes write `_` for its slashes in names of files.

    Raises:
        InvalidRequestError: it does not.
    """
    if not name or len(name) > limits.MAX_WORD or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"job name {name!r} cannot be used",
            hint=f"up to {limits.MAX_WORD} characters without blanks and control characters",
        )


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


def _resources(asked: SubmitJob, queue: str, state: State, settings: Settings) -> ResourceList:
    # Many jobs say the same, and reading is half the work; long lists are not worth the memory.
    is_short = sum(map(len, asked.resources)) <= MAX_REMEMBERED
    read = _read_before if is_short else _read_resources
    resources = read(
        asked.resources,
        state.generic_names(),
        settings.warn_unknown_resource or asked.warn_unknown,
        asked.exclusive,
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
    if asked.container is not None:
        request = with_container(request, asked.container, state, settings)
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


def checked_priority(priority: int) -> int:
    """Return a priority in qsub's range.

    Raises:
        InvalidRequestError: it is not in the range.
    """
    low, high = PRIORITY_RANGE
    if not low <= priority <= high:
        raise InvalidRequestError(f"priority {priority} is not between {low} and {high}")
    return priority


def highest_priority(caller: Caller, settings: Settings) -> int:
    """Return the highest priority that the caller can give a job."""
    return PRIORITY_RANGE[1] if caller.operator else settings.max_user_priority


def capped_priority(
    priority: int, caller: Caller, settings: Settings
) -> tuple[int, tuple[str, ...]]:
    """Return the priority that a new job gets, and what its user should know of it."""
    highest = highest_priority(caller, settings)
    if priority <= highest:
        return priority, ()
    words = (
        f"priority {priority} is above the limit for users, {highest}: the job has priority "
        f"{highest}"
    )
    return highest, (words,)


def checked_grace(grace_s: float | None) -> float:
    """Return the time between TERM and KILL, seconds.

    Raises:
        InvalidRequestError: it is negative or longer than a day.
    """
    if grace_s is None:
        return DEFAULT_GRACE_S
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise InvalidRequestError(
            f"a grace of {grace_s:g} s is not between 0 s and {format_duration(MAX_GRACE_S)}",
            hint="specify a grace within these limits",
        )
    return grace_s


def checked_join(join: str) -> Join:
    """Return how stdout and stderr are joined.

    Raises:
        InvalidRequestError: not one of oe, eo, n.
    """
    if join not in _JOINS:
        raise InvalidRequestError(f"-j {join} is not known", hint="say oe, eo or n")
    return Join(join)


def checked_holds(holds: tuple[str, ...], caller: Caller) -> tuple[HoldKind, ...]:
    """Return hold kinds that this caller may put on or take off.

    Raises:
        InvalidRequestError: an unknown kind.
        NotPermittedError: an operator's or a system hold, asked for by a user.
    """
    if not holds:
        return ()
    known = {kind.value for kind in STATED_HOLDS}
    for hold in holds:
        if hold not in known:
            raise InvalidRequestError(f"hold {hold!r} is not known: say user, operator or system")
        if hold != HoldKind.USER and not caller.operator:
            raise NotPermittedError(
                f"{hold} holds are for operators",
                hint="use -h u, or ask an operator",
            )
    return tuple(sorted({HoldKind(hold) for hold in holds}))


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
