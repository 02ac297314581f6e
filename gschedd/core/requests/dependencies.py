"""Dependencies of jobs on others: checked when they are stated, resolved when jobs start and end.

A job with dependencies is held by `HoldKind.DEPENDENCY`. What has come about is taken out of its
statement (`JobSpec.depends`) as a fact, so that a head that restarts need not know how jobs ended
long ago; when nothing is left the hold is released. What can never come about cancels the job, or
keeps it on hold with that as its reason.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.errors import BadDependencyError
from gsched.model.dependency import (
    REVERSED,
    Dependency,
    DependencyKind,
    format_dependencies,
    parse_dependencies,
)
from gsched.model.ids import array_of, index_of, short_job_id
from gsched.model.job import JobSpec
from gsched.model.states import HoldKind
from gsched.model.wording import counted
from gschedd.core.requests.authorize import Verb, hides, may
from gschedd.core.state import facts as f
from gschedd.core.state.elements import meant_number, unmade_element
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State

HELD: Final = (HoldKind.DEPENDENCY,)


class Stated(Struct, frozen=True, kw_only=True):
    """What a user states of a job's dependencies.

    Attributes:
        texts: as after ``-W depend=``.
        caller: who states them.
        name: of the job.
        past: whether jobs that are done succeeded, as far as the database was asked.
        own: the number of the job, if it has one already.
        now_s: seconds since the epoch.
    """

    texts: Sequence[str]
    caller: Caller
    name: str
    past: Mapping[int, bool]
    own: int = 0
    now_s: float = 0.0


class Depends(Struct, frozen=True, kw_only=True):
    """What the stated dependencies come to.

    Attributes:
        waits_for: those that have not come about yet.
        before: jobs that are to wait for this one, and how.
        start_after_s: until when it waits for jobs that have started, seconds since the epoch.
    """

    waits_for: tuple[Dependency, ...] = ()
    before: tuple[tuple[int, DependencyKind], ...] = ()
    start_after_s: float = 0.0


def checked_dependencies(stated: Stated, state: State, settings: Settings) -> Depends:
    """Return the dependencies that a user states, without those that have come about.

    Raises:
        BadDependencyError: one cannot be read, names an unknown job, or can never be satisfied.
    """
    caller, name, own, past = stated.caller, stated.name, stated.own, stated.past
    waits_for: list[Dependency] = []
    before: list[tuple[int, DependencyKind]] = []
    start_s = 0.0
    for each in parse_dependencies(stated.texts, server=settings.server):
        named = tuple(meant_number(state, job) for job in each.jobs)
        if each.kind in REVERSED:
            for job in named:
                _check_counts(job, state, caller)
                before.append((job, REVERSED[each.kind]))
        elif each.kind is DependencyKind.ON:
            waits_for.append(each)
        else:
            jobs = named
            if each.kind is DependencyKind.SINGLETON:
                jobs = _namesakes(state, caller, name, own)
            left = tuple(job for job in jobs if not _is_met(each.kind, job, state, past))
            if each.delay_s:
                met = (_begun_s(job, state, stated.now_s) for job in jobs if job not in left)
                start_s = max([start_s, *(begun_s + each.delay_s for begun_s in met)])
            if left:
                waits_for.append(structs.replace(each, jobs=left))
    if own:
        _check_circle(waits_for, own, state)
    return Depends(waits_for=tuple(waits_for), before=tuple(before), start_after_s=start_s)


def _begun_s(number: int, state: State, now_s: float) -> float:
    """Return when a job began; of one that has ended already it is as if that were now."""
    job = state.jobs.get(number)
    return now_s if job is None or job.started_s is None else job.started_s


def _namesakes(state: State, caller: Caller, name: str, own: int) -> tuple[int, ...]:
    """Return the caller's unfinished jobs of that name, but for the job itself and later ones."""
    return tuple(
        job.id
        for job in state.jobs.values()
        if job.spec.name == name
        and job.spec.owner.uid == caller.uid
        and (not own or job.id < own)
        and array_of(job.id) not in state.arrays  # the array ends after its elements
    )


def _is_met(kind: DependencyKind, number: int, state: State, past: Mapping[int, bool]) -> bool:
    job = state.jobs.get(number)
    if job is not None:
        return kind is DependencyKind.AFTER and job.started_s is not None
    index = state.arrays.get(array_of(number))
    unmade = unmade_element(index.job, index_of(number)) if index is not None else None
    if unmade is not None and unmade.outcome is None:
        return False  # an element that is to become a job
    succeeded = None if unmade is None else False
    if succeeded is None:
        succeeded = state.volatile.ended.get(number)
    if succeeded is None and number in state.unstored.finished:
        outcome = state.unstored.finished[number].outcome
        succeeded = outcome is not None and outcome.succeeded
    if succeeded is None:
        succeeded = past.get(number)
    if succeeded is None:
        raise BadDependencyError(
            f"{kind}:{short_job_id(number)}: Unknown Job Id {short_job_id(number)}",
            hint="see gstat for jobs, ghist for past",
        )
    met = is_met_by_end(kind, succeeded=succeeded)
    if not met:
        how = "succeeded" if succeeded else "failed or was cancelled"
        raise BadDependencyError(
            f"{kind}:{short_job_id(number)} can never be satisfied: job {short_job_id(number)} "
            f"{how}",
            hint=f"see ghist {short_job_id(number)}",
        )
    return True


