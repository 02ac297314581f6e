"""From what a user sent to a `JobSpec`: each section of the submission, checked in its own file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from gsched.model.job import JobSpec, SubmitPlace, stated_of
from gsched.model.limits import check_texts, texts_of
from gsched.model.resources import Request
from gsched.model.states import JobState, LaunchKind
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.access import owner_of
from gschedd.core.requests.alike import Alike, alike, keep, name_of
from gschedd.core.requests.checkpointing import saving_of
from gschedd.core.requests.commands import AcceptedJob, Submit
from gschedd.core.requests.content import check_arguments, checked_array
from gschedd.core.requests.deadline import aim_of
from gschedd.core.requests.dependencies import Depends, with_dependencies
from gschedd.core.requests.dependencies import Stated as StatedDependencies
from gschedd.core.requests.interactive import with_terminal
from gschedd.core.requests.notify import checked_notify
from gschedd.core.requests.projects import with_membership
from gschedd.core.requests.reservations import check_use
from gschedd.core.requests.resources import resources_of
from gschedd.core.requests.schedule import schedule_of
from gschedd.core.requests.sharing import check_sharing
from gschedd.core.requests.within_limits import check_submitted
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State
from gschedd.core.state.step import Step
from gschedd.plan.limits import Party

_KEY: Final = tuple(each for each in texts_of(SubmitJob) if each[0] == "key")


class Submission(Struct, frozen=True, kw_only=True):
    """A job ready to be queued, and what its user should be told.

    Attributes:
        left_out: what a job that is submitted again cannot have any more, by name, and why.
    """

    spec: JobSpec
    warnings: tuple[str, ...]
    depends: Depends = Depends()
    left_out: Mapping[str, str] = MappingProxyType({})


def known_submission(state: State, uid: int, key: str) -> int | None:
    """Return the job of a user that an earlier try of the same submission made, or None."""
    return state.keys.find(uid, key) if key else None


def prepare(
    command: Submit,
    *,
    state: State,
    settings: Settings,
    intern: Callable[[Request], Request],
    now_s: float,
) -> Submission:
    """Return the job that is requested, after defaults and every check that can be made now.

    Args:
        command: who asks, and for what.
        intern: returns an equal request, always the same object, so that memory is shared.

    Raises:
        GschedError: the job cannot be taken; the message says what, why and what to do.
    """
    submitted, caller, digests = command.submitted, command.caller, command.digests
    owner = owner_of(submitted, caller, state, settings)
    array = checked_array(submitted, caller, state, settings)
    submitted = with_terminal(submitted, settings)
    queue = submitted.queue or settings.default_queue
    party = Party(queue, owner.user, submitted.account, submitted.qos)
    party = with_membership(party, caller, settings)
    resources = resources_of(submitted, party, state, settings)
    walltime_s = resources.walltime_s
    aim, notes = aim_of(
        submitted, resources.request, walltime_s, state=state, settings=settings, now_s=now_s
    )
    warnings = [*resources.warnings, *notes]
    saving = saving_of(submitted, walltime_s, settings)
    warnings += saving.warnings
    if not state.nodes:
        warnings.append("no node has registered yet: the job waits for one")
    schedule = schedule_of(submitted, caller, settings)
    warnings += schedule.warnings
    notify = checked_notify(submitted, settings.config.notify)
    warnings += notify.warnings
    spec = JobSpec(
        owner=owner,
        name=submitted.name,
        queue=queue,
        request=intern(aim.request),
        workdir=submitted.workdir,
        walltime_s=walltime_s,
        priority=schedule.priority,
        start_after_s=schedule.start_after_s,
        join=schedule.join,
        umask=submitted.umask & 0o777,
        launch=LaunchKind(submitted.launch),
        grace_s=schedule.grace_s,
        array=array,
        lines_digest=command.lines_digest,
        script_digest=digests[0],
        environment_digest=digests[1],
        client_key=submitted.key,
        holds=schedule.holds,
        deadline_s=aim.deadline_s,
        urgency=aim.urgency,
        training=aim.training,
        movable=saving.movable,
        checkpoint_dir=saving.checkpoint_dir,
        checkpoint_interval_s=saving.checkpoint_interval_s,
        checkpoint_signal=saving.checkpoint_signal,
        restarts_max=saving.restarts_max,
        lease_s=saving.lease_s,
        place=_place(submitted, caller),
    )
    ours = {"account": party.project, "qos": party.qos}
    spec = structs.replace(spec, **(stated_of(submitted) | notify.stated | ours))
    check_sharing(spec)
    check_use(spec, caller, state, settings)
    check_submitted(spec, state, now_s)
    stated = StatedDependencies(
        texts=submitted.depends, caller=caller, name=spec.name, past=command.past, now_s=now_s
    )
    spec, depends = with_dependencies(spec, stated, state, settings)
    return Submission(spec=spec, warnings=tuple(warnings), depends=depends)


def after(command: Submit, before: tuple[Submit, Step] | None) -> Submit:
    """Return a submission that names the one before it if these differ in their keys only.

    Args:
        command: it.
        before: the last one of the same request that was accepted, at this very moment.
    """
    if before is None or command.submitted.depends:
        return command
    other, step = before
    if structs.replace(other.submitted, key=command.submitted.key) != command.submitted:
        return command
    accepted = AcceptedJob(job=step.job, warnings=step.warnings)
    return structs.replace(command, same_as=accepted)


def submission_of(
    command: Submit,
    *,
    state: State,
    settings: Settings,
    intern: Callable[[Request], Request],
    now_s: float,
) -> Submission:
    """Return the job that is requested: as `prepare`, or taken over from one that is the same."""
    submitted, caller = command.submitted, command.caller
    if command.same_as is not None:
        spec, warnings = state.jobs[command.same_as.job].spec, command.same_as.warnings
    else:
        name = name_of(command, state, settings)
        found = None if name is None else alike(name, submitted, state, settings)
        if found is None:
            made = prepare(command, state=state, settings=settings, intern=intern, now_s=now_s)
            if name is not None:
                keep(
                    name,
                    Alike(
                        submitted=submitted,
                        settings=settings,
                        spec=made.spec,
                        warnings=made.warnings,
                    ),
                    state,
                )
            return made
        spec, warnings = found.spec, found.warnings
    owner = owner_of(submitted, caller, state, settings)
    check_texts(submitted, _KEY)
    check_arguments(submitted.arguments, caller, state)
    spec = structs.replace(spec, owner=owner, client_key=submitted.key)
    check_submitted(spec, state, now_s)
    return Submission(spec=spec, warnings=warnings)


def _place(submitted: SubmitJob, caller: Caller) -> SubmitPlace | None:
    """Return the directory of submission on the caller's host, as the head knows that.

    A program with a token is on no host of the cluster: output stays on the node.
    """
    place = submitted.place
    return None if place is None or caller.token else structs.replace(place, host=caller.host)


def first_state(spec: JobSpec, now_s: float) -> JobState:
    """Return the state in which a job begins."""
    if spec.holds:
        return JobState.HELD
    return JobState.WAITING if spec.start_after_s > now_s else JobState.QUEUED
