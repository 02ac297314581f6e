"""``ghold``: hold jobs: they are not started until they are released."""

import click

from gsched.cli.common import connected, gsched_command
from gsched.cli.holds import change_holds
from gsched.cli.operands import hold_option, jobs_argument, normal_ids, tasks_option, with_tasks
from gsched.cli.running import run
from gsched.client import HeadClient
from gsched.protocol.actions import HoldJob

EPILOG = """\b
Examples:
  ghold 17 18                         not started until grls 17 18
  ghold -h o 17                       an operator's hold: only operators release it
"""


@gsched_command("ghold", epilog=EPILOG)
@jobs_argument
@hold_option
@tasks_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def ghold(
    head: HeadClient,
    *,
    jobs: tuple[str, ...],
    hold_list: str,
    tasks: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Hold jobs: they do not start until they are released with grls.

    The owner can set u, only operators can set o and s. A running job keeps running, but is not
    started again.
    """
    jobs = with_tasks(normal_ids(jobs), tasks)
    return change_holds(head, HoldJob, jobs, hold_list=hold_list, dry_run=dry_run, as_json=as_json)


def main() -> None:
    """Run the command."""
    run(ghold)


if __name__ == "__main__":
    main()
