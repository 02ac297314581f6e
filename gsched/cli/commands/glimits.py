"""``glimits``: which limits there are, what of them is used, and by whom."""

import math
from collections.abc import Sequence

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    option,
    print_json,
    print_note,
)
from gsched.cli.running import runner
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.client import HeadClient
from gsched.model.units import format_duration, format_size
from gsched.protocol.shares import LimitRow

EPILOG = """\b
Examples:
  glimits                              all limits
  glimits -u alice                     those that jobs of alice are subject to
  glimits -A vision -q gpu
  glimits --json | jq '.rows[] | select(.left == 0)'
"""
COLUMNS = (
    Column("Limit of"),
    Column("What"),
    Column("Limit", right=True),
    Column("Used", right=True),
    Column("Left", right=True),
    Column("Used by", drop=1),
)


@gsched_command("glimits", epilog=EPILOG)
@option("-u", "--user", default="", metavar="USER", help="Only limits of jobs of this user.")
@option(
    "-A", "--project", default="", metavar="PROJECT", help="Only limits of jobs of this project."
)
@option("-q", "--queue", default="", metavar="QUEUE", help="Only limits of this queue's jobs.")
@option("--qos", default="", metavar="QOS", help="Only limits of jobs with this QOS.")
@color_option
@connected
def glimits(head: HeadClient, /, *, color: str, as_json: bool, **named: str) -> int:
    """Show the limits of users, projects, queues and QOS, what is used of them, and by whom.

    With options, only the limits that jobs of this user, project, queue and QOS are subject to. Of
    limits for each user or project those are shown who have unfinished jobs. GPU-hours of running
    jobs count until the end of their walltime.
    """
    reply = head.limits(**named)
    if as_json:
        print_json(reply)
        return 0
    if not reply.rows:
        print_note("there are no such limits", command="glimits")
        return 0
    print_table(COLUMNS, [_cells(row) for row in reply.rows], color=color)
    return 0


def _cells(row: LimitRow) -> Sequence[str]:
    holders = [f"{each.user} {_words(row, each.amount)}" for each in row.holders]
    holders += [f"{row.others} more"] if row.others else []
    of_each = row.project and row.limit_of.startswith("each project")
    return (
        f"{row.limit_of} ({row.project})" if of_each else row.limit_of,
        row.noun,
        _words(row, row.limit),
        "" if row.used is None else _words(row, row.used),
        "" if row.left is None else _words(row, row.left),
        ", ".join(holders),
    )


def _words(row: LimitRow, amount: float) -> str:
    if not math.isfinite(amount):
        return "unlimited"
    if row.key == "max_walltime_s":
        return format_duration(amount)
    if row.key == "max_memory_bytes":
        return format_size(int(amount))
    return f"{amount:.2f}".rstrip("0").rstrip(".")


main = runner(glimits)

if __name__ == "__main__":
    main()
