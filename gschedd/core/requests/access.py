"""Who may submit a job, and who may change one: its owner and operators."""

from typing import Final

from gsched.errors import BadStateError, NotPermittedError, TryAgainError, UnknownJobError
from gsched.model.ids import format_job_id
from gsched.model.job import Owner
from gsched.model.limits import MAX_WORD
from gsched.protocol import actions as a
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests import commands as c
from gschedd.core.requests.authorize import Verb, authorize, may
from gschedd.core.requests.projects import coordinates
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State

OVERFLOW_UID: Final = 65534  # "nobody": what a user of another namespace looks like


def owner_of(submitted: SubmitJob, caller: Caller, state: State, settings: Settings) -> Owner:
    """Return the owner of one more job, with the host that it was submitted from.

    Raises:
        GschedError: the caller may not submit it; see `check_caller`, `check_queue_access`.
    """
    check_caller(caller, state, settings)
    check_queue_access(submitted.queue or settings.default_queue, caller, settings)
    host = submitted.environment.get("PBS_O_HOST", "")[:MAX_WORD]
    host = host if host.isprintable() else ""  # it is shown beside the owner
    return Owner(user=caller.user, uid=caller.uid, gid=caller.gid, host=host)


def check_caller(caller: Caller, state: State, settings: Settings) -> None:
    """Check that a user may have one more job.

    Raises:
        NotPermittedError: this user may have none here.
        TryAgainError: there are too many, or the user has no name now.
    """
    authorize(caller, Verb.SUBMIT_JOB)
    if caller.uid == OVERFLOW_UID:
        raise NotPermittedError(
            "the caller's user id is 65534 (nobody, or a user of another namespace)",
            hint="submit as a user of this machine",
        )
    if caller.uid == 0 and caller.host:
        raise NotPermittedError(
            f"root of {caller.host} may not submit jobs", hint="submit as an ordinary user"
        )
    if caller.uid == 0 and not settings.config.head.allow_root_jobs:
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
    most = settings.config.head.max_queued_per_user
    if state.jobs_by_user.get(caller.uid, 0) >= most:
        raise TryAgainError(
            f"{caller.user} has {most} unfinished jobs, the limit here",
            hint="wait until some have ended, or delete some",
        )


def check_queue_access(queue: str, caller: Caller, settings: Settings) -> None:
    """Check that a user may submit to a queue, or move jobs to it; operators always may.

    Raises:
        NotPermittedError: the queue is for others.
    """
    config = settings.queues.get(queue)
    if config is None or not (config.deny_users or config.allow_users or config.allow_groups):
        return
    if may(caller, Verb.USE_ANY_QUEUE):
        return
    if caller.user in config.deny_users:
        raise NotPermittedError(
            f"{caller.user} may not use queue {queue}: its deny_users names this user",
            hint="choose another queue with -q: gmgr list shows who may use which",
        )
    is_allowed = caller.user in config.allow_users or caller.groups & set(config.allow_groups)
    if (config.allow_users or config.allow_groups) and not is_allowed:
        who = [
            f"{what} {', '.join(names)}"
            for what, names in (("users", config.allow_users), ("groups", config.allow_groups))
            if names
        ]
        raise NotPermittedError(
            f"{caller.user} may not use queue {queue}: it is for {' and '.join(who)}",
            hint="choose another queue with -q: gmgr list shows who may use which",
        )


def own_job(state: State, settings: Settings, command: c.ActOnJob) -> Job:
    """Return the job if the caller may change it.

    Raises:
        UnknownJobError: no such job, or it is done.
        NotPermittedError: it is somebody else's.
    """
    job = state.jobs.get(command.job)
    if job is None:
        name = format_job_id(command.job, settings.server)
        if command.job in state.damaged:
            raise BadStateError(
                f"the record of job {name} in the head's database is damaged",
                hint="an operator can give the job up with gdel, or restore a backup",
            )
        if command.job in state.unstored.finished:
            raise BadStateError(f"job {name} has already finished")
        raise UnknownJobError(f"Unknown Job Id {name}", hint="see gstat for jobs, ghist for past")
    authorize_action(command, job, settings)
    return job


def authorize_action(command: c.ActOnJob, job: Job, settings: Settings) -> None:
    """Refuse a caller who is not allowed to do that to a job.

    Raises:
        NotPermittedError: the caller is not allowed to.
    """
    stops = isinstance(command.action, (a.DeleteJob, a.HoldJob, a.ReleaseJob))
    verb = Verb.STOP_JOB if stops else Verb.CHANGE_JOB
    may_stop = stops and coordinates(command.caller.user, job.spec.account, settings)
    authorize(command.caller, verb, job, coordinates=may_stop)
