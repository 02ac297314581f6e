"""``grls``: release held jobs."""

import click

from gsched.cli.common import connected, gsched_command
from gsched.cli.holds import change_holds
from gsched.cli.operands import hold_option, jobs_argument, normal_ids, tasks_option, with_tasks
from gsched.cli.running import run
from gsched.client import HeadClient
from gsched.protocol.actions import ReleaseJob

EPILOG = """\b
Examples:
  grls 17                             release the user hold
  grls -h uo 17                       also an operator's hold
"""


@gsched_command("grls", epilog=EPILOG)
@jobs_argument
@hold_option
@tasks_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def grls(
    head: HeadClient,
    *,
    jobs: tuple[str, ...],
    hold_list: str,
    tasks: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Release jobs that were held with ghold.

    A job can start when it has no hold left. Only operators release o and s.
    """
    jobs = with_tasks(normal_ids(jobs), tasks)
    return change_holds(
        head, ReleaseJob, jobs, hold_list=hold_list, dry_run=dry_run, as_json=as_json
    )


def main() -> None:
    """Run the command."""
    run(grls)


if __name__ == "__main__":
    main()
