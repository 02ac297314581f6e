"""galter: which parts of a job's statement may change when, and to what."""

from typing import Final

from msgspec import structs

from gsched.errors import (
    BadResourceError,
    BadStateError,
    InvalidRequestError,
    NotPermittedError,
    RequestTooLargeError,
)
from gsched.model import limits
from gsched.model.ids import short_job_id
from gsched.model.job import JobSpec, Labels, Stated
from gsched.model.request import check_length, format_resources, parse_resources
from gsched.model.states import HoldKind, JobState
from gsched.model.units import format_duration
from gsched.protocol.actions import Alteration, AlterJob
from gschedd.core.requests.access import check_queue_access, own_job
from gschedd.core.requests.commands import ActOnJob
from gschedd.core.requests.containers import with_container
from gschedd.core.requests.content import check_name, check_texts
from gschedd.core.requests.deadline import check_deadline, check_start, deadline_of
from gschedd.core.requests.dependencies import Stated as StatedDependencies
from gschedd.core.requests.dependencies import (
    altered_holds,
    checked_dependencies,
    made_to_wait,
    with_start,
)
from gschedd.core.requests.extension import extended_s
from gschedd.core.requests.interactive import check_detach_timeout
from gschedd.core.requests.notify import altered_notify
from gschedd.core.requests.projects import with_project
from gschedd.core.requests.reservations import check_use
from gschedd.core.requests.resources import (
    check_possible,
    checked_walltime,
    never_fits,
    with_memory,
)
from gschedd.core.requests.schedule import (
    checked_grace,
    checked_holds,
    checked_join,
    checked_priority,
    checked_start,
    highest_priority,
)
from gschedd.core.requests.sharing import check_sharing
from gschedd.core.requests.staged import with_staging
from gschedd.core.requests.within_limits import (
    check_longer,
    check_startable,
    check_submitted,
    limited_walltime,
)
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State, party_of
from gschedd.core.training.profile import profile_of
from gschedd.core.training.step_times import own_size
from gschedd.models.sizes import size_of
from gschedd.plan.training import Size

_TEXTS: Final = limits.texts_of(Alteration)
#: What becomes part of the job as it was said.
_STATED: Final = tuple(
    name for name in Alteration.__struct_fields__ if name in Stated.__struct_fields__
)
#: What can still change once the job runs.
WHILE_RUNNING: Final = frozenset(
    {*Labels.__struct_fields__}
    | {"resources", "mail_points", "mail_to", "notify_url", "rerunnable", "grace_s", "holds"}
    | {"deadline_s", "deadline_after_s", "urgency"}
)
#: Terms that say anew how many places there are and what each is like.
LAYOUT_TERMS: Final = frozenset({"nodes", "select", "ncpus", "procs"})
#: What is a part of each place where these are said one by one, and says nothing beside them.
GPU_TERMS: Final = frozenset({"gpus", "ngpus"})


def alter_job(
    state: State,
    settings: Settings,
    command: ActOnJob,
    action: AlterJob,
    now_s: float,
    *,
    job: Job | None = None,
) -> list[f.AnyFact]:
    """Return the change as one fact (and holds as another): all of it, or a refusal.

    Args:
        job: an element of an array that is about to become this job; None: the job is known.

    Raises:
        GschedError: something asked for cannot be; nothing is changed then.
    """
    job = job or own_job(state, settings, command)
    limits.check_texts(action.alteration, _TEXTS)
    wanted = {
        name: value
        for name, value in structs.asdict(action.alteration).items()
        if value is not None
    }
    if not wanted:
        raise InvalidRequestError("nothing to alter", hint="name what should change: see --help")
    if job.state in {JobState.RUNNING, JobState.EXITING}:
        late = sorted(set(wanted) - WHILE_RUNNING)
        if late:
            raise BadStateError(
                f"job {short_job_id(job.id)} is {job.state}: {', '.join(late)} can no longer "
                "change",
                hint="when it runs: walltime, deadline, account, mail, rerunnable, grace, holds",
            )
    _check_priority(job, action.alteration.priority, command.caller, settings)
    spec = _altered(
        job, action.alteration, command.caller, state=state, settings=settings, now_s=now_s
    )
    depends = None
    if action.alteration.depends is not None:
        stated = StatedDependencies(
            texts=action.alteration.depends,
            caller=command.caller,
            name=spec.name,
            past=command.past,
            own=job.id,
            now_s=now_s,
        )
        depends = checked_dependencies(stated, state, settings)
        spec = structs.replace(spec, depends=depends.waits_for)
        spec = with_start(spec, depends.start_after_s)
    facts: list[f.AnyFact] = []
    changed = tuple(sorted(set(wanted) - {"holds"}))
    if changed and spec != job.spec:
        facts.append(
            f.JobAltered(at_s=now_s, job=job.id, spec=spec, by=command.caller.user, changed=changed)
        )
    if depends is not None:
        facts.extend(made_to_wait(depends, job.id, state, command.caller, now_s))
        facts.extend(altered_holds(job, depends, by=command.caller.user, now_s=now_s))
    if action.alteration.holds is not None:
        facts.extend(_holds(job, action.alteration.holds, command.caller, now_s))
    return facts


