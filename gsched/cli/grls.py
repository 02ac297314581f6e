"""``grls``: release held jobs."""

import click

from gsched.cli.common import connected, gsched_command, run
from gsched.cli.operands import (
    UNFINISHED,
    carry_out,
    check_only,
    hold_option,
    jobs_argument,
    normal_ids,
    parse_hold_list,
)
from gsched.client import Head
from gsched.protocol.api import ActionRequest

EPILOG = """\b
Examples:
  grls 17                             let it start
  grls -h uo 17                       also an operator's hold
"""


@gsched_command("grls", epilog=EPILOG)
@jobs_argument
@hold_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, do nothing.")
@connected
def grls(head: Head, *, jobs: tuple[str, ...], hold_list: str, dry_run: bool, as_json: bool) -> int:
    """Release jobs that are held (see ghold).

    A job starts when no hold of any kind is left. Only operators release o and s.
    """
    holds = parse_hold_list(hold_list)
    if not holds:  # -h n: no kind of hold, but unknown jobs are still told
        return check_only(head, normal_ids(jobs), states=UNFINISHED, as_json=as_json)
    request = ActionRequest(action="release", ids=normal_ids(jobs), holds=holds, dry_run=dry_run)
    return carry_out(head, request, as_json=as_json)[1]


def main() -> None:
    """Run the command."""
    run(grls)


if __name__ == "__main__":
    main()
