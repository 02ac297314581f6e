"""The head daemon's program: arguments, logging, and the composition of the parts."""

import gsched.start  # isort: skip - before all that it speeds up

import logging
import sys

import click

from gsched import watchdog
from gsched.config.load import read_config
from gsched.daemon_files import begin_log, check_config
from gsched.errors import CannotWriteError, GschedError
from gsched.hangup import survive_hangups
from gsched.logs import FORMATS, HEAD_LINE, set_up
from gsched.version import VERSION
from gschedd.daemon import garbage
from gschedd.daemon.service import Service
from gschedd.policies.registry import chosen_policy

log = logging.getLogger("gschedd")


@click.command(name="gschedd")
@click.option("--config", "config_path", metavar="FILE", help="configuration file (gsched.toml)")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="least severe messages to log",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    help="text, or json: an object a line; instead of log_format in [head]",
)
@click.version_option(VERSION, prog_name="gschedd")
def main(config_path: str | None, log_level: str, log_format: str | None) -> None:
    """Run the head of a gsched cluster in the foreground, logging to stderr or a file.

    SIGTERM stops it cleanly: running jobs continue under their supervisors, and the next start
    finds them.

    Example: gschedd --config /etc/gsched/gsched.toml
    """
    gsched.start.imported()
    survive_hangups()
    set_up(log_level, log_format=log_format or "text", path="", line=HEAD_LINE)
    sys.exit(run(config_path, log_level=log_level, log_format=log_format))


def run(given: str | None, *, log_level: str, log_format: str | None) -> int:
    """Run until SIGTERM; return the exit code."""
    try:
        check_config(given)
        file = read_config(given)
        begin_log(log_level, file.config.head, log_format, line=HEAD_LINE)
        with watchdog.fed_meanwhile():  # the step of a large database's schema takes minutes
            service = Service(file, chosen=chosen_policy(file.config), given=given)
        return garbage.run(service.run())
    except GschedError as error:
        click.echo(f"gschedd: {error.message}", err=True)
        if error.hint:
            click.echo(f"         hint: {error.hint}", err=True)
        return error.exit_code
    except OSError as error:  # a full or read-only disk under the state directory
        click.echo(f"gschedd: {error.filename or 'state directory'}: {error.strerror}", err=True)
        return CannotWriteError.exit_code


if __name__ == "__main__":
    main()
