"""What ``--json FIELDS``, ``--jq`` and ``--template`` make of a JSON document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final

import msgspec

from gsched.cli.common import check_width, printable
from gsched.cli.terminal_text import escaped
from gsched.errors import UsageError
from gsched.model.wording import counted

#: Where a document has its rows.
_ROWS: Final = ("jobs", "nodes", "queues", "rows")
_HOLE: Final = re.compile(r"\{\{|\}\}|\{(?P<path>[a-z][a-z0-9_.]*)(?::(?P<spec>[^{}]*))?\}")
JQ_S: Final = 60.0


class Shape(msgspec.Struct, kw_only=True):
    """What is asked for: fields of each row, an expression of jq, a template of a line."""

    fields: tuple[str, ...] = ()
    jq: str = ""
    template: str = ""


def write_shaped(shape: Shape, document: Mapping[str, object], out: IO[str]) -> None:
    """Print what is asked for.

    Raises:
        UsageError: a template or an expression cannot be read, or there is no jq.
    """
    chosen = _with_fields(document, shape.fields) if shape.fields else document
    if shape.template:
        out.write("".join(_lines(chosen, shape.template)))
        return
    body = msgspec.json.encode(chosen)
    if shape.jq:
        _through_jq(body, shape.jq, out)
        return
    if out.isatty():
        body = msgspec.json.format(body, indent=2)
    out.write(body.decode() + "\n")


def _rows(document: Mapping[str, object]) -> tuple[str, list[Mapping[str, object]]]:
    for name in _ROWS:
        rows = document.get(name)
        if isinstance(rows, list):
            return name, rows
    return "", []


def _with_fields(document: Mapping[str, object], fields: Sequence[str]) -> dict[str, object]:
    name, rows = _rows(document)
    found = [{field: _value(row, field) for field in fields} for row in rows]
    return {**document, name: found} if name else dict(document)


def _value(row: Mapping[str, object], path: str) -> object:
    """Return a field, by a path with points; of a job with all details also of its row."""
    value: object = row
    parts = path.split(".")
    inner = row.get("row")
    if parts[0] not in row and isinstance(inner, dict):
        value = inner
    for part in parts:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _lines(document: Mapping[str, object], template: str) -> Iterator[str]:
    """Yield a line for each row."""
    text = template.replace("\\t", "\t").replace("\\n", "\n")
    rest = _HOLE.sub("", text)
    if "{" in rest or "}" in rest:
        raise UsageError(
            f"--template: {template!r} cannot be read",
            hint="write '{id} {name:<20} {state}'",
        )
    for hole in _HOLE.finditer(text):
        check_width(hole["spec"] or "", "--template")
    for row in _rows(document)[1]:

        def filled(match: re.Match[str], row: Mapping[str, object] = row) -> str:
            if match["path"] is None:
                return match[0][0]
            return _formatted(_value(row, match["path"]), match["spec"] or "")

        yield _HOLE.sub(filled, text).rstrip(" ") + "\n"


def _formatted(value: object, spec: str) -> str:
    if value is None:
        shown: object = ""
    elif isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, dict | list):
        shown = msgspec.json.encode(value).decode()
    else:
        shown = printable(value) if isinstance(value, str) else value
    try:
        return format(shown, spec if shown != "" or not spec else spec.rstrip("dfgex%"))
    except (ValueError, TypeError) as error:
        raise UsageError(f"--template: {error}", hint="write widths as {name:<20}") from None


def _through_jq(body: bytes, expression: str, out: IO[str]) -> None:
    """Print what jq makes of a document: texts raw, as ``jq -r`` does.

    Raises:
        UsageError: there is no jq, or it refuses the expression.
    """
    import shutil  # late: few have an expression
    import subprocess

    program = shutil.which("jq")
    if program is None:
        raise UsageError(
            "--jq needs the program jq, which is not installed",
            hint="install the package jq, or use --json FIELDS or --template",
        )
    words = [program, "-r", *(["-C"] if out.isatty() else []), expression]
    done = subprocess.run(words, input=body, capture_output=True, timeout=JQ_S, check=False)
    shown = escaped(done.stdout) if out.isatty() else done.stdout
    out.write(shown.decode(errors="replace"))
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"--jq: {text or counted(done.returncode, 'error')}", hint="see jq(1)")
