"""``gsched completion``: what makes a shell complete the options of all commands."""

import importlib

import click
from click.shell_completion import get_completion_class

from gsched.cli.umbrella.options import SETTINGS
from gsched.errors import UsageError

COMMANDS = (
    *("gsub", "gstat", "gdel", "ghold", "grls", "gsig", "grerun", "galter"),
    *("gpeek", "gwait", "gnodes", "ghist", "gmigrate", "gsched"),
)


@click.command("completion", context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    r"""Print the completion of all commands for SHELL, to be read by it at its start.

    \b
    bash: source <(gsched completion bash)
    zsh:  source <(gsched completion zsh)
    fish: gsched completion fish | source
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}", hint="bash, zsh or fish")
    for name in COMMANDS:
        command = getattr(importlib.import_module(f"gsched.cli.{name}"), name)
        print(kind(command, {}, name, f"_{name.upper()}_COMPLETE").source())
    return 0
