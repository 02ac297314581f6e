"""The options ``--json FIELDS``, ``--jq`` and ``--template`` of commands that print lists."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import click
import msgspec

from gsched.cli.common import MOMENTS, SHAPE, QuickCommand
from gsched.cli.show.shape import Shape, write_shaped
from gsched.errors import UsageError

_FIELDS: Final = re.compile(r"[a-z][a-z0-9_.]*(?:,[a-z][a-z0-9_.]*)*")


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
        (
            "--jq",
            "EXPR",
            "Filter the JSON document with jq; texts are printed raw.",
        ),
    ):
        function = click.option(name, expose_value=False, metavar=metavar, help=text)(function)
    return function
