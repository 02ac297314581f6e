"""Moments as people say them: ``2d`` ago, ``yesterday``, ``2026-11-20 08:00``, in ``+4h``."""

import os
import re
import time

from gsched.config.environment import environment
from gsched.errors import BadResourceError, UsageError
from gsched.model.units import parse_duration_s

_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m")
_CLOCKS = ("%H:%M:%S", "%H:%M")
_ZONES = "/zoneinfo/"
_NOON_S = 43_200  # from noon one day back is the day before, also where clocks change


def parse_moment(text: str, *, now_s: float, option: str) -> float:
    """Return seconds since the epoch; days begin at midnight of local time.

    Understood are ``now``, ``today``, ``yesterday``, a time ago (``90m``, ``2d12h``), a date
    (``2026-11-20``, ``today`` or ``yesterday``, with ``08:00`` or ``08:00:30`` behind a blank or a
    T), a month, a time of today, and ``@`` with seconds since the epoch.

    Raises:
        UsageError: it is another word; ``option`` names who said it.
    """
    word = text.strip()
    midnight_s = _midnight_s(now_s)
    named = {"now": now_s, "today": midnight_s, "yesterday": _midnight_s(midnight_s - _NOON_S)}
    if word in named:
        return named[word]
    day, _, clock = word.partition(" ")
    if clock and day in {"today", "yesterday"}:
        word = f"{_date_of(named[day])} {clock.strip()}"
    if re.fullmatch(r"@[0-9]{1,11}", word):
        return float(word[1:])
    moment = _date_s(word.replace("T", " ", 1), now_s)
    if moment is None:
        moment = _ago_s(word, now_s)
    if moment is None:
        raise UsageError(
            f"{option}: invalid time {text!r}",
            hint="write 2026-11-20, '2026-11-20 08:00', 08:00, yesterday, 2d or 12h",
        )
    return moment


def parse_coming(text: str, *, now_s: float, option: str, begin_s: float | None = None) -> float:
    """Return seconds since the epoch; ``+4h`` and a time without a date count from ``begin_s`` on.

    Beside what `parse_moment` understands, ``tomorrow`` is a date.

    Args:
        begin_s: of what ends then; None: ``now_s``, from which days such as ``tomorrow`` count.

    Raises:
        UsageError: it is no time; ``option`` names who said it.
    """
    begin = now_s if begin_s is None else begin_s
    day, blank, clock = text.strip().partition(" ")
    is_clock = ":" in text[:3]
    try:
        if text.startswith("+"):
            return begin + parse_duration_s(text[1:])
        dated = f"{_day_after(now_s)}{blank}{clock}" if day == "tomorrow" else text
        moment_s = parse_moment(dated, now_s=begin if is_clock else now_s, option=option)
    except (BadResourceError, UsageError):
        raise UsageError(
            f"{option}: invalid time {text!r}",
            hint="write '2026-12-01 08:00', 'tomorrow 08:00', 08:00, +2h or now",
        ) from None
    if text[-1:] in set("dhms"):
        raise UsageError(f"{option}: {text!r} is a time ago", hint=f"write +{text}")
    if moment_s > begin or not is_clock:
        return moment_s
    return parse_moment(f"{_day_after(begin)} {text}", now_s=now_s, option=option)


def _day_after(moment_s: float) -> str:
    return _date_of(_midnight_s(moment_s) + 3 * _NOON_S)


def _date_of(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment_s))


def _midnight_s(moment_s: float) -> float:
    there = time.localtime(moment_s)
    return time.mktime((there.tm_year, there.tm_mon, there.tm_mday, 0, 0, 0, 0, 0, -1))


def _date_s(text: str, now_s: float) -> float | None:
    for form in _FORMATS:
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        return time.mktime((*parsed[:6], 0, 0, -1))
    here = time.localtime(now_s)
    for form in _CLOCKS:
        try:
            clock = time.strptime(text, form)
        except ValueError:
            continue
        return time.mktime((*here[:3], *clock[3:6], 0, 0, -1))
    return None


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
