"""``gmove``: move waiting jobs to another queue."""

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
)
from gsched.cli.dialect import spoken
from gsched.cli.operands import carry_out, jobs_argument, normal_ids
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.errors import UsageError
from gsched.protocol.actions import Alteration, AlterJob

EPILOG = """\b
Examples:
  gmove long 17 18                    both jobs wait in queue long
"""


@gsched_command("gmove", epilog=EPILOG)
@click.argument("queue", metavar="QUEUE")
@jobs_argument
@option("--dry-run", is_flag=True, help="Check the change, without making it.")
@connected
def gmove(
    head: HeadClient, *, queue: str, jobs: tuple[str, ...], dry_run: bool, as_json: bool
) -> int:
    """Move waiting jobs to another queue of this cluster.

    QUEUE is queue, @server or queue@server, where server is this head; @server alone stands for
    its default queue. A running job cannot be moved; gmigrate moves it to other nodes.
    """
    name, at, server = queue.partition("@")
    if at or not name:
        name = _checked(head, queue, name, server)
    request = AlterJob(ids=normal_ids(jobs), alteration=_alteration(name), dry_run=dry_run)
    return carry_out(head, request, as_json=as_json)[1]


def _alteration(queue: str) -> Alteration:
    """Return what is changed; a queue of OpenPBS may be that of a reservation."""
    if spoken().is_queue_of_reservation(queue):
        return Alteration(reservation=queue)
    if spoken().has_queues_of_reservations:
        return Alteration(queue=queue, reservation="")
    return Alteration(queue=queue)


def _checked(head: HeadClient, stated: str, name: str, server: str) -> str:
    """Return the queue of a destination that names a server.

    Raises:
        UsageError: it is empty, or another server.
    """
    status = head.status()
    if not stated or server.lower() != status.server.lower():
        raise UsageError(
            f"invalid destination {stated!r}: jobs stay on this server, {status.server}",
            hint=f"queues here: {', '.join(status.queues)}",
        )
    return name or status.queues[0]


main = runner(gmove)

if __name__ == "__main__":
    main()
