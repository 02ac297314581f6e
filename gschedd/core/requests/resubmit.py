"""Failed jobs and elements of arrays that are submitted again, as a new job of the same owner.

The statement of the original is kept, and the indices of its elements. Limits, queue and nodes are
checked as of any submission, since they may have changed. What was for the first time only is left
out: holds, dependencies, the time to start after, extensions of the walltime.
"""

from typing import Final

from msgspec import structs

from gsched.errors import BadStateError, InvalidRequestError
from gsched.model.arrays import Array, Spans, common, count, format_spans, take
from gsched.model.ids import short_job_id
from gsched.model.job import JobSpec
from gsched.model.limits import MAX_ARRAY_SPANS
from gsched.protocol.actions import Alteration
from gschedd.core.requests.access import check_caller
from gschedd.core.requests.authorize import Verb, authorize
from gschedd.core.requests.commands import Resubmit
from gschedd.core.requests.containers import with_container
from gschedd.core.requests.content import check_arguments
from gschedd.core.requests.deadline import check_deadline, deadline_of
from gschedd.core.requests.notify import kept_notify
from gschedd.core.requests.projects import with_project
from gschedd.core.requests.resources import check_possible, checked_walltime, with_memory
from gschedd.core.requests.schedule import capped_priority
from gschedd.core.requests.staged import with_staging
from gschedd.core.requests.submit import Submission
from gschedd.core.requests.within_limits import check_submitted, limited_walltime
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State, party_of
from gschedd.models.sizes import size_of
from gschedd.plan.moments import moment

_SHOWN: Final = 60  # characters of a list of indices in a message


def prepare_again(command: Resubmit, state: State, settings: Settings, now_s: float) -> Submission:
    """Return the job that the original becomes, after every check that can be made now.

    Raises:
        GschedError: it cannot be taken; the message says what, why and what to do.
    """
    original, caller = command.original, command.caller
    authorize(caller, Verb.RESUBMIT_JOB, original)
    spec = original.spec
    owner = Caller(user=spec.owner.user, uid=spec.owner.uid, gid=spec.owner.gid)
    check_caller(owner, state, settings)
    if spec.interactive is not None:
        raise BadStateError(
            f"job {short_job_id(original.id)} is interactive: its terminal is gone",
            hint="start another one with gsub -I",
        )
    check_arguments(spec.arguments, owner, state)
    spec = with_project(spec, owner, settings)
    walltime_s = spec.walltime_s
    if walltime_s is not None:
        walltime_s -= spec.extended_s
    walltime_s = checked_walltime(walltime_s, spec.queue, settings, is_interactive=False)
    walltime_s = limited_walltime(walltime_s, party_of(spec), state)
    request = with_memory(spec.request, settings.limits_of(spec.queue))
    request = with_container(request, spec.container, state, settings)
    request = with_staging(request, spec)
    check_possible(request, state)
    priority, warnings = capped_priority(spec.priority, caller, settings)
    notify = kept_notify(spec, settings.config.notify)
    spec = structs.replace(
        spec,
        request=request,
        walltime_s=walltime_s,
        extended_s=0.0,
        priority=priority,
        start_after_s=0.0,
        holds=(),
        depends=(),
        client_key=command.key,
        rerun_of=original.id,
        array=_array_of(command, settings),
        **notify.stated,
    )
    check_submitted(spec, state, now_s)
    _check_not_under_way(original, command.elements, state)
    spec, notes = _with_deadline(spec, state, settings, now_s)
    return Submission(spec=spec, warnings=(*warnings, *notify.warnings, *notes))


def _array_of(command: Resubmit, settings: Settings) -> Array | None:
    """Return the elements of the new array; None: the original is an ordinary job.

    Raises:
        InvalidRequestError: they are too many for one array, or in too many ranges.
    """
    stated, spans = command.original.spec.array, command.elements
    if stated is None:
        return None
    assert spans, "there is something to submit"
    most = settings.config.head.max_array_elements
    fits = take(spans, most)[0][:MAX_ARRAY_SPANS]
    if fits != spans:
        number = command.original.id
        raise InvalidRequestError(
            f"{count(spans)} elements of job {number}[] have failed, in {len(spans)} ranges of "
            f"indices; one array can have {most} elements in {MAX_ARRAY_SPANS} ranges",
            hint="submit them in several arrays, first: "
            f"grerun --failed '{number}[{fits[0].first}-{fits[-1].last}]'",
        )
    return structs.replace(stated, spans=spans)


def _check_not_under_way(original: Job, elements: Spans, state: State) -> None:
    """Refuse what an unfinished rerun has: both would write the same files.

    Raises:
        BadStateError: there is one.
    """
    for number in sorted(state.reruns.get(original.id, ())):
        array = state.jobs[number].spec.array
        if array is None:
            raise BadStateError(
                f"job {number}, a rerun of job {short_job_id(original.id)}, has not finished",
                hint=f"wait for it with gwait {number}, or cancel it",
            )
        both = common(elements, array.spans)
        if both:
            listed = format_spans(both)
            listed = listed if len(listed) <= _SHOWN else f"{listed[:_SHOWN]}..."
            raise BadStateError(
                f"job {number}[], a rerun of job {original.id}[], has not finished and has "
                f"{count(both)} of these elements: {listed}",
                hint=f"wait for it with gwait '{number}[]', then: grerun --failed '{number}[]'",
            )


def _with_deadline(
    spec: JobSpec, state: State, settings: Settings, now_s: float
) -> tuple[JobSpec, tuple[str, ...]]:
    """Return a job with the deadline that it keeps, and what its user should know of it.

    One that follows from an urgency counts from now. Another one is dropped if it has passed, or
    cannot be met any more.
    """
    if not spec.deadline_s:
        return spec, ()
    size = size_of(spec)
    if spec.urgency is not None:
        deadline_s, _ = deadline_of(Alteration(urgency=spec.urgency.value), size, now_s)
        return structs.replace(spec, deadline_s=deadline_s), ()
    why = ""
    if spec.deadline_s <= now_s:
        why = f"the deadline {moment(spec.deadline_s)} has passed"
    elif size is not None:
        try:
            check_deadline(spec, size, state=state, settings=settings, now_s=now_s)
        except InvalidRequestError as error:
            why = error.message
    if not why:
        return spec, ()
    return structs.replace(spec, deadline_s=0.0), (f"{why}: the new job has no deadline",)
