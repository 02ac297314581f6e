"""Lists in a form that the user chooses: ``--format``, ``--sort`` and ``$GSTAT_FORMAT``. Pure.

A format is Python's: ``{id} {name:<20} {elapsed:>9}``. Only the names in FIELDS may stand in it, so
that it can do nothing but show them.
"""

import difflib
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gsched.cli.common import check_width, printable
from gsched.cli.show.columns import Column
from gsched.cli.show.joblist import (
    USE_COLUMNS,
    cpu_time,
    elapsed,
    reason_words,
    slack,
    use_rows,
)
from gsched.cli.times import format_time
from gsched.errors import UsageError
from gsched.model.units import format_duration, format_size
from gsched.protocol.api import JobList, JobRow

Value = str | int | float
Reader = Callable[[JobRow, JobList], Value]

#: What a format can show, by name. Numbers are numbers, so that ``{gpus:>4}`` and ``--sort`` do.
FIELDS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "id": lambda row, reply: row.shown_id(reply.server),
        "number": lambda row, _: row.id,
        "name": lambda row, _: row.name,
        "user": lambda row, _: row.user,
        "account": lambda row, _: row.account,
        "queue": lambda row, _: row.queue,
        "state": lambda row, _: row.state,
        "letter": lambda row, _: row.letter,
        "priority": lambda row, _: row.priority,
        "cpus": lambda row, _: row.cpus,
        "gpus": lambda row, _: row.gpus,
        "chunks": lambda row, _: row.places,
        "memory": lambda row, _: format_size(row.memory_bytes) if row.memory_bytes else "",
        "nodes": lambda row, _: "+".join(row.nodes),
        "submitted": lambda row, _: format_time(row.submitted_s),
        "started": lambda row, _: _moment(row.started_s),
        "ended": lambda row, _: _moment(row.ended_s),
        "elapsed": lambda row, reply: elapsed(row, reply.now_s),
        "limit": lambda row, _: format_duration(row.walltime_s) if row.walltime_s else "",
        "cputime": lambda row, _: cpu_time(row),
        "cpu_use": lambda row, _: f"{row.live.cpu_cores:.1f}" if row.live else "",
        "memory_use": lambda row, _: format_size(row.live.memory_bytes) if row.live else "",
        "gpu_use": lambda row, _: _gpu_use(row),
        "gpu_memory_use": lambda row, _: (
            format_size(row.live.gpu_memory_bytes) if row.live and row.live.gpus_held else ""
        ),
        "use_age": lambda row, reply: (
            f"{max(0.0, reply.now_s - row.live.at_s):.0f}s" if row.live else ""
        ),
        "attempt": lambda row, _: row.attempt,
        "reason": lambda row, _: reason_words(row),
        "start": lambda row, _: _moment(row.predicted_start_s),
        "deadline": lambda row, _: _moment(row.deadline_s),
        "slack": lambda row, _: slack(row.slack_s),
        "comment": lambda row, _: row.comment,
        "exit": lambda row, _: "" if row.outcome is None else row.outcome.exit_status,
    }
)
#: By what ``--sort`` orders, where that is not what is shown.
_SORTED: Final[Mapping[str, Callable[[JobRow, JobList], float | str]]] = MappingProxyType(
    {
        "id": lambda row, _: row.id,
        "memory": lambda row, _: row.memory_bytes,
        "submitted": lambda row, _: row.submitted_s,
        "started": lambda row, _: row.started_s or 0.0,
        "ended": lambda row, _: row.ended_s or 0.0,
        "elapsed": lambda row, reply: (
            row.wall_s or (0.0 if row.started_s is None else reply.now_s - row.started_s)
        ),
        "limit": lambda row, _: row.walltime_s or 0.0,
        "cputime": lambda row, _: row.cpu_s,
        "cpu_use": lambda row, _: row.live.cpu_cores if row.live else -1.0,
        "memory_use": lambda row, _: row.live.memory_bytes if row.live else -1,
        "gpu_use": lambda row, _: row.live.gpu_percent if row.live else -1.0,
        "gpu_memory_use": lambda row, _: row.live.gpu_memory_bytes if row.live else -1,
        "use_age": lambda row, reply: reply.now_s - row.live.at_s if row.live else -1.0,
        "start": lambda row, _: row.predicted_start_s or 0.0,
        "deadline": lambda row, _: row.deadline_s or 0.0,
        "slack": lambda row, _: row.slack_s or 0.0,
        "exit": lambda row, _: 0 if row.outcome is None else row.outcome.exit_status,
    }
)
#: Formats with a name that are lines, for programs.
LINES: Final[Mapping[str, str]] = MappingProxyType({"ids": "{id}"})
_ID = (Column("Job ID", style="bold"), "id")
_REASON = (Column("Reason", wraps=True, least=32), "reason")
#: Formats with a name that are tables: with titles, and fitted to a terminal. Each column with its
#: field; ``usage`` has rows of its own.
_TABLES: Final[Mapping[str, Sequence[tuple[Column, str]]]] = MappingProxyType(
    {
        "short": (_ID, (Column("S"), "letter"), (Column("Name", least=10), "name")),
        "long": (
            _ID,
            (Column("Name", least=10), "name"),
            (Column("User", least=8, drop=3), "user"),
            (Column("S"), "letter"),
            (Column("Queue", least=8, drop=4), "queue"),
            (Column("CPUs", right=True, drop=2), "cpus"),
            (Column("GPUs", right=True), "gpus"),
            (Column("Elapsed", right=True), "elapsed"),
            (Column("Limit", right=True, drop=1), "limit"),
            (Column("Nodes", least=8), "nodes"),
            (Column("Reason", wraps=True, least=20), "reason"),
        ),
        "start": (
            _ID,
            (Column("Name", least=10), "name"),
            (Column("S"), "letter"),
            (Column("Expected start", right=True), "start"),
            _REASON,
        ),
    }
)
_USAGE: Final = "usage"
_NAMES: Final = (*LINES, *_TABLES, _USAGE)


