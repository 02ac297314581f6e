"""Who may change a job: its owner and operators."""

from gsched.errors import BadStateError, NotPermittedError, UnknownJobError
from gsched.model.ids import format_job_id, short_job_id
from gschedd.core.requests import commands as c
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import State


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
    authorize(command.caller, job)
    return job


def authorize(caller: Caller, job: Job) -> None:
    """Refuse who is neither the job's owner nor an operator.

    Raises:
        NotPermittedError: the caller is neither.
    """
    owner = job.spec.owner
    if caller.owns(owner) or caller.operator:
        return
    if caller.uid != owner.uid:
        why = ""
    elif caller.is_nameless:
        why = f", and the head's machine knows no user with your uid {caller.uid} now"
    else:
        why = f", who had uid {caller.uid} before you ({caller.user})"
    raise NotPermittedError(
        f"job {short_job_id(job.id)} belongs to {owner.user}{why}",
        hint="its owner or an operator can do this",
    )
