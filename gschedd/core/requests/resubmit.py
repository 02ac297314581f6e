"""Jobs, or what has failed of them, that are submitted again, as a new job of the same owner.

The statement of the original is kept, and the indices of its elements. Limits, queue and nodes are
checked as of any submission, since they may have changed. What cannot be kept is told, by name.
Extensions of the walltime are left out. Where only what has failed runs again, so is what was for
the first time only: holds, dependencies, the time to start after.
"""

from typing import Final

from msgspec import structs

from gsched.errors import BadStateError, GschedError, InvalidRequestError, NotPermittedError
from gsched.model.arrays import Array, Spans, common, count, format_spans, take
from gsched.model.dependency import DependencyKind, format_dependencies
from gsched.model.ids import short_job_id
from gsched.model.job import JobSpec
from gsched.model.limits import MAX_ARRAY_SPANS
from gsched.model.request import format_resources
from gsched.model.states import HoldKind, LaunchKind
from gsched.protocol.actions import Alteration
from gsched.protocol.rerun import JobChanges
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.access import check_caller, check_queue_access
from gschedd.core.requests.authorize import Verb, authorize, may
from gschedd.core.requests.commands import Resubmit
from gschedd.core.requests.containers import with_container
from gschedd.core.requests.content import check_arguments, check_content
from gschedd.core.requests.deadline import check_deadline, deadline_of, with_range
from gschedd.core.requests.dependencies import Depends, checked_dependencies, with_dependencies
from gschedd.core.requests.dependencies import Stated as StatedDependencies
from gschedd.core.requests.notify import kept_notify
from gschedd.core.requests.projects import with_project
from gschedd.core.requests.reservations import check_use
from gschedd.core.requests.resources import (
    check_possible,
    checked_walltime,
    resources_of,
    with_memory,
)
from gschedd.core.requests.schedule import capped_priority
from gschedd.core.requests.sharing import check_sharing
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
    spec = stated_spec(original.spec)
    owner = Caller(user=spec.owner.user, uid=spec.owner.uid, gid=spec.owner.gid)
    check_caller(owner, state, settings)
    if spec.interactive is not None:
        raise BadStateError(
            f"job {short_job_id(original.id)} is interactive: its terminal is gone",
            hint="start another one with gsub -I",
        )
    if command.anew is not None:
        spec = _with_changes(spec, command, command.anew, state, settings)
    check_arguments(spec.arguments, owner, state)
    spec = with_project(spec, owner, settings)
    walltime_s = checked_walltime(spec.walltime_s, spec.queue, settings, is_interactive=False)
    walltime_s = limited_walltime(walltime_s, party_of(spec), state)
    request = with_memory(spec.request, settings.limits_of(spec.queue))
    request = with_container(request, spec.container, state, settings)
    request = with_staging(request, spec)
    check_possible(request, state)
    priority, warnings = capped_priority(spec.priority, caller, settings)
    notify = kept_notify(spec, settings.config.notify)
    left = dict(zip(notify.stated, notify.warnings, strict=True))
    spec = structs.replace(
        spec,
        request=request,
        walltime_s=walltime_s,
        priority=priority,
        client_key=command.key,
        array=_array_of(command, settings),
        **notify.stated,
    )
    spec = _with_reservation(spec, owner, state, settings, left)
    depends = Depends()
    if command.anew is None:
        spec = structs.replace(spec, rerun_of=original.id, start_after_s=0.0, holds=(), depends=())
    else:
        check_sharing(spec)
        spec, depends = _with_holds(spec, command, state, settings, now_s, left)
    check_submitted(spec, state, now_s)
    if command.anew is None:
        _check_not_under_way(original, command.elements, state)
    spec = _with_deadline(spec, state, settings, now_s, left)
    return Submission(
        spec=spec, warnings=(*warnings, *left.values()), depends=depends, left_out=left
    )


def check_agreed(command: Resubmit, submission: Submission) -> None:
    """Check that the owner knows what the new job lacks, where that can be asked.

    Raises:
        BadStateError: it lacks something else.
    """
    untold = [why for name, why in submission.left_out.items() if name not in command.without]
    if command.anew is not None and untold:
        raise BadStateError(untold[0], hint="check the job again before you submit it")


def stated_spec(spec: JobSpec) -> JobSpec:
    """Return what a job was submitted with: without what extended it, and as a rerun of none."""
    walltime_s = spec.walltime_s
    if walltime_s is not None:
        walltime_s -= spec.extended_s
    return structs.replace(spec, walltime_s=walltime_s, extended_s=0.0, rerun_of=0)


def changeable(spec: JobSpec, script: str) -> JobChanges:
    """Return what of a job can be changed when it is submitted again."""
    return JobChanges(
        name=spec.name,
        queue=spec.queue,
        resources=format_resources(spec.request, spec.walltime_s),
        workdir=spec.workdir,
        script=script if spec.launch is LaunchKind.SCRIPT else None,
        arguments=spec.arguments,
    )


