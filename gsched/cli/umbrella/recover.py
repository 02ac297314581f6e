"""``gsched recover``: why the head is in safe mode, and the operator's word that ends it."""

import click

from gsched.cli.common import connected, head_option, print_json, printable
from gsched.cli.umbrella.head_checks import safe_mode_reason
from gsched.cli.umbrella.options import subcommand
from gsched.client import Head
from gsched.protocol.api import StatusReply

WHAT_IT_MEANS = """\
Its database lacks what it had promised before: it was cut, or restored from an old backup. Nothing
is started until an operator has looked. Before you accept, let all nodes connect (see gnodes): what
they run or have finished is taken back from them. Jobs that only the lost part knew stay lost; no
job number is handed out twice. A better copy of the database can still be put in place: stop the
head, exchange the file, start it."""


@subcommand("recover")
@click.option("--accept", is_flag=True, help="End safe mode: the loss, if any, is accepted.")
@head_option
@connected
def recover(head: Head, *, accept: bool, as_json: bool) -> int:
    """Show why the head is in safe mode; with --accept, end it (operators only).

    Exits with 1 while the head is in safe mode.
    """
    before = head.status()
    after = head.recover(accept=True) if accept and before.safe_mode else before
    if as_json:
        print_json({"before": before.safe_mode, "safe_mode": after.safe_mode})
    else:
        _print(before, after)
    return 1 if after.safe_mode else 0


def _print(before: StatusReply, after: StatusReply) -> None:
    if not before.safe_mode:
        print("The head is not in safe mode: nothing to recover from.")
        return
    print(f"Safe mode: {printable(safe_mode_reason(before))}")
    if not after.safe_mode:
        print("Accepted: jobs are started again.")
        return
    print(f"\n{WHAT_IT_MEANS}")
    print(
        f"\nNodes up now: {after.nodes_up} of {after.nodes}. End it with: gsched recover --accept"
    )
