"""Logs that outsiders can neither fill nor forge.

Whoever can open a connection can make a daemon complain: a user, a job, any program that finds the
node port. Such lines go through `Complaints`, which bounds how many there are for each source and
in all, and counts the rest. `LineFormatter` keeps every record on one line, whatever is in it.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from logging.handlers import WatchedFileHandler
from typing import Final

from gsched.clock import Clock
from gsched.model.limits import MAX_LINES, MAX_SOURCE_LINES

PERIOD_S: Final = 60.0
LONGEST: Final = 400  # characters of a complaint
SOURCES_NAMED: Final = 3  # in the line that says how many lines were left out
SOURCES_COUNTED: Final = 1000  # in a period; all others are counted together
OTHERS: Final = "others"
#: A line of the head, and of its worker processes.
HEAD_LINE: Final = "%(asctime)s %(levelname)-8s %(name)s: %(message)s"
FORMATS: Final = ("text", "json")
FORMAT_VARIABLE: Final = "GSCHED_LOG_FORMAT"
FILE_VARIABLE: Final = "GSCHED_LOG_FILE"
_PLACEHOLDER: Final = re.compile(
    r"(?:\b(?P<word>job|node) )?%[-+ #0]*[0-9]*(?:\.[0-9]+)?(?P<kind>[a-zA-Z%])"
)


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


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object in one line, for programs that collect logs.

    Job and node are the values that follow these words in the message, as ``job %s`` has them.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created)
            .astimezone()
            .isoformat("T", "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_subjects(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _subjects(record: logging.LogRecord) -> dict[str, str]:
    """Return which job and node a record is about, by the words before its arguments."""
    found: dict[str, str] = {}
    if not isinstance(record.args, tuple):
        return found
    placeholders = (each for each in _PLACEHOLDER.finditer(str(record.msg)) if each["kind"] != "%")
    for placeholder, value in zip(placeholders, record.args, strict=False):
        if placeholder["word"]:
            found.setdefault(placeholder["word"], str(value))
    return found


def set_up(level: str, *, log_format: str, path: str, line: str) -> None:
    """Send the log of this process to stderr or a file, from now on.

    Args:
        log_format: ``text`` or ``json``.
        path: of the file; empty: stderr. It is opened again once it was renamed or removed.
        line: how a record looks as text.

    Raises:
        OSError: the file cannot be opened.
    """
    handler = log_handler(log_format, path, line)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_handler(log_format: str, path: str, line: str) -> logging.Handler:
    """Return a handler as `set_up` describes it."""
    handler = WatchedFileHandler(path, encoding="utf-8") if path else logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter(line))
    return handler


def log_environment(handlers: Iterable[logging.Handler] | None = None) -> dict[str, str]:
    """Return the variables that let a worker process log where and as this process does."""
    found = {}
    for handler in logging.getLogger().handlers if handlers is None else handlers:
        if isinstance(handler.formatter, JsonFormatter):
            found[FORMAT_VARIABLE] = "json"
        if isinstance(handler, WatchedFileHandler):
            found[FILE_VARIABLE] = handler.baseFilename
    return found


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
