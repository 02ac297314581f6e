"""What a submission says of its training and deadline, checked, with refusals in words."""

import math
from typing import Final

from msgspec import Struct, structs

from gsched.errors import InvalidRequestError
from gsched.model.job import JobSpec
from gsched.model.resources import Request
from gsched.model.training import Training, Urgency
from gsched.model.units import format_duration, format_gpus
from gsched.protocol.actions import Alteration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.adaptive import adaptive_notes
from gschedd.core.requests.resources import check_possible
from gschedd.core.state.settings import Settings
from gschedd.core.state.state import State
from gschedd.core.training.best_case import Best, shortest_run
from gschedd.core.training.profiling import check_profile
from gschedd.models.runtime import allowed_time_s, one_gpu_time_s, size_of_training
from gschedd.models.sizes import size_by_walltime
from gschedd.plan.moments import LATEST_S, moment
from gschedd.plan.training import Size

MAX_DEADLINE_S: Final = LATEST_S
YEAR_S: Final = 365.25 * 86400
#: What an urgency allows beside the run time, for the start of the job and for steps that take
#: longer than stated. Without it ``normal`` on one GPU is late by definition.
URGENCY_SLACK: Final = 0.05  # of the run time on one GPU
URGENCY_SLACK_S: Final = 60.0  # at least: ranks of torchrun took 10 to 34 s to their first step
MAX_GPUS: Final = 100_000
#: What says the run time of a training by its model and data; all of them are needed.
BY_MODEL: Final = ("parameters", "samples", "batch", "epochs", "step_time_s")
_COUNTS: Final = frozenset({"parameters", "samples", "batch", "iterations"})


class Aim(Struct, frozen=True, kw_only=True):
    """What a job says of its training: fields of `JobSpec`; deadline and start 0 if not said."""

    request: Request
    deadline_s: float = 0.0
    urgency: Urgency | None = None
    training: Training | None = None
    movable: bool = False
    start_after_s: float = 0.0


