"""``gsched down``: stop what ``gsched up`` started."""

import sys

import click
import msgspec

from gsched.cli.common import is_terminal, print_json
from gsched.cli.local.layout import layout_of
from gsched.cli.local.options import directory_option, subcommand, teller
from gsched.cli.local.takedown import DownReport, take_down


@subcommand("down")
@directory_option
@click.option(
    "--kill-jobs",
    is_flag=True,
    help="First cancel all jobs, waiting ones included (TERM, 5 s, KILL).",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for --kill-jobs to end all jobs.",
)
def down(*, directory: str | None, kill_jobs: bool, timeout_s: float, as_json: bool) -> int:
    """Stop the nodes and the head of a cluster that ``gsched up`` started.

    Running jobs continue under their supervisors; the next `gsched up` finds them, or their
    outcomes.
    """
    tell = teller(quiet=as_json or not is_terminal(sys.stderr))
    report = take_down(layout_of(directory), kill_jobs=kill_jobs, timeout_s=timeout_s, tell=tell)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print(report)
    return 0


def _print(report: DownReport) -> None:
    if report.jobs_ended:
        print(f"jobs ended: {report.jobs_ended}")
    if report.stopped:
        print(f"stopped {', '.join(report.stopped)}")
    else:
        print(f"nothing was running in {report.directory}")
    if report.jobs_left:
        print(
            f"jobs that keep running under their supervisors: {report.jobs_left}; "
            f"`gsched up --dir {report.directory}` finds them"
        )
