"""Options about training jobs and deadlines; imported only where one of them is given."""

import calendar
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gsched.cli.submit.stated import StatedOptions
from gsched.cli.times import format_clock, local_times, read_duration_s
from gsched.errors import BadResourceError, BadScriptError, UnreadableScriptError, UsageError
from gsched.model.training import Training
from gsched.model.units import format_duration, format_gpus, parse_count, parse_interval_s
from gsched.protocol.submissions import SubmitResult

_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d)(?::(\d\d))?(?: ?(?P<zone>[A-Za-z+-].*))?"
)
_OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):?([0-5]\d)")
_HOW = "write a duration such as 8h, or a date and time such as 'tomorrow 08:00'"
NONE = "none"  # of galter --deadline

#: Keys of the table [training], and of the options of the same names: the field, and what reads it.
_NUMBERS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "params": ("parameters", parse_count),
    "samples": ("samples", parse_count),
    "batch": ("batch", parse_count),
    "epochs": ("epochs", parse_count),
    "step_time": ("step_time_s", parse_interval_s),
    "iterations": ("iterations", parse_count),
}
_KEYS = (*_NUMBERS, "rates")


class Deadline(NamedTuple):
    """What ``--deadline`` states: one of the two is 0.

    Attributes:
        at_s: seconds since the epoch.
        after_s: seconds from now.
    """

    at_s: float = 0.0
    after_s: float = 0.0


def parse_deadline(text: str, *, now_s: float) -> Deadline:
    """Return the deadline of ``8h``, ``2027-03-01 08:00``, ``tomorrow 08:00`` or ``@`` and seconds.

    A moment is in local time, unless an offset, Z or UTC follows it. What could be a time of day as
    well as a duration (``08:00``) is refused, as is a day without a time.

    Raises:
        UsageError: it is neither, or has passed.
    """
    word = text.strip()
    if re.fullmatch(r"@[0-9]{1,11}", word):
        return _coming(text, float(word[1:]), now_s)
    match = _MOMENT.fullmatch(word)
    if match is not None:
        return _coming(text, _epoch_s(text, match), now_s)
    if re.fullmatch(r"\d{4}-\d\d(-\d\d)?", word):
        raise UsageError(f"--deadline: {text!r} has no time of day", hint=_HOW)
    if re.match(r"\+|[A-Za-z]+(?: +|T)\d", word):
        from gsched.cli.moments import parse_coming  # late: few deadlines name a day

        return _coming(text, parse_coming(word, now_s=now_s, option="--deadline"), now_s)
    if re.fullmatch(r"[\d:]*:[\d:]*", word):
        raise UsageError(f"--deadline: {text!r} is a time of day or a duration", hint=_HOW)
    try:
        return Deadline(after_s=read_duration_s("--deadline", word))
    except BadResourceError as error:
        raise UsageError(error.message, hint=_HOW) from None


def _coming(text: str, at_s: float, now_s: float) -> Deadline:
    if at_s <= now_s:
        raise UsageError(
            f"--deadline: {text!r} is in the past",
            hint="use a future time, or a duration such as 8h",
        )
    return Deadline(at_s=at_s)


def _epoch_s(text: str, match: re.Match[str]) -> float:
    year, month, day, hour, minute = (int(match[at]) for at in range(1, 6))
    second = int(match[6] or 0)
    possible = 1 <= month <= 12 and 1 <= day <= calendar.monthrange(max(year, 1), month)[1]
    if not possible or hour > 23 or minute > 59 or second > 59 or not 1970 <= year < 2200:
        raise UsageError(f"--deadline: invalid date {text!r}", hint=_HOW)
    parts = (year, month, day, hour, minute, second)
    zone = match["zone"]
    if zone is None:
        return time.mktime((*parts, 0, 0, -1))
    at_s = calendar.timegm((*parts, 0, 0, 0))
    if zone in {"Z", "UTC", "GMT"}:
        return float(at_s)
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        raise UsageError(
            f"--deadline: unknown time zone {zone!r} in {text!r}",
            hint="append nothing for local time, UTC, or an offset such as +01:00",
        )
    offset_s = int(offset[2]) * 3600 + int(offset[3]) * 60
    return float(at_s - offset_s if offset[1] == "+" else at_s + offset_s)


def training_of(stated: StatedOptions) -> Training | None:
    """Return the workload that the options and the file of ``--training`` state; None: none.

    An option beats the file, key by key.
    """
    fields: dict[str, Any] = dict(stated["training"] or {})
    for key, (field, _) in _NUMBERS.items():
        if key in stated and not (key == "batch" and stated["adaptive"]):
            fields[field] = stated[key]
    return Training(**fields) if fields else None