def _check_priority(job: Job, wanted: int | None, caller: Caller, settings: Settings) -> None:
    """Refuse to raise a priority above the site's limit; lowering one is always allowed."""
    if wanted is None:
        return
    priority = checked_priority(wanted)
    highest = highest_priority(caller, settings)
    if priority > max(highest, job.spec.priority):
        raise NotPermittedError(
            f"priority {priority} is above the limit for users, {highest}",
            hint="ask an operator to raise it",
        )


def _holds(job: Job, wanted: tuple[str, ...], caller: Caller, now_s: float) -> list[f.AnyFact]:
    """``-h n`` comes as an empty list: release what the caller may release."""
    if wanted:
        holds = checked_holds(wanted, caller)
        return [f.JobHeld(at_s=now_s, job=job.id, holds=holds, by=caller.user)]
    holds = checked_holds(tuple(set(job.holds) - {HoldKind.DEPENDENCY}), caller)
    if not holds:
        return []
    return [f.JobReleased(at_s=now_s, job=job.id, holds=holds, by=caller.user)]


def _altered(
    job: Job,
    alteration: Alteration,
    caller: Caller,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> JobSpec:
    spec = job.spec
    if alteration.name is not None:
        check_name(alteration.name)
    _check_rerunnable(job, alteration)
    stated = {name: value for name in _STATED if (value := getattr(alteration, name)) is not None}
    stated |= altered_notify(alteration, settings.config.notify)
    check_texts(*(value for value in stated.values() if isinstance(value, str)))
    queue = spec.queue if alteration.queue is None else alteration.queue
    spec = structs.replace(
        spec,
        name=spec.name if alteration.name is None else alteration.name,
        queue=queue,
        priority=spec.priority
        if alteration.priority is None
        else checked_priority(alteration.priority),
        start_after_s=checked_start(
            spec.start_after_s if alteration.start_after_s is None else alteration.start_after_s
        ),
        join=spec.join if alteration.join is None else checked_join(alteration.join),
        grace_s=spec.grace_s if alteration.grace_s is None else checked_grace(alteration.grace_s),
        lease_s=_kept_lease_s(job, alteration),
        **stated,
    )
    if alteration.queue is not None:
        check_queue_access(spec.queue, caller, settings)
        spec = _in_queue(job, spec, state, settings)
    if alteration.resources is not None:
        spec = _with_resources(
            job, spec, alteration.resources, state=state, settings=settings, now_s=now_s
        )
        more_s = extended_s(job, spec.walltime_s, caller, state, settings, now_s)
        spec = structs.replace(spec, extended_s=more_s)
    if alteration.account is not None or alteration.qos is not None:
        spec = with_project(spec, caller, settings)
        if job.attempt is not None and settings.projects and spec.account != job.spec.account:
            raise BadStateError(
                f"job {short_job_id(job.id)} is {job.state}: its project can no longer change",
                hint="its usage is charged to the project that it was started for",
            )
        is_other = bool(settings.qos) and spec.qos != job.spec.qos
        if job.attempt is not None and is_other and not caller.operator:
            raise BadStateError(
                f"job {short_job_id(job.id)} is {job.state}: its QOS can no longer change",
                hint="it counts in the limits of the QOS that it was started with; ask an operator",
            )
    spec = _with_deadline(job, spec, alteration, state=state, settings=settings, now_s=now_s)
    check_sharing(spec)
    named = (spec.reservation, spec.account)
    if job.attempt is None and named != (job.spec.reservation, job.spec.account):
        check_use(spec, caller, state, settings)
    changes = (alteration.queue, alteration.resources, alteration.account, alteration.qos)
    if any(each is not None for each in changes):
        spec = _within_limits(job, spec, caller, state, now_s)
    return spec


def _within_limits(job: Job, spec: JobSpec, caller: Caller, state: State, now_s: float) -> JobSpec:
    """Return a changed job that keeps the limits of users and queues.

    Raises:
        GschedError: it is more than they allow.
    """
    if job.attempt is not None:
        if not caller.operator:
            check_longer(job, spec, state, now_s)
        return spec
    walltime_s = limited_walltime(spec.walltime_s, party_of(spec), state)
    spec = structs.replace(spec, walltime_s=walltime_s)
    if party_of(spec) != party_of(job.spec):
        check_submitted(spec, state, now_s, job)
    else:
        check_startable(spec, state, now_s)
    return spec


def _in_queue(job: Job, spec: JobSpec, state: State, settings: Settings) -> JobSpec:
    """Return a job as another queue takes it: within its limits, with its defaults before a start.

    Raises:
        GschedError: the queue does not take it.
    """
    limits = settings.limits_of(spec.queue)
    if spec.interactive is not None:
        check_detach_timeout(spec.interactive.detach_timeout_s or 0.0, limits)
    walltime_s = checked_walltime(
        spec.walltime_s, spec.queue, settings, is_interactive=spec.interactive is not None
    )
    if job.attempt is not None:
        return spec
    request = with_memory(spec.request, limits)
    refusal = never_fits(request, state)
    if refusal and request is not spec.request:
        raise RequestTooLargeError(refusal[0], hint=refusal[1])
    return structs.replace(spec, request=request, walltime_s=walltime_s)


def _check_rerunnable(job: Job, alteration: Alteration) -> None:
    """Refuse to let an interactive job run again: its user would sit at another terminal.

    Raises:
        BadStateError: that is asked.
    """
    if alteration.rerunnable and job.spec.interactive is not None:
        raise BadStateError(
            f"job {short_job_id(job.id)} is interactive, so it cannot be rerun", hint="omit -r y"
        )


def _kept_lease_s(job: Job, alteration: Alteration) -> float:
    """Return the lease that a job keeps: none if it must not run again.

    Raises:
        BadStateError: it runs with one, so its node ends it as agreed.
    """
    if alteration.rerunnable is not False or not job.spec.lease_s:
        return job.spec.lease_s
    if job.attempt is not None and job.attempt.lease_s:
        raise BadStateError(
            f"job {short_job_id(job.id)} runs with a lease, so it must stay rerunnable",
            hint="submit a job that must not be rerun with --lease none",
        )
    return 0.0


def _with_deadline(
    job: Job,
    spec: JobSpec,
    alteration: Alteration,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> JobSpec:
    """Return the job with another deadline, judged by what is left of it; 0 takes it away."""
    times = (alteration.deadline_s, alteration.deadline_after_s, alteration.urgency)
    if all(each is None for each in times):
        if alteration.start_after_s is not None:
            check_start(spec.deadline_s, spec.start_after_s, settings)
        return spec
    if alteration.deadline_s == 0 and not alteration.deadline_after_s and not alteration.urgency:
        return structs.replace(spec, deadline_s=0.0, urgency=None)
    size = own_size(job, state, settings) or size_of(spec)
    if size is not None:
        profile = profile_of(job, size, settings=settings, state=state, now_s=now_s)
        size = Size(speed=size.speed, work=profile.work)
    deadline_s, urgency = deadline_of(alteration, size, now_s)
    if not deadline_s:
        raise InvalidRequestError(
            "no deadline is named", hint="give a time to come, or a duration like 8h"
        )
    spec = structs.replace(spec, deadline_s=deadline_s, urgency=urgency)
    check_start(deadline_s, spec.start_after_s, settings)
    if size is not None:
        check_deadline(spec, size, state=state, settings=settings, now_s=now_s)
    return spec


def _with_resources(
    job: Job,
    spec: JobSpec,
    texts: tuple[str, ...],
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> JobSpec:
    check_length(texts)
    named = {term.partition("=")[0].strip() for text in texts for term in text.split(",")}
    # what is not named stays, unless the layout itself is named anew
    anew = bool(named & LAYOUT_TERMS)
    present = format_resources(spec.request, None)
    if not anew and named & GPU_TERMS and present.startswith("select="):
        raise BadResourceError(
            f"job {short_job_id(job.id)} asks for {present}: its GPUs are part of its chunks",
            hint="restate the chunks, such as -l nodes=1:gpus=2 or select=2:ngpus=1",
        )
    parsed = parse_resources(
        texts,
        generic_names=state.generic_names(),
        warn_unknown=settings.config.head.unknown_resource == "warn",
        exclusive=spec.request.exclusive,
        so_far="" if anew else present,
    )
    walltime_s = spec.walltime_s if parsed.walltime_s is None else parsed.walltime_s
    if parsed.walltime_change_s is not None:
        if spec.walltime_s is None:
            raise BadResourceError(
                f"job {short_job_id(job.id)} has no walltime that could grow or shrink",
                hint="give walltime=HH:MM:SS without a sign",
            )
        walltime_s = spec.walltime_s + parsed.walltime_change_s
    walltime_s = checked_walltime(
        walltime_s, spec.queue, settings, is_interactive=spec.interactive is not None
    )
    started_s = job.attempt.started_s if job.attempt is not None else None
    elapsed_s = now_s - started_s if started_s is not None else 0.0
    if walltime_s is not None and walltime_s <= elapsed_s:
        raise InvalidRequestError(
            f"a walltime of {format_duration(max(walltime_s, 0.0))} lies in the past: job "
            f"{short_job_id(job.id)} "
            f"has run for {format_duration(elapsed_s)}",
            hint="give more, or end the job with gdel",
        )
    fresh = anew and job.attempt is None
    limits = settings.limits_of(spec.queue)
    request = with_memory(parsed.request, limits) if fresh else parsed.request
    request = with_container(request, spec.container, state, settings)
    request = with_staging(request, spec)
    if not anew:
        request = structs.replace(request, places_max=spec.request.places_max)
    if job.attempt is not None and request != spec.request:
        raise BadStateError(
            f"job {short_job_id(job.id)} is {job.state}: of its resources only walltime can change",
            hint="grerun it, or change it while it waits",
        )
    check_possible(request, state)
    return structs.replace(spec, request=request, walltime_s=walltime_s)