def aim_of(
    submitted: SubmitJob,
    request: Request,
    walltime_s: float | None,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> tuple[Aim, tuple[str, ...]]:
    """Return what a submission says of its training, and what its user should know.

    Raises:
        InvalidRequestError: it is contradictory, or cannot be met even by an idle cluster.
        RequestTooLargeError: no registered hardware can satisfy the request.
    """
    most = submitted.places_max
    aim = Aim(
        request=with_range(request, most) if most else request,
        training=(
            _checked(submitted.training, partial=submitted.adaptive is not None)
            if submitted.training is not None
            else None
        ),
        movable=submitted.movable,
        start_after_s=submitted.start_after_s,
    )
    if submitted.profile:
        check_profile(submitted, settings)
    size = size_of_training(aim.training) if aim.training is not None else None
    size = size or size_by_walltime(walltime_s, aim.request)
    deadline_s, urgency = deadline_of(submitted, size, now_s)
    aim = structs.replace(aim, deadline_s=deadline_s, urgency=urgency)
    check_start(deadline_s, aim.start_after_s, settings)
    if submitted.reject_if_late and not deadline_s:
        raise InvalidRequestError(
            "there is no deadline for which the job could be too late",
            hint="give one with --deadline or --urgency, or leave --reject-if-late out",
        )
    notes: tuple[str, ...] = ()
    if size is None:
        notes = (_unplanned(submitted),) if deadline_s else ()
    elif state.nodes and (aim.training or deadline_s or aim.request.places_max):
        # not for most jobs: it looks at all nodes
        notes = _check_run(aim, size, walltime_s, state=state, settings=settings, now_s=now_s)
    notes = (*notes, *adaptive_notes(submitted, aim.request, state))
    check_possible(request, state)
    return aim, notes


def _unplanned(submitted: SubmitJob) -> str:
    """Return what follows for a deadline where the run time is not stated."""
    advice = "state the workload, or a walltime"
    if submitted.movable:
        when = "once the step time has been measured"
        return f"its run time is unknown: the deadline is considered {when}; or {advice}"
    return f"its run time is unknown: the deadline is not considered; {advice}"


def with_range(request: Request, most: int) -> Request:
    """Return a request that may get up to ``most`` places.

    Raises:
        InvalidRequestError: the range is none, or the places are not alike.
    """
    if len(request.chunks) != 1:
        raise InvalidRequestError(
            "a range of GPUs is for a training job whose chunks are all alike",
            hint="request chunks of one kind, as with --gpus 1..8",
        )
    if not request.places <= most <= MAX_GPUS:
        raise InvalidRequestError(
            f"{request.places} to {most} GPUs is no range",
            hint=f"write --gpus LEAST..MOST, with 1 <= LEAST <= MOST <= {MAX_GPUS}",
        )
    return structs.replace(request, places_max=most) if most > request.places else request


def _checked(training: Training, *, partial: bool) -> Training:
    """Return what was said of a training.

    Args:
        training: as it was stated.
        partial: some of the workload is enough: the job measures the rest itself.

    Raises:
        InvalidRequestError: a number that cannot be, half of what is needed, or a contradiction.
    """
    for name in (*BY_MODEL, "iterations"):
        value = getattr(training, name)
        if not 0 <= value < math.inf:
            raise InvalidRequestError(
                f"training: {name} is {value:g}", hint="give a number above 0, or leave it out"
            )
        if 0 < value < 1 and name in _COUNTS:
            raise InvalidRequestError(
                f"training: {name} is {value:g}, less than one", hint="give a number of 1 or more"
            )
    stated = [name for name in BY_MODEL if getattr(training, name)]
    if stated and (training.iterations or training.rates):
        raise InvalidRequestError(
            f"training: the run time is given twice, by {', '.join(stated)} and by what was "
            "measured (iterations, rates)",
            hint="leave one of the two out",
        )
    if training.batch > training.samples > 0:
        raise InvalidRequestError(
            f"training: a batch of {training.batch:g} is more than all {training.samples:g} "
            "samples of the data set",
            hint="batch is the number of samples in one step on each GPU",
        )
    try:
        size = size_of_training(training)
    except ValueError as error:
        raise InvalidRequestError(
            f"training: {error}", hint="correct the description of the training; see gsub(1)"
        ) from None
    if size is None and not partial:
        raise InvalidRequestError(
            f"training: {_missing(training)} missing: the rest does not determine its run time",
            hint="give parameters, samples, batch, epochs and step time, or just a walltime",
        )
    return training


def _missing(training: Training) -> str:
    needed = ("iterations", "rates") if training.iterations or training.rates else BY_MODEL
    return ", ".join(name.removesuffix("_s") for name in needed if not getattr(training, name))


def _urgency(text: str) -> Urgency | None:
    if not text:
        return None
    try:
        return Urgency(text)
    except ValueError:
        raise InvalidRequestError(
            f"urgency {text!r} is not known", hint=f"say {', '.join(Urgency)}"
        ) from None


def _from_urgency(
    stated: SubmitJob | Alteration, urgency: Urgency, size: Size | None, now_s: float
) -> float:
    if stated.deadline_s or stated.deadline_after_s:
        raise InvalidRequestError(
            "a deadline and an urgency contradict each other", hint="give one of them"
        )
    allowed_s = _allowed_s(size, urgency) if size is not None else math.inf
    if not math.isfinite(allowed_s):
        raise InvalidRequestError(
            "an urgency counts from the run time on one GPU, and that is not known",
            hint="state the workload or a walltime, or give a --deadline",
        )
    if now_s + allowed_s > MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"by its urgency it would have {allowed_s / YEAR_S:.3g} years, which is not possible",
            hint="look at the size of the training, or give a --deadline",
        )
    return now_s + allowed_s


def _allowed_s(size: Size, urgency: Urgency) -> float:
    """Return how long after its submission a training job must be done, seconds."""
    slack_s = max(URGENCY_SLACK_S, URGENCY_SLACK * one_gpu_time_s(size))
    return allowed_time_s(size, urgency) + slack_s


def _stated(stated: SubmitJob | Alteration, now_s: float) -> float:
    deadline_s = stated.deadline_s or now_s + (stated.deadline_after_s or 0.0)
    if not 0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"a deadline {deadline_s:g} s after 1970 is not possible",
            hint="give a time before the year 2200, or a duration like 8h",
        )
    if deadline_s <= now_s:
        raise InvalidRequestError(
            f"the deadline {moment(deadline_s)} has passed: it is {moment(now_s)} here",
            hint="give a time to come, or a duration like 8h",
        )
    return deadline_s


