"""``grerun``: stop running jobs and queue them again."""

import click

from gsched.cli.common import connected, gsched_command, run
from gsched.cli.operands import carry_out, grace_option, jobs_argument, normal_ids, parse_grace_s
from gsched.client import Head
from gsched.protocol.actions import RerunJob

EPILOG = """\b
Examples:
  grerun 17                           stop it, queue it again
  grerun -W 300 -m "new driver" 17    five minutes between TERM and KILL
"""


@gsched_command("grerun", epilog=EPILOG)
@jobs_argument
@click.option(
    "-f", "--force", is_flag=True, help="Also rerun jobs that are marked as not rerunnable."
)
@click.option("-m", "--message", default="", metavar="MSG", help="Message for the job's history.")
@grace_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@connected
def grerun(  # noqa: PLR0913 - one parameter for each option
    head: Head,
    *,
    jobs: tuple[str, ...],
    force: bool,
    message: str,
    grace: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Stop running jobs and queue them again, under the same id.

    The next attempt starts after all processes of this one have ended; its GSCHED_RESTART_COUNT is
    one higher.
    """
    request = RerunJob(
        ids=normal_ids(jobs),
        message=message,
        grace_s=parse_grace_s(grace),
        force=force,
        dry_run=dry_run,
    )
    return carry_out(head, request, as_json=as_json)[1]


def main() -> None:
    """Run the command."""
    run(grerun)


if __name__ == "__main__":
    main()
