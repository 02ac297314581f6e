"""The head daemon's program: arguments, logging, and the composition of the parts."""

import asyncio
import logging
import sys

import click

from gsched import watchdog
from gsched.config.load import read_config
from gsched.daemon_files import check_config
from gsched.errors import CannotWriteError, GschedError
from gsched.hangup import survive_hangups
from gsched.logs import LineFormatter
from gsched.version import VERSION
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
    help="least severe messages to log (to stderr)",
)
@click.version_option(VERSION, prog_name="gschedd")
def main(config_path: str | None, log_level: str) -> None:
    """Run the head of a gsched cluster in the foreground, logging to stderr.

    SIGTERM stops it cleanly: running jobs continue under their supervisors, and the next start
    finds them.

    Example: gschedd --config /etc/gsched/gsched.toml
    """
    survive_hangups()
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    sys.exit(run(config_path))


def run(given: str | None) -> int:
    """Run until told to stop; return the exit code."""
    try:
        check_config(given)
        file = read_config(given)
        with watchdog.fed_meanwhile():  # the step of a large database's schema takes minutes
            service = Service(file, chosen=chosen_policy(file.config), given=given)
        return asyncio.run(service.run())
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
