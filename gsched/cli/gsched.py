"""``gsched``: the umbrella over what looks after an installation."""

import importlib

import click

from gsched.cli.common import run, version_option

COMMANDS = ("up", "down", "doctor", "init", "config", "recover", "completion", "version")


class LazyGroup(click.Group):
    """A group that imports a sub-command's module when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the sub-command of that name, None if there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gsched.cli.umbrella.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    name="gsched",
    cls=LazyGroup,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
)
@version_option
def gsched() -> None:
    """Bring up, take down and look after gsched, a batch scheduler for GPU clusters."""


def main() -> None:
    """Run the command."""
    run(gsched)


if __name__ == "__main__":
    main()