def from_file(name: str, cwd: str) -> dict[str, object]:
    """Return the fields that the table [training] of a file states.

    Raises:
        GschedError: the file cannot be read, has an unknown key, or a value that is none.
    """
    import tomllib

    path = os.path.join(cwd, os.path.expanduser(name))
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadScriptError(
            f"--training: {name}: {error}", hint="write a TOML file with a [training] table"
        ) from None
    except OSError as error:
        raise UnreadableScriptError(
            f"--training: {name}: {error.strerror}", hint="give a TOML file that you can read"
        ) from None
    table = document.get("training")
    if not isinstance(table, dict):
        raise BadScriptError(
            f"--training: {name} has no [training] table",
            hint=f"write [training], and below it any of {', '.join(_KEYS)}",
        )
    return _from_table(table, f"--training: {name}")


def _from_table(table: Mapping[str, object], where: str) -> dict[str, object]:
    stated: dict[str, object] = {}
    for name, value in table.items():
        key = {"parameters": "params"}.get(name, name.replace("-", "_"))
        if key not in _KEYS:
            raise BadScriptError(f"{where}: unknown key {name!r} in [training]", hint=_like(name))
        field, read = _NUMBERS.get(key, (key, parse_count))
        if field in stated:
            raise BadScriptError(
                f"{where}: {name} is given twice, in two spellings", hint="remove one of them"
            )
        try:
            stated[field] = _rates(value) if key == "rates" else read(_number_text(value))
        except BadResourceError as error:
            raise BadScriptError(f"{where}: {name}: {error.message}", hint=error.hint) from None
    if not stated:
        raise BadScriptError(
            f"{where}: [training] is empty", hint=f"valid keys: {', '.join(_KEYS)}"
        )
    return stated


def _number_text(value: object) -> str:
    """Return a number of a TOML file as a user would write it on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadResourceError(f"invalid number {value!r}", hint="write 50000 or '138M'")
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _rates(value: object) -> tuple[tuple[int, float], ...]:
    """Return the pairs of a table from GPUs to iterations a second."""
    how = "write rates = { 1 = 12.5, 2 = 23.0 } (GPUs = iterations per second)"
    if not isinstance(value, dict) or not value:
        raise BadResourceError("must be a table of rates", hint=how)
    pairs: list[tuple[int, float]] = []
    for gpus, rate in value.items():
        if not re.fullmatch(r"[1-9][0-9]{0,5}", gpus):
            raise BadResourceError(f"invalid number of GPUs {gpus!r}", hint=how)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1e18:
            raise BadResourceError(f"invalid rate {rate!r}", hint=how)
        pairs.append((int(gpus), float(rate)))
    return tuple(sorted(pairs))


def _like(word: str) -> str:
    import difflib  # late: most files are right

    close = difflib.get_close_matches(word.replace("-", "_"), [*_KEYS, "parameters"], n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid keys: {', '.join(_KEYS)}"


def planned_words(result: SubmitResult, *, now_s: float) -> str:
    """Return what the head expects of a training, in a line; empty if it can say nothing."""
    words: list[str] = []
    if result.planned_gpus:
        words.append(f"planned on {format_gpus(result.planned_gpus)}")
    if result.predicted_end_s is not None:
        words.append(f"expected to finish at {format_clock(result.predicted_end_s, now_s=now_s)}")
    plan = ", ".join(words)
    if result.deadline_s is None:
        return plan
    late = "LATE: " if result.meets_deadline is False else ""
    return late + "; ".join(filter(None, [plan, _deadline_words(result, now_s)]))


def _deadline_words(result: SubmitResult, now_s: float) -> str:
    deadline = f"the deadline {format_clock(result.deadline_s, now_s=now_s)}"
    because = f": {local_times(result.late_reason)}" if result.late_reason else ""
    if result.meets_deadline is None:
        return f"cannot predict whether {deadline} will be met{because}"
    spare = ""
    if result.predicted_end_s is not None and result.deadline_s is not None:
        spare = format_duration(abs(result.deadline_s - result.predicted_end_s))
    if spare == format_duration(0):
        spare = "less than a second"
    if result.meets_deadline:
        return f"{deadline} is expected to be met" + (f" with {spare} to spare" if spare else "")
    return f"{deadline} will be missed" + (f" by {spare}" if spare else "") + because
