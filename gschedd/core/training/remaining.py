"""What is left of a training that runs: of its start, and of its work."""

from typing import Final

from msgspec import Struct

from gschedd.core.state.records import Attempt, Job, Reached
from gschedd.models.startup import LEAST_S
from gschedd.plan.training import Size

#: So long a training must have been heard for its real pace to count, seconds. The first steps of
#: one are slower than all others.
OBSERVED_LEAST_S: Final = 5.0


class Rest(Struct, frozen=True, kw_only=True):
    """What is left, as far as is known.

    Attributes:
        work: in the unit of the training's speed; of one that runs faster or slower than its speed
            tells, so much more or less that its run time comes out right where it runs.
        total_work: what there was at the beginning, likewise.
        startup_s: until its first step, seconds.
    """

    work: float
    total_work: float
    startup_s: float = 0.0


class Before(Struct, frozen=True, kw_only=True):
    """What is expected before the first step of an attempt.

    Attributes:
        startup_s: of a start, seconds; 0: nothing is.
        move_s: of a move, until the first step after it, seconds.
    """

    startup_s: float
    move_s: float


def rest_of_running(
    job: Job,
    size: Size,
    rate: float,
    *,
    reached: Reached | None,
    before: Before,
    now_s: float,
) -> Rest:
    """Return what is left of a training whose attempt has started.

    Args:
        job: it.
        size: of all of it.
        rate: work a second where it runs, by its speed.
        reached: how far it has said to be, if it has.
        before: what is expected before its steps.
        now_s: seconds since the epoch.
    """
    attempt = job.current_attempt
    assert attempt.started_s is not None, "it has started"
    if reached is not None and reached.attempt == attempt.number:
        # its node's clock may be wrong, but it cannot have been there before its attempt
        since_s = max(reached.at_s, attempt.started_s)
        slower = _slower(size, rate, reached)
        left = (size.work - done_of(size, reached.work_done, reached.work_total)) * slower
        return Rest(work=left - rate * max(0.0, now_s - since_s), total_work=size.work * slower)
    begins_s = attempt.started_s + _begins_after_s(attempt, before)
    left = size.work - done_of(size, attempt.work_begun, job.work_total)
    return Rest(
        work=left - rate * max(0.0, now_s - begins_s),
        total_work=size.work,
        startup_s=_rest_of_start_s(
            now_s - begins_s,
            left / rate if rate > 0 else float("inf"),
            is_known=before.startup_s > 0,
        ),
    )


def _begins_after_s(attempt: Attempt, before: Before) -> float:
    """Return how long after its start an attempt does its first step, as far as is known."""
    if attempt.startup_s is not None:
        return attempt.startup_s
    return max(before.startup_s, before.move_s) if attempt.work_begun > 0 else before.startup_s


def _rest_of_start_s(since_s: float, steps_s: float, *, is_known: bool) -> float:
    """Return what is left of a start, or of what nobody knew of.

    One that should have been done before has taken longer to start than was expected, or its steps
    do: how long it will go on, it is taken to have gone on for, as the longer it has the longer it
    is likely to.

    Args:
        since_s: since it should have done its first step, seconds; below 0: that is to come.
        steps_s: what is to be done after that.
        is_known: something is known of how long it takes to start.
    """
    if since_s < 0:
        return -since_s if is_known else 0.0
    over_s = since_s - steps_s
    return over_s if over_s >= LEAST_S else 0.0


def _slower(size: Size, rate: float, reached: Reached) -> float:
    """Return how many times longer a training's steps take than its speed tells; 1: unknown."""
    observed_s = reached.at_s - reached.since_s
    now, then = (
        done_of(size, work, reached.work_total) for work in (reached.work_done, reached.since_work)
    )
    if observed_s < OBSERVED_LEAST_S or now <= then or rate <= 0:
        return 1.0
    return rate * observed_s / (now - then)


def done_of(size: Size, work_done: float, work_total: float) -> float:
    """Return what is done in the unit of a training's speed.

    A training counts in samples, of which its user may have said nothing: neither a walltime nor
    measured rates do. What both know is how large a part of the whole is done.
    """
    return size.work * min(1.0, work_done / work_total) if work_total > 0 else work_done
