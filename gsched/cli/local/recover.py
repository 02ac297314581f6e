"""``gsched recover``: why the head is in safe mode, what nodes know, and the word that ends it."""

from gsched.cli.common import (
    connected,
    head_option,
    option,
    print_json,
    printable,
)
from gsched.cli.local.head_checks import safe_mode_reason
from gsched.cli.local.options import subcommand
from gsched.client import HeadClient
from gsched.errors import NotPermittedError
from gsched.model.ids import short_job_id
from gsched.protocol.api import StatusReply
from gsched.protocol.recover import RecoverCase, RecoverReply

WHAT_IT_MEANS = """\
The head's database may lack jobs that it had acknowledged: it was cut, copied or restored. Until
an operator accepts the loss, no job is started or changed, and no job number is assigned. Running
jobs are not affected. If there is a better copy of the database, stop the head, put that copy in
place and start the head. Otherwise let all nodes connect, check the list, and accept it."""

#: What each kind of case means, in the order of the list.
KINDS = {
    "finished": "finished since the copy was made: their outcomes are taken from the nodes",
    "started": "started since the copy was made: they keep running and are not started again",
    "adopted": "running, but not in the database: adopted until the end",
    "lost": "ran according to the database, but not to their nodes: they end as node_lost",
    "conflict": "not to be restored: processes that run are stopped",
    "held": "waiting, but may have run since: held until `grls -h o JOB`",
}


@subcommand("recover")
@option("--accept", is_flag=True, help="End safe mode: restore what the nodes know.")
@option(
    "--without-nodes",
    is_flag=True,
    help="With --accept: do not wait for known nodes; all waiting jobs are held.",
)
@option(
    "--believe",
    metavar="NODE",
    default="",
    help="Trust a node that was refused because it knows more than the database.",
)
@head_option
@connected
def recover(
    head: HeadClient, *, accept: bool, without_nodes: bool, believe: str, as_json: bool
) -> int:
    """Show why the head is in safe mode and what the nodes know; with --accept, end it.

    Exits with 1 while the head is in safe mode. For operators.
    """
    before = head.status()
    if not before.safe_mode and not before.quarantined:
        if as_json:
            print_json({"before": "", "safe_mode": "", "cases": []})
        else:
            print("The head is not in safe mode: nothing to recover from.")
        return 0
    found = _look(head, before)
    after = before
    if believe or (accept and before.safe_mode):
        after = head.recover(
            accept=accept and bool(before.safe_mode), without_nodes=without_nodes, believe=believe
        )
    if as_json:
        print_json({"before": before.safe_mode, "safe_mode": after.safe_mode, **_fields(found)})
    else:
        _print(found, before, after, believe=believe)
    return 1 if after.safe_mode else 0


def _look(head: HeadClient, status: StatusReply) -> RecoverReply:
    """Return what the head lists; for others than operators why it is in safe mode."""
    try:
        return head.recovery()
    except NotPermittedError:
        return RecoverReply(safe_mode=status.safe_mode, quarantined=status.quarantined)


def _fields(found: RecoverReply) -> dict[str, object]:
    return {
        "nodes": found.nodes,
        "missing": found.missing,
        "first_unknown": found.first_unknown,
        "next_job": found.next_job,
        "cases": found.cases,
        "dropped": found.dropped,
        "quarantined": found.quarantined,
    }


def _print(found: RecoverReply, before: StatusReply, after: StatusReply, *, believe: str) -> None:
    for node, why in sorted(found.quarantined.items()):
        print(f"Refused: {printable(why)}.")
        if node == believe:
            print(f"{printable(node)} is trusted from its next connection on.")
    if not before.safe_mode:
        return
    print(f"Safe mode: {printable(safe_mode_reason(before))}")
    _print_cases(found)
    if not after.safe_mode:
        print("Accepted: the head starts jobs again.")
        return
    print(f"\n{WHAT_IT_MEANS}")
    names, missing = ", ".join(found.nodes), ", ".join(found.missing)
    print(f"\nNodes that have reported: {printable(names) or 'none'}.")
    if missing:
        print(f"Not connected: {printable(missing)}. Start gnode there, or add --without-nodes.")
    print(f"The next job gets number {found.next_job}. End it with: gsched recover --accept")


def _print_cases(found: RecoverReply) -> None:
    for kind, words in KINDS.items():
        cases = [case for case in found.cases if case.kind == kind]
        if cases:
            print(f"\n{len(cases)} {'job' if len(cases) == 1 else 'jobs'} {words}:")
        for case in cases:
            print(f"  {_line(case)}")
    if found.first_unknown and found.nodes:
        print(
            f"\nJobs from number {found.first_unknown} on that no node has seen are lost; "
            "their number is unknown."
        )
    if found.dropped:
        print(f"{found.dropped} more attempts are not listed.")


def _line(case: RecoverCase) -> str:
    where = f" on {', '.join(case.nodes)}" if case.nodes else ""
    script = f" (script {case.script[:12]})" if case.script else ""
    text = f": {case.text}" if case.text else ""
    user = f" {case.user}" if case.user else ""
    return printable(
        f"{short_job_id(case.job)}{user} {case.name}{script}{where}{text}".replace("  ", " ")
    )
