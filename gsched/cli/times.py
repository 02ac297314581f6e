"""Dates as qsub's ``-a`` takes them, and as listings show them."""

import re
import time
from typing import Final

from gsched.errors import BadResourceError, UsageError
from gsched.model.patterns import pattern
from gsched.model.units import parse_duration_s
from gsched.model.wording import counted
from gsched.protocol.job_rows import StartRow

_DATE = pattern(r"(?P<digits>(?:[0-9]{2}){2,6})(?:\.(?P<seconds>[0-9]{2}))?")
_DAY_S = 86400
#: Not what a user wrote, which messages show between quotes.
_UTC_MOMENT = pattern(r"(?<!['\"])(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")

#: How a head begins that has no forecast, and that has none yet.
NOT_KNOWN: Final = "not known"
COMPUTING: Final = "not known yet"
#: The year 9999: a training whose numbers are wrong may be expected to end still later.
LAST_S = 253_402_214_400.0


def parse_start_time(text: str, *, now_s: float) -> float:
    """Return the seconds since the epoch of ``[[[[CC]YY]MM]DD]hhmm[.SS]``, local time.

    Left out are the century (this one), year, month and day, as in Torque: the next moment that
    fits. A full date in the past is returned as it is. All else is read by `parse_coming`, such as
    ``+1h`` or ``tomorrow 08:00``.

    Raises:
        UsageError: not such a text, or no such date.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        from gsched.cli.moments import parse_coming  # late: few jobs have a start time

        try:
            return parse_coming(text, now_s=now_s, option="-a")
        except UsageError:
            raise _no_date(text) from None
    digits = match["digits"]
    pairs = [int(digits[at : at + 2]) for at in range(0, len(digits), 2)]
    hour, minute = pairs[-2:]
    now = time.localtime(now_s)
    day = pairs[-3] if len(pairs) >= 3 else now.tm_mday
    month = pairs[-4] if len(pairs) >= 4 else now.tm_mon
    year = now.tm_year
    if len(pairs) == 5:
        year = now.tm_year // 100 * 100 + pairs[0]
    elif len(pairs) == 6:
        year = pairs[0] * 100 + pairs[1]
    moment = (year, month, day, hour, minute, int(match["seconds"] or 0))
    if len(pairs) == 2:
        at_s = _epoch(text, moment)
        return at_s if at_s >= now_s else _next_day(text, moment, at_s)
    if len(pairs) == 3 and _is_past(text, moment, now_s):
        moment = (year + month // 12, month % 12 + 1, *moment[2:])
    elif len(pairs) == 4 and _is_past(text, moment, now_s):
        moment = (year + 1, *moment[1:])
    return _epoch(text, moment)


def _is_past(text: str, moment: tuple[int, ...], now_s: float) -> bool:
    return _epoch(text, moment) < now_s


def _next_day(text: str, moment: tuple[int, ...], at_s: float) -> float:
    day = time.localtime(
        at_s + _DAY_S
    )  # may be an hour off when clocks change: only the date counts
    return _epoch(text, (day.tm_year, day.tm_mon, day.tm_mday, *moment[3:]))


def _epoch(text: str, moment: tuple[int, ...]) -> float:
    year, month, day, hour, minute, second = moment
    try:
        at_s = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        raise _no_date(text) from None
    # mktime makes 1 March of 30 February, which is not what the user meant.
    if time.localtime(at_s)[1:3] != (month, day) or hour > 23 or minute > 59:
        raise _no_date(text)
    return at_s


def _no_date(text: str) -> UsageError:
    return UsageError(
        f"-a: invalid date {text!r}",
        hint="write [[[[CC]YY]MM]DD]hhmm[.SS], for example 202612312359, or 'tomorrow 08:00'",
    )


def read_duration_s(option: str, text: str) -> float:
    """Return the seconds that an option's value states.

    Raises:
        BadResourceError: it is no time; the message starts with the option.
    """
    try:
        return parse_duration_s(text)
    except BadResourceError as error:
        raise BadResourceError(f"{option}: {error.message}", hint=error.hint) from None


def format_time(at_s: float | None) -> str:
    """Return ``Sat Nov 21 17:02:03 2026`` in local time, as qstat writes it, or ``--``."""
    return "--" if at_s is None else time.strftime("%a %b %d %H:%M:%S %Y", _local(at_s))


def format_moment(at_s: float | None) -> str:
    """Return ``2026-11-21 17:02:03`` in local time, as all that is not qstat's, or ``--``."""
    return "--" if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", _local(at_s))


def local_times(text: str, *, now_s: float | None = None) -> str:
    """Return words of the head with their moments in local time instead of UTC.

    The head does not know where its users are, so it writes ``2026-11-21 23:00:00 UTC``.

    Args:
        text: the words.
        now_s: moments of this day are written without their date; None: all have it.
    """
    if " UTC" not in text:
        return text
    return _UTC_MOMENT.sub(lambda match: _local_moment(match, now_s), text)


