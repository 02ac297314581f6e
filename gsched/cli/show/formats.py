"""Lists in a form that the user chooses: ``--format``, ``--sort`` and ``$GSTAT_FORMAT``. Pure.

A format is Python's: ``{id} {name:<20} {elapsed:>9}``. Only the names of fields may stand in it, so
that it can do nothing but show them.
"""

import difflib
import string
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gsched.cli.common import check_width, printable
from gsched.cli.show.jobfields import NAMED
from gsched.cli.show.joblist import TABLES
from gsched.errors import UsageError
from gsched.protocol.job_rows import JobList, JobRow

#: Formats with a name that are lines, for programs.
LINES: Final[Mapping[str, str]] = MappingProxyType({"ids": "{id}"})
_NAMES: Final = (*LINES, *TABLES)


def checked_format(text: str, option: str) -> str:
    r"""Return a format that can be applied, of a name or as it stands; ``\t`` and ``\n`` are read.

    The name of a table stays as it is: see `table_of`.

    Args:
        option: or the variable that states it, for messages.

    Raises:
        UsageError: it cannot be read, or has a field that there is not.
    """
    if text in TABLES:
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
    if name in NAMED:
        return
    close = difflib.get_close_matches(name, NAMED, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"{option}: unknown field {name!r}", hint=f"{meant}valid: {', '.join(NAMED)}")


def names_start(form: str, keys: str) -> bool:
    """Return whether a checked format or the keys of an order show when jobs start."""
    fields = TABLES.get(form) or [name for _, name, _, _ in string.Formatter().parse(form)]
    return "start" in fields or "start" in [key.strip(" +-") for key in keys.split(",")]


def formatted(reply: JobList, form: str) -> Iterator[str]:
    """Yield a line for each job.

    Raises:
        UsageError: a width or type in the format does not fit its field.
    """
    names = {name for _, name, _, _ in string.Formatter().parse(form) if name}
    for row in reply.jobs:
        values = {name: NAMED[name].shown(row, reply) for name in names}
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

    A job without a value is before the others.

    Raises:
        UsageError: a key that there is not.
    """
    rows = list(reply.jobs)
    for key in reversed([each.strip() for each in keys.split(",") if each.strip()]):
        name = key.lstrip("+-")
        _check_field(name, "--sort")
        values = [(NAMED[name].read(row, reply), row) for row in rows]
        values.sort(key=lambda pair: (pair[0] is not None, pair[0]), reverse=key.startswith("-"))
        rows = [row for _, row in values]
    return rows
