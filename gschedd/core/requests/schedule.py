"""When a job may start and how it ends: priority, start time, holds, grace and joined output."""

from typing import Final

from msgspec import Struct

from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.job import DEFAULT_GRACE_S
from gsched.model.states import STATED_HOLDS, HoldKind, Join
from gsched.model.units import format_duration
from gsched.protocol.submissions import SubmitJob
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.settings import Caller, Settings

PRIORITY_RANGE: Final = (-1024, 1023)
MAX_GRACE_S: Final = 86400.0
MAX_START_S: Final = 7_258_118_400.0  # 2200-01-01: later is a typing error
_JOINS: Final = frozenset(kind.value for kind in Join)


class Schedule(Struct, frozen=True, kw_only=True):
    """The fields of `JobSpec`, and what the user should know of them."""

    priority: int
    start_after_s: float
    grace_s: float
    join: Join
    holds: tuple[HoldKind, ...]
    warnings: tuple[str, ...]


def schedule_of(submitted: SubmitJob, caller: Caller, settings: Settings) -> Schedule:
    """Return what a submission says of it, checked.

    Raises:
        GschedError: it cannot be so, or the caller may not say it.
    """
    priority, warnings = capped_priority(checked_priority(submitted.priority), caller, settings)
    return Schedule(
        priority=priority,
        start_after_s=checked_start(submitted.start_after_s),
        grace_s=checked_grace(submitted.grace_s),
        join=checked_join(submitted.join),
        holds=checked_holds(submitted.holds, caller),
        warnings=warnings,
    )


def checked_priority(priority: int) -> int:
    """Return a priority in qsub's range.

    Raises:
        InvalidRequestError: it is not in the range.
    """
    low, high = PRIORITY_RANGE
    if not low <= priority <= high:
        raise InvalidRequestError(f"priority {priority} is not between {low} and {high}")
    return priority


def highest_priority(caller: Caller, settings: Settings) -> int:
    """Return the highest priority that the caller can give a job."""
    if may(caller, Verb.RAISE_PRIORITY):
        return PRIORITY_RANGE[1]
    return settings.config.head.max_user_priority


def capped_priority(
    priority: int, caller: Caller, settings: Settings
) -> tuple[int, tuple[str, ...]]:
    """Return the priority that a new job gets, and what its user should know of it."""
    highest = highest_priority(caller, settings)
    if priority <= highest:
        return priority, ()
    words = (
        f"priority {priority} is above the limit for users, {highest}: the job has priority "
        f"{highest}"
    )
    return highest, (words,)


def checked_start(start_after_s: float) -> float:
    """Return the time before which a job does not start, seconds since the epoch.

    Raises:
        InvalidRequestError: it is no time, or beyond the year 2200.
    """
    if not 0 <= start_after_s <= MAX_START_S:
        raise InvalidRequestError(
            f"a start after {start_after_s:g} s since 1970 is not possible",
            hint="give a time before the year 2200",
        )
    return start_after_s


def checked_grace(grace_s: float | None) -> float:
    """Return the time between TERM and KILL, seconds.

    Raises:
        InvalidRequestError: it is negative or longer than a day.
    """
    if grace_s is None:
        return DEFAULT_GRACE_S
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise InvalidRequestError(
            f"a grace of {grace_s:.15g} s is not between 0 s and {format_duration(MAX_GRACE_S)}",
            hint="specify a grace within these limits",
        )
    return grace_s


def checked_join(join: str) -> Join:
    """Return how stdout and stderr are joined.

    Raises:
        InvalidRequestError: not one of oe, eo, n.
    """
    if join not in _JOINS:
        raise InvalidRequestError(f"-j {join} is not known", hint="say oe, eo or n")
    return Join(join)


def checked_holds(holds: tuple[str, ...], caller: Caller) -> tuple[HoldKind, ...]:
    """Return hold kinds that this caller may put on or take off.

    Raises:
        InvalidRequestError: an unknown kind.
        NotPermittedError: an operator's or a system hold, asked for by a user.
    """
    if not holds:
        return ()
    known = {kind.value for kind in STATED_HOLDS}
    for hold in holds:
        if hold not in known:
            raise InvalidRequestError(f"hold {hold!r} is not known: say user, operator or system")
        if hold != HoldKind.USER and not may(caller, Verb.HOLD_FOR_SITE):
            raise NotPermittedError(
                f"{hold} holds are for operators",
                hint="use -h u, or ask an operator",
            )
    return tuple(sorted({HoldKind(hold) for hold in holds}))