def _local_moment(match: re.Match[str], now_s: float | None) -> str:
    import calendar  # late: it costs more than a whole listing, and few have such a moment

    parts = [int(part) for part in re.split(r"\D", match[1])]
    at_s = calendar.timegm((*parts[:6], 0, 0, 0))
    if now_s is not None:
        return format_clock(at_s, now_s=now_s)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def format_expected(at_s: float | None, *, now_s: float) -> str:
    """Return `format_clock` of a moment to come; what should have been by now may be any moment."""
    return "any moment" if at_s is not None and at_s <= now_s else format_clock(at_s, now_s=now_s)


def format_start(start: StartRow | None, predicted_s: float | None, *, now_s: float) -> str:
    """Return when a job starts, with its uncertainty, or why that is unknown.

    ``14:20:00 (between 14:05:00 and 16:00:00)``, ``not before 18:00:00: ...``.

    Args:
        start: what is known; None: only ``predicted_s`` is.
        predicted_s: seconds since the epoch; None: it is unknown.
    """
    if start is None:
        return "" if predicted_s is None else format_expected(predicted_s, now_s=now_s)
    because = f": {start.unknown}" if start.unknown else ""
    if start.expected_s is not None:
        return format_expected(start.expected_s, now_s=now_s) + _between(start, now_s)
    if start.not_before_s is not None:
        early_s = start.not_before_s if start.early_s is None else start.early_s
        return f"not before {format_clock(early_s, now_s=now_s)}{because}"
    if start.planned_s is not None:
        return format_expected(start.planned_s, now_s=now_s)
    if start.unknown.startswith(NOT_KNOWN):
        return start.unknown
    return f"cannot be predicted{because}"


def short_start(start: StartRow | None, predicted_s: float | None, *, now_s: float) -> str:
    """Return the same for a column: ``14:20 (14:05-16:00)``, ``after 18:00``, ``unknown``."""
    if start is None:
        return format_expected(predicted_s, now_s=now_s)
    expected_s = start.planned_s if start.expected_s is None else start.expected_s
    if start.expected_s is None and start.not_before_s is not None:
        early_s = start.not_before_s if start.early_s is None else start.early_s
        return f"after {_minutes(early_s, now_s)}"
    if expected_s is None:
        return "computing" if start.unknown.startswith(COMPUTING) else "unknown"
    if expected_s <= now_s:
        return "any moment"
    if start.early_s is None:
        return _minutes(expected_s, now_s)
    early = _minutes(start.early_s, now_s)
    late = "?" if start.late_s is None else _minutes(start.late_s, now_s)
    between = "" if early == late else f" ({early}-{late})"
    return _minutes(expected_s, now_s) + between


def _between(start: StartRow, now_s: float) -> str:
    if start.early_s is None:
        return ""
    early = "now" if start.early_s <= now_s else format_clock(start.early_s, now_s=now_s)
    if start.late_s is None:
        return f" ({early} or later)"
    late = format_clock(start.late_s, now_s=now_s)
    if start.late_s <= now_s or early == late:
        return ""
    return f" (between {early} and {late})"


def _minutes(at_s: float, now_s: float) -> str:
    """Return ``14:20`` for a moment within a day, ``Nov 28 14:20`` later, with the year if far."""
    days = (at_s - now_s) / _DAY_S
    date = "" if days < 1 else "%b %d " if days < 300 else "%Y-%m-%d "
    return time.strftime(f"{date}%H:%M", _local(max(at_s, now_s)))


def basis_words(start: StartRow) -> str:
    """Return on what a prediction stands: past runs, walltimes, or both.

    ``learned from 12 runs``, ``from 3 runs of other jobs and walltimes``, ``from walltimes``; where
    jobs differ, how many of them each.
    """
    if not start.scenarios or not start.counted:
        return ""
    learned = f"learned from {counted(start.runs, 'run')}"
    blended = f"from {counted(start.other_runs, 'run')} of other jobs and walltimes"
    rest = start.counted - start.learned - start.blended
    parts = [(start.learned, learned), (start.blended, blended), (rest, "from walltimes")]
    named = [(jobs, words) for jobs, words in parts if jobs]
    if len(named) == 1:
        return f"run times {named[0][1]}"
    return "run times of jobs ahead or running: " + ", ".join(
        f"{jobs} {words}" for jobs, words in named
    )


def _local(at_s: float) -> time.struct_time:
    """Return a moment in local time; what is later than any calendar is its last day."""
    return time.localtime(min(at_s, LAST_S))


def format_clock(at_s: float | None, *, now_s: float) -> str:
    """Return ``17:02:03`` for a moment of today, with the date otherwise, or ``--``."""
    if at_s is None:
        return "--"
    there, here = _local(at_s), time.localtime(now_s)
    same_day = there[:3] == here[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", there)
