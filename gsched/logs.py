"""Logs that outsiders can neither fill nor forge.

Whoever can open a connection can make a daemon complain: a user, a job, any program that finds the
node port. Such lines go through `Complaints`, which bounds how many there are for each source and
in all, and counts the rest. `LineFormatter` keeps every record on one line, whatever is in it.
"""

import logging
from collections import Counter
from typing import Final

from gsched.clock import Clock
from gsched.model.limits import MAX_LINES, MAX_SOURCE_LINES

PERIOD_S: Final = 60.0
LONGEST: Final = 400  # characters of a complaint
SOURCES_NAMED: Final = 3  # in the line that says how many lines were left out
SOURCES_COUNTED: Final = 1000  # in a period; all others are counted together
OTHERS: Final = "others"


def one_line(text: str) -> str:
    """Return a text without control characters: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class LineFormatter(logging.Formatter):
    """Formats records; control characters in a message are escaped, a traceback is kept."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Return the line of a record."""
        record.message = one_line(record.message)
        return super().formatMessage(record)


class Complaints:
    """Warnings about outsiders: so many lines for each source and in all, the rest is counted.

    Args:
        log: where they go.
        clock: tells when a period is over.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._begun_s = clock.monotonic_s()
        self._lines_of: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lines = 0

    def say(self, source: str, text: str, *, level: int = logging.WARNING) -> None:
        """Log a line about a source (``uid 1001``, ``10.0.0.7``), or count it.

        A complaint is about what a source did; it never comes with a traceback.
        """
        if self._has_room(source):
            self._log.log(level, "%s: %s", source, one_line(text[:LONGEST]))

    def fault(self, source: str, text: str) -> None:
        """Log the exception that is handled now with its traceback, or count it: a fault of ours.

        Args:
            source: what has met it, such as a route: somebody may be able to repeat it.
            text: about it.
        """
        if self._has_room(source):
            self._log.exception("%s: %s", source, one_line(text[:LONGEST]))

    def _has_room(self, source: str) -> bool:
        """Count a line about a source; return whether it is to be logged."""
        self._begin_anew()
        if source not in self._lines_of and len(self._lines_of) >= SOURCES_COUNTED:
            source = OTHERS
        self._lines_of[source] += 1
        if self._lines >= MAX_LINES or self._lines_of[source] > MAX_SOURCE_LINES:
            self._left_out[source] += 1
            return False
        self._lines += 1
        return True

    def _begin_anew(self) -> None:
        """Begin a period if the last one is over, and say how many lines it left out."""
        now_s = self._clock.monotonic_s()
        if now_s - self._begun_s < PERIOD_S:
            return
        if self._left_out:
            most = ", ".join(
                f"{count} of {source}"
                for source, count in self._left_out.most_common(SOURCES_NAMED)
            )
            self._log.warning(
                "%d more lines like these in %.0f s were left out: %s",
                self._left_out.total(),
                now_s - self._begun_s,
                most,
            )
        self._begun_s, self._lines = now_s, 0
        self._lines_of.clear()
        self._left_out.clear()
