"""What ``ghold`` and ``grls`` are: kinds of hold are put on jobs, or taken off."""

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
)
from gsched.cli.operands import (
    UNFINISHED,
    carry_out,
    check_only,
    hold_option,
    jobs_argument,
    normal_ids,
    parse_hold_list,
    tasks_option,
    with_tasks,
)
from gsched.client import HeadClient
from gsched.protocol.actions import HoldJob, ReleaseJob


def hold_command(
    name: str, kind: type[HoldJob | ReleaseJob], *, text: str, epilog: str
) -> click.Command:
    """Return a command that changes the holds of jobs; ``text``: its help."""

    @gsched_command(name, epilog=epilog)
    @jobs_argument
    @hold_option
    @tasks_option
    @option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
    @connected
    def command(
        head: HeadClient,
        *,
        jobs: tuple[str, ...],
        hold_list: str,
        tasks: str,
        dry_run: bool,
        as_json: bool,
    ) -> int:
        holds, ids = parse_hold_list(hold_list), with_tasks(normal_ids(jobs), tasks)
        if not holds:  # -h n: no kind of hold, but unknown jobs are still reported
            return check_only(head, ids, states=UNFINISHED, as_json=as_json)
        return carry_out(head, kind(ids=ids, holds=holds, dry_run=dry_run), as_json=as_json)[1]

    command.help = text
    return command
