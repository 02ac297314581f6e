"""The table ``[tasks]`` of the configuration file: when the head does what it does periodically."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gsched.errors import BadResourceError
from gsched.model.units import parse_interval_s

NEVER: Final = "never"
LEAST_S: Final = 1.0
MOST_S: Final = 366 * 86400.0
HINT: Final = (
    'write a period such as "10m" or "1d", a cron expression such as "30 3 * * *", or "never"'
)
_FIELDS: Final = ("minute", "hour", "day", "month", "day_of_week")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class TasksConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[tasks]``: a period, a cron expression in the head's time zone, or ``never``.

    Attributes:
        purge: old jobs, runs and events of nodes are removed, as ``[history]`` says.
        purge_users: finished jobs of users beyond ``keep_jobs_per_user`` are removed.
        check_rows: all rows of the database are compared with their checksums; also at each start.
    """

    purge: str = "1d"
    purge_users: str = "10m"
    check_rows: str = "1d"


def period_s(schedule: str) -> float | None:
    """Return the period of a schedule, seconds; None: it is ``never`` or a cron expression.

    Raises:
        BadResourceError: it is no time, or too short or too long.
    """
    if schedule == NEVER or " " in schedule.strip():
        return None
    seconds = parse_interval_s(schedule)
    if not LEAST_S <= seconds <= MOST_S:
        raise BadResourceError(f"period {schedule!r} is not from 1 s to 366 days", hint=HINT)
    return seconds


def cron_fields(schedule: str) -> dict[str, str]:
    """Return the fields of a cron expression, for APScheduler.

    There 0 is Monday; in a crontab 0 and 7 are Sunday. So days of the week become names.

    Raises:
        BadResourceError: there are not five fields.
    """
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise BadResourceError(
            f"cron expression {schedule!r} has {len(fields)} fields, not five", hint=HINT
        )
    return dict(zip(_FIELDS, [*fields[:-1], ",".join(_days(fields[-1]))], strict=True))


def _days(field: str) -> Iterator[str]:
    """Yield the terms of the last field; ranges and steps of numbers become single days."""
    for term in field.lower().split(","):
        span, _, step = term.partition("/")
        first, _, last = ("0-6" if span == "*" and step else span).partition("-")
        if not first.isdigit():
            yield term
            continue
        numbers = range(int(first), int(last or first) + 1, int(step or 1))
        yield from (_DAYS[number % 7] for number in numbers)
