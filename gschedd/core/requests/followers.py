"""What the start or the end of a job means to the jobs that depend on it, in bounded portions.

A job may have 10,000 dependants, and each of them is two facts. A step takes MOST_AT_ONCE of them;
what is left is an `Followed` in `Volatile.coming`, and the head's next steps go on with it. A head
that restarts meanwhile finds it again: `recall` compares what jobs depend on with how it ended.
"""

import heapq
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from gsched.model.arrays import holds
from gsched.model.dependency import Dependency, DependencyKind
from gsched.model.ids import array_of, format_job_id, index_of, short_job_id
from gsched.model.job import Outcome
from gsched.model.states import HoldKind, OutcomeKind
from gschedd.core.requests.dependencies import HELD, is_met_by_end, with_start
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.state.transient import Followed

#: Dependants of one step: fewer facts than keep a batch of the engine from taking requests.
MOST_AT_ONCE: Final = 40
MAX_ENDED: Final = 10_000  # jobs that ended lately and are remembered
_RESOLVING: Final = frozenset({f.JobEnded, f.JobDiscarded, f.PartStarted, f.ElementsDropped})


def begin_step(state: State) -> None:
    """Let a step take so many dependants."""
    state.volatile.coming.room = MOST_AT_ONCE


def resolved(state: State, settings: Settings, fact: f.AnyFact) -> list[f.AnyFact]:
    """Return what a start or an end means to the jobs that depend on the job."""
    if type(fact) not in _RESOLVING:
        return []
    match fact:
        case f.JobEnded():
            event = Followed(job=fact.job, at_s=fact.at_s, succeeded=fact.outcome.succeeded)
        case f.JobDiscarded():
            event = Followed(job=fact.job, at_s=fact.at_s, succeeded=False)
        case f.PartStarted():
            event = Followed(job=fact.job, at_s=fact.at_s)
        case f.ElementsDropped():
            gone = [on for on in state.dependants if _is_dropped(on, fact)]
            events = (Followed(job=on, at_s=fact.at_s, succeeded=False) for on in gone)
            return [each for event in events for each in _of_event(state, settings, event)]
        case _:
            return []
    array = array_of(event.job)
    if array and event.succeeded is None:  # an array has started with its first element
        begun = structs.replace(event, job=array)
        return [*_of_event(state, settings, event), *_of_event(state, settings, begun)]
    return _of_event(state, settings, event)


def _is_dropped(number: int, fact: f.ElementsDropped) -> bool:
    """Return whether a job is an element of an array that was deleted before it was made."""
    return array_of(number) == fact.job and holds(fact.elements, index_of(number))


def _of_event(
    state: State, settings: Settings, event: Followed, now_s: float | None = None
) -> list[f.AnyFact]:
    """Return what becomes of the jobs that depend on a job: of those for whom there is room.

    Args:
        state: of the head.
        settings: of the site.
        event: what has happened.
        now_s: the time, if that is later, seconds since the epoch.
    """
    at_s = event.at_s if now_s is None else now_s
    if event.succeeded is not None:
        _remember(state, event.job, succeeded=event.succeeded)
    coming = state.volatile.coming
    dependants = state.dependants.get(event.job)
    if not dependants:
        return []
    later = (number for number in dependants if number > event.after)
    numbers = heapq.nsmallest(coming.room + 1, later)
    if len(numbers) > coming.room:
        numbers.pop()
        coming.events.append(structs.replace(event, after=numbers[-1] if numbers else event.after))
    coming.room -= len(numbers)
    facts: list[f.AnyFact] = []
    for number in numbers:
        job = state.jobs.get(number)
        if job is not None and HoldKind.DEPENDENCY in job.holds and job.attempt is None:
            facts.extend(_come_about(settings, job, event, at_s))
    return facts


def more_followers(state: State, settings: Settings, now_s: float) -> list[f.AnyFact]:
    """Return what becomes of further dependants of jobs that have started or ended before."""
    begin_step(state)
    facts: list[f.AnyFact] = []
    coming = state.volatile.coming
    while coming.events and coming.room:
        facts += _of_event(state, settings, coming.events.popleft(), now_s)
    return facts


def awaited(state: State) -> set[int]:
    """Return the finished jobs on which others depend: of these a step was the last of its head."""
    return {number for number in state.dependants if number not in state.jobs}


def recall(state: State, past: Mapping[int, bool], now_s: float) -> None:
    """Note what dependants of jobs that have started or ended have not been told.

    Args:
        state: as the last head left it.
        past: of `awaited` jobs, whether they succeeded.
        now_s: the time, seconds since the epoch.
    """
    events = state.volatile.coming.events
    for number in sorted(state.dependants):
        job = state.jobs.get(number)
        if job is not None and job.started_s is not None:
            events.append(Followed(job=number, at_s=job.started_s))
        elif job is None and number in past:
            events.append(Followed(job=number, at_s=now_s, succeeded=past[number]))


def _remember(state: State, number: int, *, succeeded: bool) -> None:
    """Note how a job ended: who submits a job that depends on it may have read before that."""
    ended = state.volatile.ended
    ended[number] = succeeded
    if len(ended) > MAX_ENDED:
        del ended[next(iter(ended))]


def _come_about(settings: Settings, job: Job, event: Followed, now_s: float) -> list[f.AnyFact]:
    """Return what becomes of a job when one that it depends on has started or ended."""
    on, succeeded, at_s = event.job, event.succeeded, now_s
    left: list[Dependency] = []
    start_s = 0.0
    for each in job.spec.depends:
        if on not in each.jobs or (succeeded is None and each.kind is not DependencyKind.AFTER):
            left.append(each)
            continue
        if succeeded is not None and not is_met_by_end(each.kind, succeeded=succeeded):
            return _never(settings, job, each.kind, event, now_s)
        jobs = tuple(number for number in each.jobs if number != on)
        if each.delay_s:
            start_s = max(start_s, event.at_s + each.delay_s)
        if jobs:
            left.append(structs.replace(each, jobs=jobs))
    spec = with_start(structs.replace(job.spec, depends=tuple(left)), start_s)
    if spec == job.spec:
        return []
    facts: list[f.AnyFact] = [
        f.JobAltered(at_s=at_s, job=job.id, spec=spec, by="gsched", changed=("dependencies",))
    ]
    if not left:
        facts.append(f.JobReleased(at_s=at_s, job=job.id, holds=HELD, by="gsched"))
    return facts


def _never(
    settings: Settings, job: Job, kind: DependencyKind, event: Followed, at_s: float
) -> list[f.AnyFact]:
    on = event.job
    how = "succeeded" if kind is DependencyKind.AFTER_NOT_OK else "failed or was cancelled"
    name = format_job_id(on, settings.server)
    why = f"its dependency {kind}:{short_job_id(on)} can never be satisfied: job {name} {how}"
    if settings.config.head.unsatisfiable == "hold" and job.hold_reason == why:
        return []
    if settings.config.head.unsatisfiable == "hold":
        return [f.JobHeld(at_s=at_s, job=job.id, holds=HELD, by="gsched", reason=why)]
    elements = job.elements
    if elements is not None and (elements.left or elements.held):
        gone = (*elements.left, *elements.held)
        return [f.ElementsDropped(at_s=at_s, job=job.id, elements=gone, by="gsched", message=why)]
    outcome = Outcome(kind=OutcomeKind.CANCELLED, message=f"cancelled: {why}")
    return [f.JobEnded(at_s=at_s, job=job.id, outcome=outcome, ended_s=at_s, by="gsched")]
