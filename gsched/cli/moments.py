"""Moments as people say them: ``2d`` ago, ``yesterday 14:00``, ``2026-11-20``, in ``+4h``."""

import os
import re
import time

from gsched.config.environment import environment
from gsched.errors import BadResourceError, UsageError
from gsched.model.units import parse_duration_s

_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m")
_CLOCKS = ("%H:%M:%S", "%H:%M")
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ZONES = "/zoneinfo/"


def parse_moment(text: str, *, now_s: float, option: str) -> float:
    """Return seconds since the epoch; days begin at midnight of local time.

    Understood are ``now``, a time ago (``90m``, ``2d12h``), a date (``2026-11-20``), ``today``,
    ``yesterday`` or the last ``monday``, each alone or with ``08:00`` or ``08:00:30`` behind a
    blank or a T, a month, a time of today, and ``@`` with seconds since the epoch.

    Raises:
        UsageError: it is another word; ``option`` names who said it.
    """
    word = text.strip()
    moment = _moment_s(word, now_s, is_coming=False)
    if moment is None:
        moment = _ago_s(word, now_s)
    if moment is None:
        raise UsageError(
            f"{option}: invalid time {text!r}",
            hint="write 2026-11-20, '2026-11-20 08:00', 08:00, 'yesterday 08:00', monday or 2d",
        )
    return moment


def parse_coming(text: str, *, now_s: float, option: str, begin_s: float | None = None) -> float:
    """Return seconds since the epoch of a moment to come, as `parse_moment` but for times ago.

    Args:
        text: a weekday is the next one; ``+4h`` and a time without a date count from ``begin_s``.
        now_s: ``tomorrow``, which is a date, too, counts from there.
        option: who said it.
        begin_s: of what ends then, as its user states it; None: it is now.

    Raises:
        UsageError: it is no time, or a time without a date that is not after a stated beginning:
            the next day may be meant, or it is a slip.
    """
    word = text.strip()
    from_s = now_s if begin_s is None else begin_s
    try:
        if word.startswith("+"):
            return from_s + parse_duration_s(word[1:])
        if _clock_of(word) is not None:
            today_s = _at(from_s, 0, word)
            if today_s > from_s:
                return today_s
            next_s = _at(from_s, 1, word)
            if begin_s is not None:
                raise _before_begin(word, option, begin_s, next_s)
            return next_s
        moment_s = _moment_s(word, now_s, is_coming=True)
    except BadResourceError:
        moment_s = None
    if moment_s is not None:
        return moment_s
    if _ago_s(word, now_s) is not None:
        raise UsageError(f"{option}: {text!r} is a time ago", hint=f"write +{word}")
    raise UsageError(
        f"{option}: invalid time {text!r}",
        hint="write '2026-12-01 08:00', 08:00, 'tomorrow 08:00', 'monday 08:00', +2h or now",
    )


def _before_begin(word: str, option: str, begin_s: float, next_s: float) -> UsageError:
    begin, day = (time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (begin_s, next_s))
    return UsageError(
        f"{option}: {word} is not after the beginning, {begin}",
        hint=f"write {option} '{day}' if the next day is meant",
    )


def _moment_s(word: str, now_s: float, *, is_coming: bool) -> float | None:
    """Return what a word means that is no time ago; None: nothing."""
    if word == "now":
        return now_s
    if re.fullmatch(r"@[0-9]{1,11}", word):
        return float(word[1:])
    day, _, clock = re.sub(r"(?<=[0-9a-z])T(?=[0-9])", " ", word).partition(" ")
    clock = clock.strip()
    days = _days_to(day.lower(), now_s)
    if days is None:
        return _date_s(f"{day} {clock}".strip(), now_s)
    if (clock and _clock_of(clock) is None) or (day.lower() == "tomorrow" and not is_coming):
        return None
    moment_s = _at(now_s, days, clock or "00:00")
    if day.lower() in _DAYS or is_coming == (moment_s > now_s):
        return moment_s
    return _at(now_s, days + (7 if is_coming else -7), clock or "00:00")


def _days_to(word: str, now_s: float) -> int | None:
    """Return how many days from today a day is, of a weekday in this week; None: no such word."""
    if word in _DAYS:
        return _DAYS[word]
    named = [at for at, name in enumerate(_WEEKDAYS) if word in {name, name[:3]}]
    return named[0] - time.localtime(now_s).tm_wday if named else None


def _clock_of(text: str) -> tuple[int, int, int] | None:
    for form in _CLOCKS:
        try:
            clock = time.strptime(text, form)
        except ValueError:
            continue
        return clock.tm_hour, clock.tm_min, clock.tm_sec
    return None


def _at(now_s: float, days: int, clock: str) -> float:
    """Return the moment of a time of day, so many days from today: days are not all 24 h."""
    here = time.localtime(now_s)
    return time.mktime((here[0], here[1], here[2] + days, *(_clock_of(clock) or ()), 0, 0, -1))


def _date_s(text: str, now_s: float) -> float | None:
    for form in _FORMATS:
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        return time.mktime((*parsed[:6], 0, 0, -1))
    return None if _clock_of(text) is None else _at(now_s, 0, text)


def _ago_s(text: str, now_s: float) -> float | None:
    if not re.search(r"[dhms]$", text):
        return None
    try:
        return now_s - parse_duration_s(text)
    except BadResourceError:
        return None


def local_zone() -> str:
    """Return the name of the local time zone, as ``Europe/Berlin``; UTC where it has none."""
    name = environment("TZ").removeprefix(":")
    if not name:
        path = os.path.realpath("/etc/localtime")
        name = path.partition(_ZONES)[2] if _ZONES in path else ""
    return name.removeprefix("posix/") if "/" in name else "UTC"
