"""What a submission says of its training and deadline, checked, with refusals in words."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, structs

from gsched.errors import InvalidRequestError
from gsched.model.resources import Request
from gsched.model.training import Training, Urgency
from gsched.model.units import format_duration
from gsched.protocol.api import SubmitJob
from gschedd.core.settings import Settings
from gschedd.core.state import State
from gschedd.models.runtime import allowed_time_s, size_of_run, size_of_training
from gschedd.plan.elastic import at_count
from gschedd.plan.fit import NoFit, place
from gschedd.plan.space import Spaces, emptied
from gschedd.plan.training import Size, gpus_by_node

MAX_DEADLINE_S: Final = 7_258_118_400.0  # 2200-01-01: later is a typing error
MAX_GPUS: Final = 100_000


class Aim(Struct, frozen=True, kw_only=True):
    """What a job says of its training: the fields of `JobSpec`; deadline 0 if there is none."""

    request: Request
    deadline_s: float = 0.0
    urgency: Urgency | None = None
    training: Training | None = None
    movable: bool = False


def aim_of(
    asked: SubmitJob,
    request: Request,
    walltime_s: float | None,
    *,
    state: State,
    settings: Settings,
    now_s: float,
) -> Aim:
    """Return what a submission says of its training.

    Raises:
        InvalidRequestError: it is contradictory, or cannot be met even by an idle cluster.
    """
    if asked.places_max:
        request = with_range(request, asked.places_max)
    aim = Aim(
        request=request,
        training=_checked(asked.training) if asked.training is not None else None,
        movable=asked.movable,
    )
    size = known_size(aim.training, walltime_s, request)
    urgency = _urgency(asked.urgency)
    if urgency is not None:
        aim = structs.replace(
            aim, urgency=urgency, deadline_s=_from_urgency(asked, urgency, size, now_s)
        )
    elif asked.deadline_s or asked.deadline_after_s:
        aim = structs.replace(aim, deadline_s=_stated(asked, now_s))
    if aim.deadline_s and settings.refuse_impossible:
        _check_possible(aim, size, state=state, settings=settings, now_s=now_s)
    return aim


def with_range(request: Request, most: int) -> Request:
    """Return a request that may get up to ``most`` places.

    Raises:
        InvalidRequestError: the range is none, or the places are not alike.
    """
    if len(request.chunks) != 1:
        raise InvalidRequestError(
            "a range of GPUs is for a training whose places are all alike",
            hint="ask for one kind of place, as with --gpus 1..8",
        )
    if not request.places <= most <= MAX_GPUS:
        raise InvalidRequestError(
            f"{request.places} to {most} GPUs is no range",
            hint=f"write --gpus LEAST..MOST, with 1 <= LEAST <= MOST <= {MAX_GPUS}",
        )
    return structs.replace(request, places_max=most) if most > request.places else request


def known_size(
    training: Training | None, walltime_s: float | None, request: Request
) -> Size | None:
    """Return how much work a training is; None where nothing is known of it."""
    size = size_of_training(training) if training is not None else None
    if size is None and walltime_s is not None:
        return size_of_run(walltime_s, request.gpus)
    return size


def _checked(training: Training) -> Training:
    """Return what was said of a training.

    Raises:
        InvalidRequestError: a number that cannot be, or half of what is needed.
    """
    for name in ("parameters", "samples", "batch", "epochs", "step_time_s", "iterations"):
        value = getattr(training, name)
        if not 0 <= value < math.inf:
            raise InvalidRequestError(
                f"training: {name} is {value:g}", hint="give a number above 0, or leave it out"
            )
    try:
        size = size_of_training(training)
    except ValueError as error:
        raise InvalidRequestError(f"training: {error}") from None
    if size is None:
        needed = ("parameters", "samples", "batch", "epochs", "step_time_s")
        missing = [name for name in needed if not getattr(training, name)]
        raise InvalidRequestError(
            f"training: {', '.join(missing) or 'rates and iterations'} not said: "
            "its run time cannot be told from the rest",
            hint="give parameters, samples, batch, epochs and step time, or just a walltime",
        )
    return training


def _urgency(text: str) -> Urgency | None:
    if not text:
        return None
    try:
        return Urgency(text)
    except ValueError:
        raise InvalidRequestError(
            f"urgency {text!r} is not known", hint=f"say {', '.join(Urgency)}"
        ) from None


def _from_urgency(asked: SubmitJob, urgency: Urgency, size: Size | None, now_s: float) -> float:
    if asked.deadline_s or asked.deadline_after_s:
        raise InvalidRequestError(
            "a deadline and an urgency contradict each other", hint="give one of them"
        )
    allowed_s = allowed_time_s(size, urgency) if size is not None else math.inf
    if not math.isfinite(allowed_s):
        raise InvalidRequestError(
            "an urgency counts from the run time on one GPU, and that is not known",
            hint="say the training's size or a walltime, or give a --deadline",
        )
    return now_s + allowed_s


def _stated(asked: SubmitJob, now_s: float) -> float:
    deadline_s = asked.deadline_s or now_s + asked.deadline_after_s
    if not 0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"a deadline {deadline_s:g} s after 1970 is not possible",
            hint="give a time before the year 2200, or a duration like 8h",
        )
    if deadline_s <= now_s:
        raise InvalidRequestError(
            f"the deadline {_time(deadline_s)} has passed: it is {_time(now_s)} here",
            hint="give a time to come, or a duration like 8h",
        )
    return deadline_s


def _check_possible(
    aim: Aim, size: Size | None, *, state: State, settings: Settings, now_s: float
) -> None:
    """Refuse a deadline that an idle cluster could not meet; say by when it could be done."""
    if size is None or not state.nodes:
        return
    best_s = shortest_run_s(aim.request, size, state=state, settings=settings)
    if now_s + best_s > aim.deadline_s and math.isfinite(best_s):
        raise InvalidRequestError(
            f"the deadline {_time(aim.deadline_s)} cannot be met even if all nodes were idle: "
            f"it runs for {format_duration(best_s)} at least, until {_time(now_s + best_s)}",
            hint="give a later deadline, or allow more GPUs with --gpus LEAST..MOST",
        )


def shortest_run_s(request: Request, size: Size, *, state: State, settings: Settings) -> float:
    """Return how long a training runs on the best that an idle cluster could give it, seconds.

    Infinite where nothing here could hold it. What is looked at are best fits of each number of
    places, and each number on as few nodes as can be.
    """
    idle = Spaces({name: emptied(space) for name, space in state.spaces.items()})
    types = gpu_types(state)
    best_s = math.inf
    for places in range(request.places, max(request.places, request.places_max) + 1):
        found = place(at_count(request, places), idle)
        if isinstance(found, NoFit):
            break
        counts = gpus_by_node(found) or {share.node: share.cpus for share in found}
        rate = size.speed.rate(settings.fabric.layout(counts, types))
        if rate > 0:
            best_s = min(best_s, size.work / rate)
    return best_s


def gpu_types(state: State) -> Mapping[str, str]:
    """Return the type of each node's GPUs, by node."""
    return {
        name: node.inventory.gpus[0].type
        for name, node in state.nodes.items()
        if node.inventory.gpus
    }


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
