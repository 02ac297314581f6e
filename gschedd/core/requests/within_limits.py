"""Limits of users and queues at submissions and changes: of single jobs, and of their number."""

import math

from gsched.errors import InvalidRequestError, TryAgainError
from gsched.model.arrays import count
from gsched.model.ids import short_job_id
from gsched.model.job import JobSpec
from gsched.model.units import format_duration
from gschedd.core.state.records import Job
from gschedd.core.state.state import State, party_of
from gschedd.plan.amounts import amounts_needed
from gschedd.plan.budgets import PERIODS
from gschedd.plan.limits import Bound, LimitRoom, Party


def limited_walltime(walltime_s: float | None, party: Party, state: State) -> float | None:
    """Return the walltime of a job; one that states none gets the most that it may have.

    Raises:
        InvalidRequestError: it states more.
    """
    for bound in state.limits.rules.bounds(party):
        if bound.kind.key != "max_walltime_s":
            continue
        if walltime_s is None:
            walltime_s = bound.most
        if walltime_s > bound.most:
            raise InvalidRequestError(
                f"walltime {format_duration(walltime_s)} is over the limit of {bound.limit_of}, "
                f"{format_duration(bound.most)}",
                hint="request less",
            )
    return walltime_s


def check_submitted(spec: JobSpec, state: State, now_s: float, job: Job | None = None) -> None:
    """Check that a user may have a further unfinished job, and that it can ever start.

    Args:
        job: that is to be one of another queue.

    Raises:
        TryAgainError: the user, or the queue, has as many unfinished jobs as allowed.
        InvalidRequestError: the job alone exceeds a limit.
    """
    jobs = 1 if spec.array is None else count(spec.array.spans)
    own = state.limits.queued.get(job.id) if job is not None else None
    for bound in state.limits.rules.bounds(party_of(spec)):
        if bound.counter != "queued" or (own is not None and bound.scope in own[0]):
            continue
        has = state.limits.used(bound.scope, "queued", 0.0)
        if has + jobs > bound.most:
            more = "" if jobs == 1 else f"; this array has {jobs} elements"
            raise TryAgainError(
                f"{bound.holder} has {has:g} of {bound.most} unfinished jobs, "
                f"the limit of {bound.limit_of}{more}",
                hint="wait until some have finished, or delete some",
            )
    check_startable(spec, state, now_s)


def check_startable(spec: JobSpec, state: State, now_s: float) -> None:
    """Check that a job does not exceed a limit alone: it would never start.

    Raises:
        InvalidRequestError: it does.
    """
    rules = state.limits.rules
    bounds = rules.bounds(party_of(spec))
    if not bounds:
        return
    needed = amounts_needed(spec.request, spec.walltime_s)
    needed["walltime"] = math.inf if spec.walltime_s is None else spec.walltime_s
    for bound in bounds:
        amount = needed.get(bound.takes, 0)
        if amount <= bound.most or bound.counter == "queued":
            if amount and bound.counter in PERIODS and rules.refuses_over_budget:
                _check_budget(bound, amount, LimitRoom(state.limits, now_s).used(bound))
            continue
        limit = f"the limit of {bound.limit_of} is {bound.words(bound.most)}"
        if bound.takes in {"gpu_time", "walltime"} and spec.walltime_s is None:
            raise InvalidRequestError(
                f"the job has no walltime: {limit} {bound.noun}",
                hint="state one, such as -l walltime=04:00:00",
            )
        if bound.counter == "running":
            raise InvalidRequestError(
                f"the job cannot run: {limit} {bound.noun}",
                hint="ask an operator for a higher limit",
            )
        raise InvalidRequestError(
            f"the job requests {bound.words(amount)} {bound.noun}; {limit}",
            hint="request less, or ask an operator for a higher limit",
        )


def _check_budget(bound: Bound, amount: float, used: float) -> None:
    """Check that a budget has enough left for a job.

    Raises:
        InvalidRequestError: it has not.
    """
    if used + amount > bound.most:
        raise InvalidRequestError(
            f"the job requests {bound.words(amount)} {bound.noun}; {bound.holder} has used "
            f"{bound.words(used)} of {bound.words(bound.most)}, the limit of {bound.limit_of}",
            hint="request less, or submit it in the next period",
        )


def check_longer(job: Job, spec: JobSpec, state: State, now_s: float) -> None:
    """Check that the limits leave the GPU time for a longer walltime of a running job.

    Raises:
        InvalidRequestError: they do not.
    """
    held = state.limits.held.get(job.id)
    if held is None or spec.walltime_s is None or job.spec.walltime_s is None:
        return
    more_s = spec.walltime_s - job.spec.walltime_s
    if more_s <= 0:
        return
    gpu_time = held.amounts.get("gpus", 0) * round(more_s * 1000)
    limit = LimitRoom(state.limits, now_s).lack(held.party, {"gpu_time": gpu_time})
    if limit is not None:
        raise InvalidRequestError(
            f"job {short_job_id(job.id)} cannot be extended by {format_duration(more_s)}: {limit}",
            hint="extend it by less, or wait until others of these jobs have run on",
        )
