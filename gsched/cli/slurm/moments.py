"""Moments as the commands of Slurm take them, read as Slurm's own parser reads them. Pure."""

import time
from typing import Final

from gsched.cli.slurm.errors import SlurmError

_CLOCKS: Final = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
#: The longer ones first: a unit is what its word begins with.
_UNITS_S: Final = (
    *(("seconds", 1), ("second", 1), ("minutes", 60), ("minute", 60), ("hours", 3600)),
    *(("hour", 3600), ("days", 86_400), ("day", 86_400), ("weeks", 604_800), ("week", 604_800)),
)
_DIGITS: Final = "0123456789"
_DELTA_DIGITS_MOST: Final = 11  # 3,000 years
_SKIPPED: Final = " \t-T"


class _UnreadableError(Exception):
    """The text has no meaning from this place on."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def past_moment(text: str, *, now_s: float) -> float:
    """Return the seconds since the epoch of a moment, in local time.

    It is ``HH:MM[:SS] [AM|PM]``, ``MMDD[YY]``, ``MM/DD[/YY]``, ``MM.DD[.YY]`` or ``YYYY-MM-DD``,
    with a time behind ``-``, ``T`` or a blank, also the other way round; ``today``, ``tomorrow``,
    ``midnight``, ``noon``, ``fika``, ``teatime``, or ``now``, with ``+`` or ``-`` a number and
    seconds, minutes, hours, days or weeks. A time alone is of today. A month that is still to come
    is of last year where none is stated; the later days of this month are of this year.

    Raises:
        SlurmError: it is none, in Slurm's words.
    """
    try:
        return _TimeReader(text, now_s).read()
    except (_UnreadableError, OverflowError, ValueError) as error:
        at = error.at if isinstance(error, _UnreadableError) else 0
        raise SlurmError(f"Invalid time specification (pos={at}): {text}", plain=True) from None


class _TimeReader:
    """What a text has said so far."""

    def __init__(self, text: str, now_s: float) -> None:
        self._text = text
        self._now_s = now_s
        self._now = time.localtime(now_s)
        self._date: tuple[int | None, int, int] | None = None  # a year may be left out
        self._clock: tuple[int, int, int] | None = None
        self._at = 0

    def read(self) -> float:
        while self._at < len(self._text):
            if self._text[self._at] in _SKIPPED and not self._begins(
                "today", "tomorrow", "teatime"
            ):
                self._at += 1
            elif not self._word():
                if self._letter() not in _DIGITS:
                    raise _UnreadableError(self._at)
                if ":" in self._text[self._at + 1 : self._at + 3]:
                    self._read_clock()
                else:
                    self._read_date()
        if self._date is None:
            self._date = self._now[:3]
        year, month, day = self._date
        if year is None:
            year = self._now.tm_year - (month > self._now.tm_mon)
        return time.mktime((year, month, day, *(self._clock or (0, 0, 0)), 0, 0, -1))

    def _letter(self, ahead: int = 0) -> str:
        """Return a letter, or a blank behind the end."""
        return self._text[self._at + ahead : self._at + ahead + 1] or " "

    def _begins(self, *words: str) -> str:
        rest = self._text[self._at : self._at + 10].lower()
        return next((word for word in words if rest.startswith(word)), "")

    def _word(self) -> bool:
        """Read a word; return whether there was one."""
        word = self._begins("today", "tomorrow", "now", *_CLOCKS)
        if not word:
            return False
        if word == "now":
            self._read_now()
            return True
        if word in _CLOCKS:
            self._clock = (_CLOCKS[word], 0, 0)
        else:
            later = time.localtime(self._now_s + 86_400 * (word == "tomorrow"))
            self._date = later[:3]
        self._at += len(word)
        return True

    def _read_now(self) -> None:
        self._at += len("now")
        while self._letter() in " \t" and self._at < len(self._text):
            self._at += 1
        delta_s = 0
        if self._at < len(self._text):
            if self._letter() not in "+-":
                raise _UnreadableError(self._at)
            sign = 1 if self._letter() == "+" else -1
            delta_s = sign * self._read_delta()
        moment = time.localtime(int(self._now_s) + delta_s)
        self._date, self._clock = moment[:3], (moment[3], moment[4], moment[5])

    def _read_delta(self) -> int:
        """Read a number and its unit, behind the sign."""
        number = ""
        unit_s = 1
        self._at += 1
        while self._at < len(self._text):
            letter = self._letter()
            unit = next(((word, s) for word, s in _UNITS_S if self._begins(word)), None)
            if unit is not None:
                unit_s = unit[1]
                self._at += len(unit[0])
                break
            if letter in _DIGITS:
                number += letter
            elif not letter.isspace():
                raise _UnreadableError(self._at - 1)
            self._at += 1
        if not number or len(number) > _DELTA_DIGITS_MOST:
            raise _UnreadableError(self._at - 1)
        return int(number) * unit_s

    def _read_clock(self) -> None:
        if self._clock is not None:
            raise _UnreadableError(self._at)
        hour = self._number(23)
        if self._letter() != ":":
            raise _UnreadableError(self._at)
        self._at += 1
        minute, second = self._two(59), 0
        if self._letter() == ":":
            self._at += 1
            second = self._two(59)
        behind = self._text[self._at :]
        blanks = len(behind) - len(behind.lstrip())
        half = behind[blanks : blanks + 2].lower()
        if half in {"am", "pm"}:
            if hour > 12:
                raise _UnreadableError(self._at)
            hour = hour % 12 + 12 * (half == "pm")
            self._at += blanks + 2
        self._clock = (hour, minute, second)

    def _read_date(self) -> None:
        is_second = self._date is not None
        self._date = self._dated()
        if is_second:
            raise _UnreadableError(self._at)

    def _dated(self) -> tuple[int | None, int, int]:
        if self._letter(4) == "-" and self._letter(7) == "-":
            year = 100 * self._two(99) + self._two(99)
            self._at += 1
            month = self._two(12, least=1)
            self._at += 1
            return year, month, self._two(31, least=1)
        month = self._number(12, least=1)
        self._separator()
        day = self._number(31, least=1)
        short: int | None = None
        if self._separator() or self._letter() in _DIGITS:
            short = 2000 + self._two(99)
            if self._letter() in _DIGITS:
                raise _UnreadableError(self._at)
        return short, month, day

    def _separator(self) -> bool:
        found = self._letter() in "./"
        self._at += found
        return found

    def _number(self, most: int, *, least: int = 0) -> int:
        """Read one digit or two."""
        if self._letter() not in _DIGITS:
            raise _UnreadableError(self._at)
        size = 2 if self._letter(1) in _DIGITS else 1
        return self._take(size, least, most)

    def _two(self, most: int, *, least: int = 0) -> int:
        for ahead in (0, 1):
            if self._letter(ahead) not in _DIGITS:
                raise _UnreadableError(self._at + ahead)
        return self._take(2, least, most)

    def _take(self, size: int, least: int, most: int) -> int:
        value = int(self._text[self._at : self._at + size])
        if not least <= value <= most:
            raise _UnreadableError(self._at)
        self._at += size
        return value
