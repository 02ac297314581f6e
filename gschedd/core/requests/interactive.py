"""Interactive jobs: what they can be, and who may enter a job that runs."""

from msgspec import structs

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.ids import short_job_id
from gsched.model.job import Interactive
from gsched.model.limits import MAX_DETACH_TIMEOUT_S
from gsched.model.states import LaunchKind
from gsched.model.units import format_duration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, QueueLimits, Settings


def with_terminal(submitted: SubmitJob, settings: Settings) -> SubmitJob:
    """Return a submission with what follows from being interactive; another one as it is.

    Raises:
        InvalidRequestError: it says something that an interactive job cannot be.
    """
    if submitted.interactive is None:
        return submitted
    refused = _refused(submitted)
    if refused:
        raise InvalidRequestError(
            f"an interactive job cannot {refused[0]}", hint=f"omit -I or {refused[1]}"
        )
    timeout_s = submitted.interactive.detach_timeout_s
    name = submitted.queue or settings.default_queue
    limits = settings.limits_of(name)
    most_s = limits.max_detach_timeout_s
    if timeout_s is None:
        queue = settings.queues.get(name)
        of_queue = queue.detach_timeout_s if queue is not None else -1.0
        timeout_s = settings.config.head.detach_timeout_s if of_queue < 0 else of_queue
        if most_s:
            timeout_s = min(timeout_s or most_s, most_s)
    check_detach_timeout(timeout_s, limits)
    if not 0 <= timeout_s <= MAX_DETACH_TIMEOUT_S:
        raise InvalidRequestError(
            f"a detach timeout of {timeout_s:.15g} s is not between 0 and "
            f"{format_duration(MAX_DETACH_TIMEOUT_S)}",
            hint="specify a time within these limits, or none",
        )
    return structs.replace(
        submitted, rerunnable=False, interactive=Interactive(detach_timeout_s=timeout_s)
    )


def check_detach_timeout(timeout_s: float, limits: QueueLimits) -> None:
    """Check the detach timeout of an interactive job; 0: it has none.

    Raises:
        InvalidRequestError: it is longer than the queue or the site allows.
    """
    most_s = limits.max_detach_timeout_s
    if not most_s or 0 < timeout_s <= most_s:
        return
    stated = f"a detach timeout of {format_duration(timeout_s)}" if timeout_s else "none"
    raise InvalidRequestError(
        f"--detach-timeout: {stated} is over the limit {limits.where_detach}, "
        f"{format_duration(most_s)}",
        hint="specify a shorter time, or omit the option",
    )


def _refused(submitted: SubmitJob) -> tuple[str, str] | None:
    """Return what contradicts being interactive, and the option that says it."""
    found = (
        (submitted.array, "be an array: it has one terminal", "-t"),
        (submitted.launch == LaunchKind.TORCHRUN, "be started by torchrun", "--torchrun"),
        (submitted.places_max, "have a range of GPUs", "the range of --gpus"),
        (
            submitted.movable or submitted.checkpoint_signal,
            "migrate: its user would lose the terminal",
            "--elastic or --checkpoint-signal",
        ),
        (
            submitted.adaptive or submitted.training,
            "be a training job",
            "the options of the training",
        ),
        (
            submitted.deadline_s or submitted.deadline_after_s or submitted.urgency,
            "have a deadline: nobody knows how long its user needs",
            "--deadline or --urgency",
        ),
        (submitted.every_node, "run on every node: it has one terminal", "--every-node"),
        (submitted.requeue_on or submitted.lease_s, "be restarted", "--requeue-on or --lease"),
    )
    return next(((what, option) for is_so, what, option in found if is_so), None)


def may_enter(caller: Caller, job: Job, settings: Settings) -> None:
    """Refuse who may not have a terminal in a job: whoever has one acts as the job's owner.

    Root is not refused, as root can become that user anyway. Other operators are, unless the site
    allows it, and always where the owner is root.

    Raises:
        NotPermittedError: the caller may not.
    """
    owner = job.spec.owner
    if may(caller, Verb.ENTER_JOB, owner):
        return
    name = short_job_id(job.id)
    if not caller.operator:
        raise NotPermittedError(
            f"job {name} belongs to {owner.user}", hint="only its owner can have a terminal in it"
        )
    if owner.uid == 0:
        raise NotPermittedError(f"job {name} belongs to root, whom no operator becomes")
    if not settings.config.head.operators_enter_jobs:
        raise NotPermittedError(
            f"job {name} belongs to {owner.user}, and operators do not enter the jobs of others "
            "here",
            hint="root can, or set operators_enter_jobs = true in [head]",
        )


def check_has_files(job: Job) -> None:
    """Refuse to look for the output of a job that has a terminal.

    Raises:
        InvalidRequestError: it has.
    """
    if job.spec.interactive is not None:
        name = short_job_id(job.id)
        raise InvalidRequestError(
            f"job {name} is interactive: its output is on its terminal", hint=f"gattach {name}"
        )
