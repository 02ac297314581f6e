"""``gsched``: the umbrella over what looks after an installation."""

import difflib
import importlib
from typing import TYPE_CHECKING

import click

from gsched.cli.common import version_option
from gsched.cli.local.options import HelpfulGroup
from gsched.cli.running import runner
from gsched.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: In the order in which a newcomer needs them; each with its line of the help.
COMMANDS = {
    "up": "Start or restore a cluster on this machine.",
    "down": "Stop a cluster that gsched up started.",
    "web": "Show the page of the cluster in a browser.",
    "doctor": "Check this installation for problems.",
    "init": "Create configuration and authority of a new site.",
    "token": "Let hosts join the cluster: create, list and delete tokens.",
    "join": "Make this host a member of a cluster.",
    "authority": "Show or replace the authority that issues certificates.",
    "config": "Show or check the configuration.",
    "reload": "Let the running head read its configuration again.",
    "tasks": "List the periodic tasks of the head, or run one.",
    "recover": "Show why the head is in safe mode, and end it.",
    "backup": "Save the head's database and what belongs to it.",
    "restore": "Put a backup in place of the head's database.",
    "upgrade": "Bring the head's database to the schema of this version.",
    "store": "Show or fill the database that two heads share.",
    "relay": "Connect a command on another host with the head; ssh runs it.",
    "install-shims": "Install qsub, qstat and others of PBS, or sbatch and others of Slurm.",
    "completion": "Print the completion of all commands for a shell.",
    "version": "Show component versions.",
}
#: Those that work on the head's own files, by the module that has them.
OF_THE_HEAD = {
    **dict.fromkeys(("backup", "restore", "upgrade"), "gschedd.upkeep.commands"),
    "store": "gschedd.upkeep.store_commands",
}

EPILOG = """\b
Examples:
  gsched up --nodes 2 --gpus 4        start a test cluster; prints the environment to set
  gsched doctor                       find out what is wrong
  gsched down --kill-jobs
"""


class LazyGroup(HelpfulGroup):
    """A group that imports a sub-command's module when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the sub-command of that name, None if there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module_name = cmd_name.replace("-", "_")
        path = OF_THE_HEAD.get(cmd_name, f"gsched.cli.local.{module_name}")
        command = getattr(importlib.import_module(path), module_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Return the commands, without importing them, or the options."""
        if incomplete.startswith("-"):
            return super(click.Group, self).shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of one that is none, say which one it may be."""
        if ctx.resilient_parsing and args and args[0] not in COMMANDS:
            return None, None, args  # a shell asks for completions
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            raise UsageError(
                f"unknown subcommand {args[0]!r}",
                hint=f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(COMMANDS)}",
            )
        return super().resolve_command(ctx, args)


@click.group(
    name="gsched",
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
)
@version_option
def gsched() -> None:
    """Set up, check and recover gsched, a batch scheduler for GPU clusters."""


main = runner(gsched)

if __name__ == "__main__":
    main()
