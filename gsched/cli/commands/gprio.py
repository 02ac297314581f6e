"""``gprio``: what the priorities of waiting jobs are the sum of."""

from collections.abc import Sequence

import click

from gsched.cli.common import (
    color_option,
    connected,
    gsched_command,
    print_json,
    print_note,
    report_errors,
)
from gsched.cli.running import runner
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.client import HeadClient
from gsched.protocol.job_rows import JobRow

EPILOG = """\b
Examples:
  gprio                               all waiting jobs, the next one first
  gprio 17 18
  gprio --json | jq '.jobs[] | {id, user, terms}'
"""
TERMS = ("fair_share", "age", "size", "queue", "qos", "own")
COLUMNS = (
    *(Column(title) for title in ("Job ID", "User", "Project")),
    Column("Queue", drop=2),
    Column("QOS", drop=1),
    Column("Priority", right=True),
    Column("Share", right=True, drop=5),
    Column("Fair share", right=True),
    Column("Age", right=True),
    Column("Size", right=True, drop=3),
    Column("Queue", right=True),
    Column("QOS", right=True),
    Column("Own", right=True, drop=4),
)


@gsched_command("gprio", epilog=EPILOG)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@color_option
@connected
def gprio(head: HeadClient, *, jobs: tuple[str, ...], color: str, as_json: bool) -> int:
    """Show the terms of the priority of each waiting JOB, or of all waiting jobs.

    Jobs with a higher priority are considered first. Each term is multiplied by its weight in
    [priority] of gsched.toml; Share is the fair share of the user before that, from 0 to 1.
    """
    reply = head.jobs(list(jobs))
    rows = sorted(
        (row for row in reply.jobs if row.terms is not None),
        key=lambda row: (-_priority(row), row.id),
    )
    if as_json:
        print_json({"jobs": rows, "errors": reply.errors})
    elif rows:
        print_table(COLUMNS, [_cells(row, row.shown_id(reply.server)) for row in rows], color=color)
    elif not reply.errors:
        waiting = any(row.letter == "Q" for row in reply.jobs)
        why = "[priority] is not in force on this cluster" if waiting else "no waiting jobs"
        print_note(why, command="gprio")
    return report_errors(reply.errors.items(), as_json=as_json)


def _priority(row: JobRow) -> float:
    return 0.0 if row.terms is None else row.terms.priority


def _cells(row: JobRow, name: str) -> Sequence[str]:
    terms = row.terms
    assert terms is not None, "only such rows are shown"
    numbers = [terms.priority, *(getattr(terms, term) for term in TERMS)]
    first, *rest = (f"{number:.2f}" for number in numbers)
    return (name, row.user, row.account, row.queue, row.qos, first, f"{terms.factor:.4f}", *rest)


main = runner(gprio)

if __name__ == "__main__":
    main()
