"""A running job gives way: to a waiting job, or because its nodes are needed for something else.

A job that can save its state does so, and keeps running on fewer GPUs or on other nodes, or waits
in its queue. Another one is stopped; it is rerun from its beginning or from its own checkpoints,
or cancelled if it must not be rerun.
"""

from collections.abc import Iterator

from msgspec import Struct

from gsched.config.preemption import WAYS, PreemptMode, PreemptWay
from gsched.model.resources import WHOLE_PERCENT, Allocation, percent_held
from gsched.model.states import AttemptState, JobState, StopReason
from gschedd.core.attempts.migration import requested
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.plan.elastic import is_elastic
from gschedd.plan.snapshot import Move


class GiveWay(Struct, frozen=True, kw_only=True):
    """How a running job is to give way, and why.

    Attributes:
        allocation: on which it keeps running, with ``shrink`` and ``migrate``.
        why: in words, of which its owner is told.
        job_for: the waiting job that gets its resources; 0: none.
        or_requeue: it is requeued if it does not save its state in time.
        behind: it waits as if it had been submitted with this number; 0: in its first place.
        by: who wants it.
    """

    way: PreemptWay
    why: str
    allocation: Allocation = ()
    job_for: int = 0
    or_requeue: bool = False
    behind: int = 0
    by: str = "gsched"


def ways_of(job: Job, mode: PreemptMode) -> tuple[PreemptWay, ...]:
    """Return how a job can give way now, up to a mode, the least lost work first; empty: it cannot.

    A job that is being stopped or migrates gives up its resources already.
    """
    attempt, spec = job.attempt, job.spec
    if attempt is None or attempt.stop is not None or job.state is not JobState.RUNNING:
        return ()
    can_save = spec.movable and attempt.state is AttemptState.RUNNING
    possible = {
        "shrink": can_save and is_elastic(spec.request),
        "migrate": can_save,
        "checkpoint": can_save,
        "requeue": spec.rerunnable,
        "cancel": True,
    }
    allowed = WAYS[: WAYS.index(mode) + 1] if mode != "off" else ()
    return tuple(way for way in allowed if possible[way])


def lost_s(job: Job, way: PreemptWay, now_s: float) -> float:
    """Return for how long an attempt has worked since its last checkpoint, if that is lost."""
    attempt = job.current_attempt
    if way not in {"requeue", "cancel"} or attempt.started_s is None:
        return 0.0
    since_s = attempt.started_s
    if job.saved is not None and way == "requeue":
        since_s = max(since_s, job.saved.at_s)
    return max(0.0, now_s - since_s)


def give_way(
    state: State, settings: Settings, job: Job, order: GiveWay, now_s: float
) -> Iterator[f.JobPreempted | f.MigrationRequested | f.StopRequested]:
    """Yield that a job gives way; `ways_of` has the way that is wanted."""
    if order.way not in {"shrink", "migrate", "checkpoint"}:
        yield from stopped(job, order, now_s)
        return
    yield from _announced(job, order, now_s)
    move = Move(job=job.id, allocation=order.allocation, why=order.why)
    yield requested(state, settings, job, move, by=order.by, now_s=now_s)


def stopped(job: Job, order: GiveWay, now_s: float) -> Iterator[f.JobPreempted | f.StopRequested]:
    """Yield that a job is stopped to give way, whatever it has not saved; see `give_way`."""
    yield from _announced(job, order, now_s)
    yield f.StopRequested(
        at_s=now_s,
        job=job.id,
        attempt=job.attempts,
        reason=StopReason.RERUN if order.way == "requeue" else StopReason.DELETE,
        grace_s=job.spec.grace_s,
        by=order.by,
        message=order.why,
    )


def _announced(job: Job, order: GiveWay, now_s: float) -> Iterator[f.JobPreempted]:
    """Yield that a job is preempted; for a reservation, once for each way that is tried."""
    attempt, before = job.current_attempt, job.preempted
    same = before is not None and (before.attempt, before.way, before.job_for, before.why) == (
        *(attempt.number, order.way, 0, order.why),
    )
    if same and not order.job_for:
        return
    yield f.JobPreempted(
        at_s=now_s,
        job=job.id,
        attempt=attempt.number,
        way=order.way,
        why=order.why,
        by=order.by,
        job_for=order.job_for,
        gpus=percent_held(attempt.allocation) / WHOLE_PERCENT,
        lost_s=lost_s(job, order.way, now_s),
        or_requeue=order.or_requeue,
        behind=order.behind,
    )