def _check_run(
    aim: Aim,
    size: Size,
    walltime_s: float | None,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> tuple[str, ...]:
    """Refuse what an idle cluster could not do in time; return what the user should know.

    Raises:
        InvalidRequestError: the deadline or the walltime comes before the earliest possible end.
    """
    best = shortest_run(aim.request, size, state=state, settings=settings)
    if best.most_gpus and not math.isfinite(best.run_s):
        raise InvalidRequestError(
            f"by its rates the training cannot run on {_gpus_of(aim.request)}",
            hint="ask for a number of GPUs between those that rates are given for",
        )
    if not math.isfinite(best.run_s):
        return ()  # nothing here holds it, which is refused with its own reason
    if aim.training is not None and walltime_s is not None and best.run_s > walltime_s:
        raise InvalidRequestError(
            f"the training runs for {format_duration(best.run_s)} at least, but its walltime of "
            f"{format_duration(walltime_s)} ends it before",
            hint="give more walltime, or none, or correct the description of the training",
        )
    if aim.deadline_s and settings.config.training.refuse_impossible:
        _check_possible(aim, best, now_s)
    most = aim.request.places_max * aim.request.chunks[0].gpus
    if best.most_gpus < most:
        return (f"up to {most} GPUs are requested; the job can have at most {best.most_gpus} here",)
    return ()


def check_start(deadline_s: float, start_after_s: float, settings: Settings) -> None:
    """Refuse a deadline that comes before a job may start; 0 stands for none.

    Raises:
        InvalidRequestError: the two contradict each other.
    """
    if settings.config.training.refuse_impossible and 0 < deadline_s <= start_after_s:
        raise InvalidRequestError(
            f"the deadline {moment(deadline_s)} cannot be met: the job cannot start before "
            f"{moment(start_after_s)}",
            hint="give a later deadline, or an earlier start",
        )


def _check_possible(aim: Aim, best: Best, now_s: float) -> None:
    end_s = max(now_s, aim.start_after_s) + best.run_s
    if end_s <= aim.deadline_s:
        return
    on = f" on {format_gpus(best.gpus)}" if best.gpus else ""
    run = format_duration(best.run_s)
    if aim.training is not None:
        how, hint = f"it needs at least {run}{on}", _faster(aim.request, best)
    else:
        how, hint = f"by its walltime it may run for {run}{on}", "a shorter walltime"
    if aim.start_after_s > now_s:
        how = f"it cannot start before {moment(aim.start_after_s)}, and {how}"
    raise InvalidRequestError(
        f"the deadline {moment(aim.deadline_s)} cannot be met even if all nodes were idle: "
        f"{how}, so the earliest end is {moment(end_s)}",
        hint=f"{_later(aim)}, or {hint}",
    )


def _later(aim: Aim) -> str:
    if aim.urgency in {Urgency.URGENT, Urgency.NORMAL}:
        return "give a less urgent --urgency, or --deadline"
    return "give a later deadline"


def _faster(request: Request, best: Best) -> str:
    """Return what could make a training shorter than its shortest run."""
    if best.gpus < best.most_gpus:
        return f"less work: it runs no faster on {format_gpus(best.most_gpus)}"
    most = max(request.gpus, request.places_max * request.chunks[0].gpus)
    if best.most_gpus < most:
        return f"less work: the cluster has no more than {format_gpus(best.most_gpus)} for it"
    return f"allow more than {format_gpus(most)} with --gpus LEAST..MOST"


def _gpus_of(request: Request) -> str:
    least, most = request.gpus, request.places_max * request.chunks[0].gpus
    return f"{least} to {most} GPUs" if most > least else format_gpus(least)


def deadline_of(
    stated: SubmitJob | Alteration, size: Size | None, now_s: float
) -> tuple[float, Urgency | None]:
    """Return the deadline that somebody states, 0 if none, and the urgency it comes from.

    Args:
        stated: it may state one of them, or nothing.
        size: what is left to do; None where that is not known.

    Raises:
        InvalidRequestError: it is contradictory, in the past, or cannot be computed.
    """
    urgency = _urgency(stated.urgency or "")
    if urgency is not None:
        return _from_urgency(stated, urgency, size, now_s), urgency
    if stated.deadline_s or stated.deadline_after_s:
        return _stated(stated, now_s), None
    return 0.0, None


def check_deadline(
    spec: JobSpec,
    size: Size,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> None:
    """Refuse a deadline that what is left of a training could not meet on an idle cluster.

    Args:
        spec: of the job, with its new deadline.
        size: what is left of it.

    Raises:
        InvalidRequestError: it could not; the earliest possible end is said.
    """
    best = shortest_run(spec.request, size, state=state, settings=settings)
    if settings.config.training.refuse_impossible and math.isfinite(best.run_s):
        aim = Aim(
            request=spec.request,
            deadline_s=spec.deadline_s,
            training=spec.training,
            start_after_s=spec.start_after_s,
        )
        _check_possible(aim, best, now_s)
