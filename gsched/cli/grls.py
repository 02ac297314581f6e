"""``grls``: release held jobs."""

import click

from gsched.cli.common import connected, gsched_command, report_results, run
from gsched.cli.operands import hold_option, jobs_argument, normal_ids, parse_hold_list
from gsched.client import Head
from gsched.protocol.api import ActionRequest


@gsched_command("grls")
@jobs_argument
@hold_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, do nothing.")
@connected
def grls(head: Head, *, jobs: tuple[str, ...], hold_list: str, dry_run: bool, as_json: bool) -> int:
    """Release jobs that are held (see ghold).

    A job starts when no hold of any kind is left. Only operators release o and s.
    """
    request = ActionRequest(
        action="release",
        ids=normal_ids(jobs),
        holds=parse_hold_list(hold_list),
        dry_run=dry_run,
    )
    return report_results(head.act(request).results, as_json=as_json, show_text=dry_run)


def main() -> None:
    """Run the command."""
    run(grls)


if __name__ == "__main__":
    main()