def is_met_by_end(kind: DependencyKind, *, succeeded: bool) -> bool:
    """Return whether the end of a job is what the dependency waits for."""
    if kind is DependencyKind.AFTER_OK:
        return succeeded
    return not succeeded if kind is DependencyKind.AFTER_NOT_OK else True


def _check_counts(number: int, state: State, caller: Caller) -> None:
    """Check that a job waits for ``on:COUNT`` jobs that are to say so.

    Raises:
        BadDependencyError: it does not, or is somebody else's.
    """
    job = state.jobs.get(number)
    if job is None:
        raise BadDependencyError(f"before: Unknown Job Id {short_job_id(number)}", hint="see gstat")
    if not may(caller, Verb.COUNT_DEPENDENCY, job.spec.owner):
        raise BadDependencyError(
            f"before: job {short_job_id(number)} belongs to "
            + ("another user" if hides(caller, job.spec.owner) else job.spec.owner.user)
        )
    if HoldKind.DEPENDENCY not in job.holds or not _count_of(job.spec):
        raise BadDependencyError(
            f"before: job {short_job_id(number)} does not wait for another job",
            hint="submit it with -W depend=on:COUNT first",
        )


def _count_of(spec: JobSpec) -> int:
    return sum(each.count for each in spec.depends)


def _check_circle(waits_for: Sequence[Dependency], own: int, state: State) -> None:
    """Check that no job waits for itself, over however many others.

    Raises:
        BadDependencyError: it would.
    """
    ahead = [job for each in waits_for for job in each.jobs]
    seen: set[int] = set()
    while ahead:
        number = ahead.pop()
        if number == own:
            raise BadDependencyError(f"job {short_job_id(own)} would wait for itself")
        if number not in seen and number in state.jobs:
            seen.add(number)
            ahead.extend(job for each in state.jobs[number].spec.depends for job in each.jobs)


def with_dependencies(
    spec: JobSpec, stated: Stated, state: State, settings: Settings
) -> tuple[JobSpec, Depends]:
    """Return a job's statement with what it waits for, on hold for that, and its dependencies.

    Raises:
        BadDependencyError: as `checked_dependencies`.
    """
    if not stated.texts:
        return spec, Depends()
    depends = checked_dependencies(stated, state, settings)
    spec = with_start(spec, depends.start_after_s)
    if not depends.waits_for:
        return spec, depends
    holds = tuple(sorted({*spec.holds, HoldKind.DEPENDENCY}))
    return structs.replace(spec, depends=depends.waits_for, holds=holds), depends


def with_start(spec: JobSpec, start_after_s: float) -> JobSpec:
    """Return a job's statement with a start that is not before a time, seconds since the epoch."""
    if start_after_s <= spec.start_after_s:
        return spec
    return structs.replace(spec, start_after_s=start_after_s)


def made_to_wait(
    depends: Depends, by: int, state: State, caller: Caller, now_s: float
) -> list[f.AnyFact]:
    """Return that the jobs named by ``before*`` wait for the job ``by``, instead of a count."""
    facts: list[f.AnyFact] = []
    specs: dict[int, JobSpec] = {}
    for number, kind in depends.before:
        spec = specs.get(number) or state.jobs[number].spec
        left, counted = [], False
        for each in spec.depends:
            if each.count and not counted:
                counted = True
                if each.count > 1:
                    left.append(structs.replace(each, count=each.count - 1))
            else:
                left.append(each)
        waits_for = (*left, Dependency(kind=kind, jobs=(by,)))
        specs[number] = spec = structs.replace(spec, depends=waits_for)
        facts.append(
            f.JobAltered(
                at_s=now_s, job=number, spec=spec, by=caller.user, changed=("dependencies",)
            )
        )
    return facts


def altered_holds(job: Job, depends: Depends, *, by: str, now_s: float) -> list[f.AnyFact]:
    """Return the hold or release that follows from other dependencies of a job that waits."""
    if depends.waits_for and HoldKind.DEPENDENCY not in job.holds:
        return [f.JobHeld(at_s=now_s, job=job.id, holds=HELD, by=by)]
    if not depends.waits_for and HoldKind.DEPENDENCY in job.holds:
        return [f.JobReleased(at_s=now_s, job=job.id, holds=HELD, by=by)]
    return []


def dependency_reason(job: Job) -> str:
    """Return for what a job on hold waits, in words."""
    waits = format_dependencies(job.spec.depends)
    because = f"; {job.hold_reason}" if job.hold_reason else ""
    return f"waits for its dependencies: {waits}{because}"


def dependencies_short(job: Job) -> str:
    """Return the same for a line of a list: ``waits for job 5``."""
    jobs = [number for each in job.spec.depends for number in each.jobs]
    if len(jobs) == 1:
        return f"waits for job {short_job_id(jobs[0])}"
    return f"waits for {counted(len(jobs) or _count_of(job.spec), 'job')}"
