"""Options and settings that the sub-commands of ``gsched`` share."""

from collections.abc import Callable

import click

from gsched.cli.common import (
    Callback,
    json_option,
    option,
    print_note,
    version_option,
)
from gsched.errors import UsageError

SETTINGS = {"help_option_names": ["--help"], "max_content_width": 100}


class HelpfulGroup(click.Group):
    """A group that prints its help when it is called without a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help on stderr, as it is, and exit with 2; otherwise parse as usual."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UsageError.exit_code)
        return super().parse_args(ctx, args)


def subcommand(name: str, *, epilog: str = "") -> Callable[[Callback], click.Command]:
    """Return a decorator that makes a function a sub-command with ``--json`` and ``--version``."""

    def decorate(function: Callback) -> click.Command:
        return click.command(name=name, epilog=epilog, context_settings=SETTINGS)(
            json_option(version_option(function))
        )

    return decorate


def directory_option(function: Callback) -> Callback:
    """Add ``--dir D`` as the parameter ``directory`` (None: the default one)."""
    return option(
        "--dir",
        "directory",
        metavar="D",
        default=None,
        help="Directory of the cluster [default: ~/.local/state/gsched, or in $XDG_STATE_HOME].",
    )(function)


def teller(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that tells people on stderr what is being done, each text once."""
    printed: list[str] = []

    def tell(text: str) -> None:
        if not quiet and printed[-1:] != [text]:
            printed.append(text)
            print_note(text, command="gsched")

    return tell