def changed_submission(spec: JobSpec, changes: JobChanges, script: str) -> SubmitJob:
    """Return what can be changed of a job as a submission states it.

    Args:
        spec: of the job, see `stated_spec`.
        changes: what is stated anew.
        script: of the job.
    """
    kept = structs.asdict(changeable(spec, script))
    anew = {name: value for name, value in structs.asdict(changes).items() if value is not None}
    if _lines(anew.get("script", script)) == _lines(script):
        anew.pop("script", None)  # forms write the ends of lines in their own way
    found = kept | anew
    return SubmitJob(
        **found | {"resources": (found["resources"],), "script": found["script"] or ""},
        key="",
        launch=spec.launch.value,
        account=spec.account,
        container=spec.container,
        stage_in=spec.stage_in,
        stage_out=spec.stage_out,
        submit_dir=spec.submit_dir,
        place=spec.place,
    )


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _with_changes(
    spec: JobSpec, command: Resubmit, anew: SubmitJob, state: State, settings: Settings
) -> JobSpec:
    """Return a job with what its owner states anew.

    Raises:
        GschedError: it is refused, or the job is somebody else's.
    """
    caller = command.caller
    if caller.uid != spec.owner.uid:
        raise NotPermittedError(
            f"job {short_job_id(command.original.id)} is a job of {spec.owner.user}",
            hint="submit own jobs again",
        )
    check_content(anew, caller, state)
    check_queue_access(anew.queue, caller, settings)
    walltime_s, request = spec.walltime_s, spec.request
    if anew.resources != (changeable(spec, "").resources,):
        party = party_of(spec)._replace(queue=anew.queue)
        resources = resources_of(anew, party, state, settings)
        walltime_s, request = resources.walltime_s, resources.request
        if spec.request.places_max:
            request = with_range(request, spec.request.places_max)
    return structs.replace(
        spec,
        name=anew.name,
        queue=anew.queue,
        workdir=anew.workdir,
        arguments=anew.arguments,
        script_digest=command.script_digest,
        walltime_s=walltime_s,
        request=request,
    )


def _with_reservation(
    spec: JobSpec, owner: Caller, state: State, settings: Settings, left: dict[str, str]
) -> JobSpec:
    """Return a job in its reservation, if it may still use that."""
    try:
        check_use(spec, owner, state, settings)
    except GschedError as error:
        words = error.message
        if spec.reservation not in state.reservations:
            words = f"reservation {spec.reservation} has ended or was deleted"
        left["reservation"] = f"{words}: the new job is in no reservation"
        return structs.replace(spec, reservation="")
    return spec


def _with_holds(
    spec: JobSpec,
    command: Resubmit,
    state: State,
    settings: Settings,
    now_s: float,
    left: dict[str, str],
) -> tuple[JobSpec, Depends]:
    """Return a job with its holds and the dependencies that can still come about."""
    caller, texts = command.caller, []
    for each in spec.depends:
        text = format_dependencies((each,))
        if each.kind is DependencyKind.SINGLETON:
            text = each.kind.value
        stated = StatedDependencies(
            texts=(text,), caller=caller, name=spec.name, past=command.past, now_s=now_s
        )
        try:
            checked_dependencies(stated, state, settings)
        except GschedError as error:
            left["depends"] = f"the new job does not have the dependency {text}: {error.message}"
        else:
            texts.append(text)
    holds = tuple(
        hold
        for hold in spec.holds
        if hold is HoldKind.USER
        or (hold is not HoldKind.DEPENDENCY and may(caller, Verb.HOLD_FOR_SITE))
    )
    stated = StatedDependencies(
        texts=texts, caller=caller, name=spec.name, past=command.past, now_s=now_s
    )
    spec = structs.replace(spec, holds=holds, depends=())
    return with_dependencies(spec, stated, state, settings)


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
    spec: JobSpec, state: State, settings: Settings, now_s: float, left: dict[str, str]
) -> JobSpec:
    """Return a job with the deadline that it keeps.

    One that follows from an urgency counts from now. Another one is dropped if it has passed, or
    cannot be met any more.
    """
    if not spec.deadline_s:
        return spec
    size = size_of(spec)
    if spec.urgency is not None:
        deadline_s, _ = deadline_of(Alteration(urgency=spec.urgency.value), size, now_s)
        return structs.replace(spec, deadline_s=deadline_s)
    why = ""
    if spec.deadline_s <= now_s:
        why = f"the deadline {moment(spec.deadline_s)} has passed"
    elif size is not None:
        try:
            check_deadline(spec, size, state=state, settings=settings, now_s=now_s)
        except InvalidRequestError as error:
            why = error.message
    if not why:
        return spec
    left["deadline"] = f"{why}: the new job has no deadline"
    return structs.replace(spec, deadline_s=0.0)
