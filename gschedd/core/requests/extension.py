"""More walltime for a running job: within the site's quota, and only if it delays no waiting job.

A waiting job is delayed if it could start on what this job frees at its present limit, and could
not before that. All other running jobs are taken to end as planned, and each waiting job is looked
at by itself, so that the answer is quick; what it says of a job far behind in the queue is rough.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct

from gsched.config.tables import QueueConfig
from gsched.errors import BadStateError, NotPermittedError
from gsched.model.ids import short_job_id
from gsched.model.resources import Request
from gsched.model.units import format_duration, parse_duration_s
from gsched.model.wording import counted
from gschedd.core.attempts.running import Running
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.walltime import walltime_left_s
from gschedd.plan.fit import NoFit, place
from gschedd.plan.moments import moment
from gschedd.plan.space import Spaces
from gschedd.plan.windows import barring

#: Waiting classes that are looked at, the first ones in the queue.
CLASSES_MOST: Final = 32
#: Moments at which other jobs end that are told apart, in the time that is added.
STAGES_MOST: Final = 16


class Stage(Struct, frozen=True, kw_only=True):
    """What is free at a moment in the added time, with and without the job.

    ``at_s``: seconds since the epoch.
    """

    at_s: float
    held: Spaces
    freed: Spaces


def extended_s(
    job: Job,
    walltime_s: float | None,
    caller: Caller,
    state: State,
    settings: Settings,
    now_s: float,
) -> float:
    """Return by how much users have extended a running job in all, with this change, seconds.

    Args:
        job: as it is.
        walltime_s: the new limit.

    Raises:
        BadStateError: it is being stopped.
        NotPermittedError: the quota does not allow it, or another job would be delayed.
    """
    before_s = job.spec.walltime_s
    if job.attempt is None or before_s is None or walltime_s is None:
        return 0.0
    added_s = walltime_s - before_s
    total_s = max(0.0, job.spec.extended_s + added_s)
    if added_s <= 0:
        return total_s
    if job.attempt.stop is not None:
        raise BadStateError(
            f"job {short_job_id(job.id)} is being stopped: its walltime can no longer grow",
            hint="submit it again with a longer walltime",
        )
    if may(caller, Verb.EXTEND_FREELY):
        return job.spec.extended_s
    queue = settings.queues.get(job.spec.queue, QueueConfig(name=job.spec.queue))
    _check_quota(job, total_s, before_s - job.spec.extended_s, queue)
    _check_count(job, caller, state, queue)
    _check_windows(job, added_s, state, now_s)
    _check_delay(job, added_s, state, settings, now_s)
    return total_s


def _check_quota(job: Job, total_s: float, stated_s: float, queue: QueueConfig) -> None:
    if not queue.walltime_extension:
        return
    most_s = _most_s(queue.walltime_extension, stated_s)
    if total_s <= most_s:
        return
    left_s = max(0.0, most_s - job.spec.extended_s)
    raise NotPermittedError(
        f"job {short_job_id(job.id)} would be extended by {format_duration(total_s)} in all; users "
        f"can extend jobs of queue {job.spec.queue} by {format_duration(most_s)}",
        hint=f"{format_duration(left_s)} are left; ask an operator for more",
    )


def _most_s(text: str, stated_s: float) -> float:
    """Return ``walltime_extension`` of a queue in seconds; a part is one of the walltime."""
    if text.endswith("%"):
        return float(text[:-1]) / 100 * stated_s
    return parse_duration_s(text, zero=True)


def _check_count(job: Job, caller: Caller, state: State, queue: QueueConfig) -> None:
    most = queue.walltime_extensions_per_user
    if not most or job.spec.extended_s:
        return
    others = [
        each.id
        for each in state.running.values()
        if each.spec.extended_s and each.spec.owner.uid == job.spec.owner.uid
    ]
    if len(others) >= most:
        shown = ", ".join(map(short_job_id, sorted(others)[:3]))
        raise NotPermittedError(
            f"{caller.user} has extended {counted(len(others), 'running job')} ({shown}), and "
            f"{most} at once is the limit of queue {job.spec.queue}",
            hint="wait until one has ended, or ask an operator",
        )


def _check_windows(job: Job, added_s: float, state: State, now_s: float) -> None:
    """Refuse an extension into maintenance of a node of the job.

    Raises:
        NotPermittedError: it would run into one.
    """
    until_s = _limit_s(job, now_s) + added_s
    inside = state.reservations.get(job.current_attempt.reservation)
    if inside is not None and inside.begun and until_s > inside.to_s:
        raise NotPermittedError(
            f"job {short_job_id(job.id)} runs in reservation {inside.name}, which ends at "
            f"{moment(inside.to_s)}",
            hint="extend it by less, save a checkpoint and submit again, or ask an operator",
        )
    windows = state.windows_for(job.current_attempt, now_s)
    found = [
        (window, node)
        for node in job.current_attempt.parts
        if (window := barring(windows, node, now_s, until_s - now_s)) is not None
    ]
    if found:
        window, node = min(found, key=lambda each: (each[0].from_s, each[1]))
        raise NotPermittedError(
            f"job {short_job_id(job.id)} would run into {window.kind} of {node} that begins at "
            f"{moment(window.from_s)}",
            hint="extend it by less, save a checkpoint and submit again, or ask an operator",
        )


def _limit_s(job: Job, now_s: float) -> float:
    """Return when the walltime of a running job ends, seconds since the epoch."""
    started_s, left_s = job.current_attempt.started_s, walltime_left_s(job)
    assert left_s is not None, "it has a walltime"
    return max(now_s, (now_s if started_s is None else started_s) + left_s)


def _check_delay(job: Job, added_s: float, state: State, settings: Settings, now_s: float) -> None:
    ends_s = _limit_s(job, now_s)
    groups = [each for each in state.groups.values() if _is_started(settings, each.job_class.queue)]
    if not groups:
        return
    stages = list(_stages(job, ends_s, ends_s + added_s, state, settings, now_s))
    for group in nsmallest(CLASSES_MOST, groups, key=lambda each: state.ordered(each)[0]):
        number = state.ordered(group)[0][1]
        delay_s = _delay_s(group.job_class.request, stages, ends_s + added_s)
        if delay_s:
            waiting = state.jobs[number]
            raise NotPermittedError(
                f"job {short_job_id(number)} of {waiting.spec.owner.user} waits for the resources "
                f"of job {short_job_id(job.id)}: it would start {format_duration(delay_s)} later",
                hint="extend it by less, save a checkpoint and submit again, or ask an operator",
            )


def _is_started(settings: Settings, queue: str) -> bool:
    config = settings.queues.get(queue)
    return config is not None and config.started


def _stages(
    job: Job, begin_s: float, end_s: float, state: State, settings: Settings, now_s: float
) -> Iterator[Stage]:
    """Yield what is free when the job was to end, and at moments until it would end."""
    held = Spaces(state.spaces)
    later = []
    for each in Running(state, settings, now_s):
        if each.end_s is None or each.end_s >= end_s:
            break
        if each.job == job.id:
            continue
        if each.end_s <= begin_s:
            held.give(each.allocation)
        else:
            later.append(each)
    freed = held.copy()
    freed.give(job.current_attempt.allocation)
    yield Stage(at_s=begin_s, held=held.copy(), freed=freed.copy())
    together = -(-len(later) // STAGES_MOST) or 1
    for at in range(0, len(later), together):
        ending = later[at : at + together]
        for each in ending:
            held.give(each.allocation)
            freed.give(each.allocation)
        yield Stage(at_s=ending[-1].end_s or begin_s, held=held.copy(), freed=freed.copy())


def _delay_s(request: Request, stages: Sequence[Stage], end_s: float) -> float:
    """Return by how much a waiting job starts later if the job stays; 0: it does not."""
    free = next((stage for stage in stages if _fits(request, stage.freed)), None)
    if free is None or _fits(request, free.held):
        return 0.0
    also = (stage.at_s for stage in stages if stage.at_s > free.at_s and _fits(request, stage.held))
    return next(also, end_s) - free.at_s


def _fits(request: Request, spaces: Spaces) -> bool:
    return not isinstance(place(request, spaces), NoFit)
