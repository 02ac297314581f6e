"""greport: the usage of past jobs by user, account, queue and so on, for people and for cron."""

import csv
import sys

import click

from gsched.cli.common import color_option, connected, gsched_command, print_json, print_note
from gsched.cli.moments import parse_moment
from gsched.cli.running import runner
from gsched.cli.show.columns import Column
from gsched.cli.show.fields import fields_of, shape_options, shaped
from gsched.cli.show.render import print_table
from gsched.cli.show.usage import COLUMNS, GROUPS, UsageRow, csv_rows, table_rows, usage_of
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import UsageError
from gsched.model.limits import MAX_HISTORY_ROWS
from gsched.protocol.api import JobRow

#: Jobs of one request.
PAGE = 10_000
#: Jobs that end within so short a time may be in different pages, seconds.
TOGETHER_S = 1e-3

EPILOG = """\b
Examples:
  greport                                   yesterday and today, by user
  greport --since 2026-10 --until 2026-11 --by account
  greport --since 7d --by day -u alice
  greport --since yesterday --until today --csv >> /var/log/gsched/usage.csv
  greport --by outcome --jq '.rows[] | [.group, .jobs]'
"""


@gsched_command("greport", cls=shaped("Greport", fields_of(UsageRow)), epilog=EPILOG)
@shape_options
@click.option(
    "--since",
    default="yesterday",
    show_default=True,
    metavar="TIME",
    help="Jobs that ended at or after this: 2d, yesterday, 2026-11-20.",
)
@click.option("--until", default="now", metavar="TIME", help="Jobs that ended before this.")
@click.option(
    "--by",
    default="user",
    show_default=True,
    metavar="GROUP",
    help="A line for each user, account, queue, name, outcome, node, day or month.",
)
@click.option("-u", "--user", default="", metavar="USER", help="Only jobs of this user.")
@click.option("-q", "--queue", default="", metavar="QUEUE", help="Only jobs of this queue.")
@click.option("-N", "--name", default="", metavar="NAME", help="Only jobs of this name; * and ?.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@color_option
@connected
def greport(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
    /,
    *,
    since: str,
    until: str,
    by: str,
    user: str,
    queue: str,
    name: str,
    as_csv: bool,
    color: str,
    as_json: bool,
) -> int:
    """Report the usage of jobs that ended in a period: jobs, failures, CPU- and GPU-hours, waits.

    CPU- and GPU-hours are what jobs had, whether they used them or not; "CPU used" is the part of
    the CPU-hours that was used.
    """
    if by not in GROUPS:
        raise UsageError(f"--by: unknown group {by!r}", hint=f"valid: {', '.join(GROUPS)}")
    if as_csv and as_json:
        raise UsageError("--csv and --json are mutually exclusive", hint="give one of them")
    now_s = SystemClock().wall_s()
    since_s = parse_moment(since, now_s=now_s, option="--since")
    until_s = parse_moment(until, now_s=now_s, option="--until")
    if until_s <= since_s:
        raise UsageError(
            f"the period from {since} to {until} is empty", hint="give a later --until"
        )
    filters = {"user": user, "queue": queue, "name": name}
    jobs, damaged = past_jobs(head, since_s, until_s, filters)
    rows = usage_of(jobs, by)
    if damaged:
        print_note(
            f"{damaged} jobs with damaged records are left out: see ghist", command="greport"
        )
    if as_json:
        period: dict[str, object] = {"since_s": since_s, "until_s": until_s, "by": by}
        print_json({"server": _server_of(head), **period, "rows": rows})
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(rows))
    else:
        columns = (Column(by.capitalize(), style="bold", least=8), *COLUMNS)
        print_table(columns, table_rows(rows), color=color)
    return 0


def _server_of(head: HeadClient) -> str:
    return head.status().server


def past_jobs(
    head: HeadClient, since_s: float, until_s: float, filters: dict[str, str], *, page: int = PAGE
) -> tuple[list[JobRow], int]:
    """Return the jobs that ended in a period, page by page, and how many cannot be read."""
    usual = page
    found: dict[str, JobRow] = {}
    damaged: set[int] = set()
    end_s = until_s
    while True:
        reply = head.history(since=since_s, until=end_s, limit=page, **filters)
        before = len(found)
        for row in reply.jobs:
            if row.ended_s is not None and since_s <= row.ended_s < until_s:
                found.setdefault(row.shown_id(reply.server), row)
        damaged.update(reply.damaged)
        if not reply.more or not reply.jobs:
            return list(found.values()), len(damaged)
        last_s = reply.jobs[-1].ended_s or since_s
        if len(found) == before:  # more jobs than a page ended at one moment
            page *= 2
            if page > MAX_HISTORY_ROWS:
                page, last_s = usual, last_s - TOGETHER_S
        end_s = min(end_s, last_s + TOGETHER_S)  # some of that moment may not be in the page


main = runner(greport)

if __name__ == "__main__":
    main()
