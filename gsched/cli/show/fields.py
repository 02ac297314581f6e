"""The options ``--json FIELDS``, ``--jq`` and ``--template`` of commands that print lists."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Final

import click
import msgspec

from gsched.cli.common import (
    MOMENTS,
    SHAPE,
    QuickCommand,
    check_width,
    option,
    printable,
)
from gsched.cli.terminal_text import escaped
from gsched.errors import UsageError
from gsched.model.patterns import pattern
from gsched.model.wording import counted

_FIELDS: Final = pattern(r"[a-z][a-z0-9_.]*(?:,[a-z][a-z0-9_.]*)*")


class ShapedCommand(QuickCommand):
    """A command whose ``--json`` may name fields: ``--json id,state`` and ``--json=id,state``.

    Attributes:
        known: fields of its rows.
        operands: fields that are not known may be operands (`gnodes`), and no mistake.
    """

    known: Collection[str] = ()
    operands = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the fields away before click sees them; --jq and --template mean --json, too."""
        end = args.index("--") if "--" in args else len(args)
        kept: list[str] = []
        shape = Shape()
        words = list(reversed(args[:end]))
        while words:
            name, equals, value = words.pop().partition("=")
            if name == "--json":
                kept.append("--json")
                if not equals and words and self._is_list(words[-1]):
                    equals, value = "=", words.pop()
                shape.fields = tuple(filter(None, value.split(",")))
                self._check(shape.fields)
            elif name in {"--jq", "--template"}:
                kept.append("--json")
                if not equals and not words:
                    raise UsageError(f"option {name!r} requires an argument")
                setattr(shape, name[2:], value if equals else words.pop())
            else:
                kept.append(f"{name}{equals}{value}")
        if shape.jq and shape.template:
            raise UsageError("--jq and --template are mutually exclusive", hint="give one of them")
        if shape != Shape():
            ctx.meta[SHAPE] = partial(write_shaped, shape)
        return super().parse_args(ctx, kept + args[end:])

    def _is_list(self, word: str) -> bool:
        """Return whether the word behind ``--json`` is a list of fields, and no operand."""
        if not _FIELDS.fullmatch(word):
            return False
        return not self.operands or all(_first(each) in self.known for each in word.split(","))

    def _check(self, fields: Sequence[str]) -> None:
        for each in fields:
            if _first(each) in self.known:
                continue
            import difflib  # late: only a mistake needs it

            close = difflib.get_close_matches(_first(each), self.known, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(
                f"--json: unknown field {each!r}", hint=f"{meant}valid: {', '.join(self.known)}"
            )


def shaped(name: str, known: Collection[str], *, operands: bool = False) -> type[click.Command]:
    """Return the class of a command with these options.

    Args:
        name: of the class.
        known: fields of its rows.
        operands: words behind --json may be operands.
    """
    return type(name, (ShapedCommand,), {"known": tuple(known), "operands": operands})


def _first(path: str) -> str:
    return path.partition(".")[0]


def fields_of(*kinds: type[msgspec.Struct]) -> list[str]:
    """Return the fields of rows of these kinds as --json prints them."""
    names = dict.fromkeys(name for kind in kinds for name in kind.__struct_fields__)
    moments = [f"{name[:-2]}_iso" for name in names if name in MOMENTS]
    return [*names, "job_id", *moments]


def shape_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add ``--jq`` and ``--template`` to the help; `ShapedCommand` reads them."""
    for name, metavar, text in (
        ("--template", "TEXT", "A line for each row, of the fields of --json: '{job_id} {state}'."),
        ("--jq", "EXPR", "Filter the JSON document with jq; texts are printed raw."),
    ):
        function = option(name, expose_value=False, metavar=metavar, help=text)(function)
    return function


#: Where a document has its rows.
_ROWS: Final = ("jobs", "nodes", "queues", "rows")
_HOLE: Final = pattern(r"\{\{|\}\}|\{(?P<path>[a-z][a-z0-9_.]*)(?::(?P<spec>[^{}]*))?\}")
JQ_S: Final = 60.0


class Shape(msgspec.Struct, kw_only=True):
    """What is requested: fields of each row, an expression of jq, a template of a line."""

    fields: tuple[str, ...] = ()
    jq: str = ""
    template: str = ""


def write_shaped(shape: Shape, document: Mapping[str, object], out: IO[str]) -> None:
    """Print what is requested.

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
            f"--template: {template!r} cannot be read", hint="write '{id} {name:<20} {state}'"
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