def table_of(reply: JobList, form: str) -> tuple[Sequence[Column], Iterator[Sequence[str]]] | None:
    """Return columns and rows of a format that is a table; None: it is a format of lines."""
    if form == _USAGE:
        return USE_COLUMNS, use_rows(reply)
    table = _TABLES.get(form)
    if table is None:
        return None
    readers = [FIELDS[field] for _, field in table]
    rows = (tuple(str(read(row, reply)) for read in readers) for row in reply.jobs)
    return [column for column, _ in table], rows


def _gpu_use(row: JobRow) -> str:
    """Return the mean utilisation of a job's GPUs: ``85%``."""
    live = row.live
    return f"{live.gpu_percent:.0f}%" if live is not None and live.gpus_held else ""


def _moment(at_s: float | None) -> str:
    return "" if at_s is None else format_time(at_s)


def checked_format(text: str, option: str) -> str:
    r"""Return a format that can be applied, of a name or as it stands; ``\t`` and ``\n`` are read.

    The name of a table stays as it is: see `table_of`.

    Args:
        option: or the variable that states it, for messages.

    Raises:
        UsageError: it cannot be read, or has a field that there is not.
    """
    if text in _TABLES or text == _USAGE:
        return text
    form = LINES.get(text, text).replace("\\t", "\t").replace("\\n", "\n")
    try:
        parts = list(string.Formatter().parse(form))
    except ValueError as error:
        raise UsageError(f"{option}: {error}: {text!r}", hint="write '{id} {name}'") from None
    if all(name is None for _, name, _, _ in parts):
        close = difflib.get_close_matches(text, _NAMES, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"{option}: unknown format {text!r}",
            hint=f"{meant}valid: {', '.join(_NAMES)}, or fields such as '{{id}} {{name}}'",
        )
    for _, name, spec, _ in parts:
        if name is not None:
            _check_field(name, option)
        if spec and "{" in spec:
            raise UsageError(f"{option}: a width cannot be a field: {spec!r}")
        check_width(spec or "", option)
    return form


def _check_field(name: str, option: str) -> None:
    if name in FIELDS:
        return
    close = difflib.get_close_matches(name, FIELDS, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"{option}: unknown field {name!r}", hint=f"{meant}valid: {', '.join(FIELDS)}")


def formatted(reply: JobList, form: str) -> Iterator[str]:
    """Yield a line for each job.

    Raises:
        UsageError: a width or type in the format does not fit its field.
    """
    for row in reply.jobs:
        values = {name: read(row, reply) for name, read in FIELDS.items()}
        shown = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        try:
            yield form.format_map(shown).rstrip(" ") + "\n"
        except ValueError as error:
            raise UsageError(f"--format: {error}", hint="write widths as {name:<20}") from None


def sorted_rows(reply: JobList, keys: str) -> Sequence[JobRow]:
    """Return the jobs ordered by ``gpus,-elapsed``: a minus reverses a key.

    Raises:
        UsageError: a key that there is not.
    """
    rows = list(reply.jobs)
    for key in reversed([each.strip() for each in keys.split(",") if each.strip()]):
        name = key.lstrip("+-")
        _check_field(name, "--sort")
        of = _SORTED.get(name) or FIELDS[name]
        rows.sort(key=lambda row, of=of: of(row, reply), reverse=key.startswith("-"))  # type: ignore[misc]  # keys of one field are all numbers or all texts
    return rows
