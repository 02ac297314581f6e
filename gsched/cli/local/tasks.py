"""``gsched tasks``: what the head does periodically, and how it went."""

import click

from gsched.cli.common import color_option, connected, head_option, print_json, printable
from gsched.cli.local.options import subcommand
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.cli.times import format_time
from gsched.client import HeadClient
from gsched.errors import UsageError
from gsched.model.units import format_duration
from gsched.protocol.tasks import TaskList, TaskOutcome, TaskRow
from gsched.transport import pause

EPILOG = """\b
Examples:
  gsched tasks
  gsched tasks run purge
"""
POLL_S = 0.3
COLUMNS = (
    Column("task"),
    Column("schedule"),
    Column("last run"),
    Column("took", right=True),
    Column("outcome"),
    Column("next run"),
    Column("text", wraps=True, least=20),
)


@subcommand("tasks", epilog=EPILOG)
@click.argument("action", required=False, metavar="[run NAME]", type=click.Choice(["run"]))
@click.argument("name", required=False, metavar="")
@head_option
@color_option
@connected
def tasks(
    head: HeadClient, *, action: str | None, name: str | None, color: str, as_json: bool
) -> int:
    """List the periodic tasks of the head, or run one of them now.

    A task is listed with its schedule, which [tasks] of gsched.toml sets, its last run, and its
    next. With run, operators start it at once; the command waits for its end, and exits with 1 if
    it failed.
    """
    if action is None:
        reply = head.tasks()
    elif name is None:
        raise UsageError("name a task", hint="gsched tasks lists them")
    else:
        reply = _run(head, name)
    if as_json:
        print_json(reply)
    else:
        print_table(COLUMNS, [_cells(row, reply.now_s) for row in reply.tasks], color=color)
    return int(name is not None and reply.tasks[0].outcome is not TaskOutcome.DONE)


def _run(head: HeadClient, name: str) -> TaskList:
    """Start a task and return its row once it has ended."""
    reply = head.run_task(name)
    while True:
        (row,) = (each for each in reply.tasks if each.name == name)
        if row.outcome is not TaskOutcome.RUNNING:
            return TaskList(now_s=reply.now_s, tasks=(row,))
        pause(POLL_S)
        reply = head.tasks()


def _cells(row: TaskRow, now_s: float) -> list[str]:
    took = ""
    if row.started_s is not None and row.outcome in {TaskOutcome.DONE, TaskOutcome.FAILED}:
        took = f"{max(0.0, (row.ended_s or now_s) - row.started_s):.1f} s"
    elif row.started_s is not None and row.outcome is TaskOutcome.RUNNING:
        took = format_duration(now_s - row.started_s)
    overlaps = f"its time came {row.overlaps} times while it ran" if row.overlaps else ""
    return [
        row.name,
        row.schedule,
        format_time(row.started_s) if row.started_s is not None else "never",
        took,
        row.outcome.value if row.outcome is not None else "",
        format_time(row.next_s) if row.next_s is not None else "never",
        printable("; ".join(filter(None, (row.text, overlaps)))),
    ]
