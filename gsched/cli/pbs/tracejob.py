"""``tracejob``: what has happened to a job, as Torque's tracejob prints its log lines."""

import sys
import time
from typing import Final

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
    print_error,
    printable,
)
from gsched.cli.dialect import spoken
from gsched.cli.times import local_times
from gsched.client import HeadClient
from gsched.errors import GschedError

_DAY_S: Final = 86400.0


@gsched_command("tracejob")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@option("-n", "days", type=click.IntRange(min=1), metavar="DAYS", help="Only these days.")
@option("-q", "quiet", is_flag=True, help="No messages on stderr.")
@option("-a", "_accounting", is_flag=True, help="Accepted for compatibility.")
@option("-l", "_scheduler", is_flag=True, help="Accepted for compatibility.")
@option("-m", "_mom", is_flag=True, help="Accepted for compatibility.")
@option("-s", "_server", is_flag=True, help="Accepted for compatibility.")
@option("-v", "_verbose", is_flag=True, help="Accepted for compatibility.")
@option("-z", "_frequent", is_flag=True, help="Accepted for compatibility.")
@option("-w", "_width", default="", metavar="WIDTH", help="Accepted for compatibility.")
@option("-c", "_count", default="", metavar="COUNT", help="Accepted for compatibility.")
@option("-f", "_filter", multiple=True, metavar="FILTER", help="Accepted for compatibility.")
@option("-p", "_path", default="", metavar="PATH", help="Accepted for compatibility.")
@connected
def tracejob(
    head: HeadClient,
    /,
    *,
    jobs: tuple[str, ...],
    days: int | None,
    quiet: bool,
    as_json: bool,
    **_ignored: object,
) -> int:
    """Print what has happened to each JOB, from the head's own records."""
    del as_json
    status = 0
    for job in jobs:
        try:
            story = head.job(job)
        except GschedError as error:
            if not quiet:
                print_error(error, command="tracejob", operand=job)
            status = status or spoken().exit_code(error)
            continue
        lines = [f"\nJob: {story.row.shown_id(story.server)}\n\n"]
        for event in story.events:
            if days is None or event.at_s >= story.now_s - days * _DAY_S:
                moment = time.strftime("%m/%d/%Y %H:%M:%S", time.localtime(event.at_s))
                text = printable(local_times(event.text or event.kind))
                lines.append(f"{moment}  S    {text}\n")
        sys.stdout.write("".join(lines))
    return status
