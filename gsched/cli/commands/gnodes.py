"""``gnodes``: list the nodes, drain them and take them back."""

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import click
from msgspec import structs

from gsched.cli.common import (
    Callback,
    color_option,
    connected,
    gsched_command,
    is_terminal,
    option,
    print_json,
    print_note,
    report_errors,
    report_results,
)
from gsched.cli.running import runner
from gsched.cli.show.fields import fields_of, shape_options, shaped
from gsched.cli.show.nodelist import (
    node_fields,
    print_hosts,
    print_maintenance,
    print_nodes,
    print_state_list,
)
from gsched.client import HeadClient
from gsched.clock import SystemClock
from gsched.errors import InvalidRequestError, UnknownNodeError, UsageError
from gsched.head_calls import body_of
from gsched.model.host_lists import expanded
from gsched.protocol.actions import (
    NODE_ACTIONS,
    AnyNodeAction,
    DrainNode,
    MaintainNode,
    PowerNode,
    ReplaceNode,
)
from gsched.protocol.api import ActionResult, ErrorBody
from gsched.protocol.node_rows import NodeList, NodeRow

Flags = Mapping[str, bool | str | int | None]

EPILOG = """\b
Examples:
  gnodes                              all nodes: resources and load
  gnodes n1                           all details of one node
  gnodes drain n1 n2 -m "new driver"  no new jobs; running jobs continue
  gnodes drain n1 --migrate -m fans   also migrate its jobs where possible
  gnodes resume "n[1-3,7]"            four nodes
  gnodes maintenance n1 n2 --from "2026-12-01 08:00" --to +4h -m "new switch"
  gnodes maintenance                  list the maintenance of all nodes
  gnodes maintenance --cancel 3       cancel maintenance 3 on all its nodes
  gnodes power down n5 n6             by the programs of the site; up: likewise
  gnodes confirm-dead n3              it is gone for good: requeue its jobs
  gnodes remove n3                    delete the node from the list
  gnodes replace n4                   accept its new disk or machine
  gnodes revoke n5                    refuse its certificate: it was stolen
  gnodes settings n6                  its configuration, and where each value comes from
  gnodes --login                      the login hosts
  gnodes --predictions                predicted and measured use of running jobs
"""


def _reason_option(function: Callback) -> Callback:
    return option(
        "-m",
        "-N",
        "--reason",
        "reason",
        default="",
        metavar="REASON",
        help="drain, maintenance: the reason, which drain requires (-N as in Torque).",
    )(function)


#: Fields of --predictions --json; their module is loaded only where they are requested.
_PREDICTED = ("has", "unpredicted", "predicted", "measured", "errors")


@gsched_command(
    "gnodes", cls=shaped("Gnodes", (*fields_of(NodeRow), *_PREDICTED), operands=True), epilog=EPILOG
)
@shape_options
@click.argument(
    "operands",
    nargs=-1,
    metavar="[drain|resume|maintenance|power|confirm-dead|remove|replace|revoke|settings] "
    "[NODE...]",
)
@_reason_option
@option(
    "--migrate",
    is_flag=True,
    help="drain: also migrate the jobs that can be migrated, a few at a time.",
)
@option(
    "--from", "from_", default="", metavar="TIME", help="maintenance: when it begins; default: now."
)
@option(
    "--to", default="", metavar="TIME", help="maintenance: when it ends; +4h: after its beginning."
)
@option(
    "--cancel",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="maintenance: cancel this one, on all its nodes or those that are named.",
)
@option("-y", "--yes", is_flag=True, help="confirm-dead: do not ask for confirmation.")
@option(
    "--identity",
    default="",
    metavar="BEGINNING",
    help="replace: the gnode to accept, if several were refused.",
)
@option("-a", "all_fields", is_flag=True, help="Show all details of all nodes (pbsnodes -a).")
@option(
    "-l", "down_only", is_flag=True, help="Show only nodes that take no jobs: name, state, reason."
)
@option("-o", "offline", is_flag=True, help="Drain the nodes (pbsnodes -o).")
@option("-c", "clear", is_flag=True, help="Resume the nodes (pbsnodes -c).")
@option(
    "--predictions",
    is_flag=True,
    help="Show predicted and measured use of each node, and past prediction errors.",
)
@option("--login", is_flag=True, help="Show the login hosts: they run no jobs and serve commands.")
@color_option
@connected
def gnodes(
    head: HeadClient,
    /,
    *,
    operands: tuple[str, ...],
    reason: str,
    yes: bool,
    as_json: bool,
    predictions: bool,
    **flags: "bool | str | int | None",
) -> int:
    """List nodes, or drain, resume, remove or replace them.

    A drained node takes no new jobs; its running jobs continue or, with --migrate, migrate to other
    nodes where possible. confirm-dead declares a node permanently lost: its attempts end, and
    rerunnable jobs are requeued. If the node is in fact alive, they run twice. remove
    deletes a node without jobs. replace gives a node's name to another gnode, which the head
    refuses until then: one with a new state directory, or on another machine. maintenance keeps
    nodes free for a time: no job starts whose walltime does not end before it begins. power has the
    programs of the site power nodes down or up. revoke ends the connection of a host of any role at
    once and refuses its certificates for ever; it comes back by gsched join with a new token.
    settings shows with which configuration nodes run: values of the head, and of their own files.
    """
    verb, names = _verb(operands, offline=bool(flags["offline"]), clear=bool(flags["clear"]))
    names = tuple(name for text in names for name in expanded(text, option="NODE"))
    if flags["login"] or predictions:
        show, option = (_logins, "--login") if flags["login"] else (_predictions, "--predictions")
        _check_only_lists(option, verb, reason, {**flags, "both": flags["login"] and predictions})
        return show(head, names, color=str(flags["color"]), as_json=as_json)
    if _lists_maintenance(verb, flags):
        return _maintenance(head, names, color=str(flags["color"]), as_json=as_json)
    if verb:
        return _change(head, verb, names, reason.strip(), yes=yes, as_json=as_json, **flags)
    if flags["migrate"] or reason:
        _check_subcommand(operands)
    if flags["migrate"]:
        _check_drain(verb)
    _checked_identity(verb, str(flags["identity"]))
    if reason:
        raise UsageError(
            "-m is valid only with drain and maintenance", hint="gnodes drain NODE... -m REASON"
        )
    listing = head.nodes()
    rows, errors = _chosen(listing.nodes, names)
    if errors and all(row.name != names[0] for row in rows):
        _check_subcommand(operands)
    if as_json:
        print_json({"server": listing.server, "now_s": listing.now_s, "nodes": rows})
    else:
        _print(rows, named=bool(names) or bool(flags["all_fields"]), flags=flags, listing=listing)
    return report_errors([("", each) for each in errors], as_json=as_json)


def _logins(head: HeadClient, names: Sequence[str], *, color: str, as_json: bool) -> int:
    """List login hosts; return the exit code."""
    found = [row for row in head.hosts().hosts if row.role == "login"]
    rows = [row for row in found if not names or row.name in names]
    missing = [name for name in names if name not in {row.name for row in found}]
    errors = [
        body_of(UnknownNodeError(f"unknown login host {name!r}", hint="see gnodes --login"))
        for name in missing
    ]
    if as_json:
        print_json({"login_hosts": rows})
    else:
        print_hosts(rows, color=color)
    return report_errors([("", each) for each in errors], as_json=as_json)


def _revoke(head: HeadClient, names: Sequence[str], *, as_json: bool) -> int:
    """Refuse the certificates of hosts; return the exit code."""
    if not names:
        raise UsageError("revoke needs at least one host", hint="gnodes revoke NODE...")
    results = []
    known = {row.name for row in head.hosts().hosts}
    known.update(row.node for row in head.authority().nodes)  # also who has only joined yet
    for name in names:
        try:
            head.revoke(name)
            if name not in known:
                print_note(
                    f"the cluster has had no host {name} lately: if that is a slip, revoke the "
                    "right one (gnodes, gnodes --login)",
                    command="gnodes",
                )
            results.append(ActionResult(id=name, text="its certificates are revoked"))
        except InvalidRequestError as error:
            results.append(ActionResult(id=name, error=body_of(error)))
    return report_results(results, as_json=as_json)


def _verb(operands: tuple[str, ...], *, offline: bool, clear: bool) -> tuple[str, tuple[str, ...]]:
    """Return what to do (empty: list) and the nodes it is about."""
    if offline and clear:
        raise UsageError("-o and -c are mutually exclusive", hint="give one of them")
    if offline or clear:
        return "drain" if offline else "resume", operands
    if operands and operands[0] in {*NODE_ACTIONS, "revoke", "settings"}:
        return operands[0], operands[1:]
    return "", operands


def _change(
    head: HeadClient,
    verb: str,
    names: tuple[str, ...],
    reason: str,
    *,
    yes: bool,
    as_json: bool,
    **flags: "bool | str | int | None",
) -> int:
    """Change nodes; return the exit code."""
    if verb == "revoke":
        return _revoke(head, names, as_json=as_json)
    if verb == "settings":
        from gsched.cli.show.node_settings import show_settings  # late: few list them

        return show_settings(head, names, as_json=as_json)
    action = _action(verb, names, reason, flags)
    return _act(head, action, yes=yes, as_json=as_json)


def _action(
    verb: str, names: tuple[str, ...], reason: str, flags: Mapping[str, object]
) -> AnyNodeAction:
    """Return the action that is requested.

    Raises:
        UsageError: an option belongs to another one.
    """
    if flags["migrate"]:
        _check_drain(verb)
    identity = _checked_identity(verb, str(flags["identity"]))
    if verb == "drain":
        return DrainNode(nodes=names, reason=reason, migrate=bool(flags["migrate"]))
    if verb == "maintenance":
        return _window(names, reason, flags)
    if verb == "power":
        if not names or names[0] not in {"down", "up"}:
            raise UsageError("power needs a direction", hint="gnodes power down|up NODE...")
        return PowerNode(nodes=names[1:], up=names[0] == "up")
    if verb == "replace":
        return ReplaceNode(nodes=names, identity=identity)
    return NODE_ACTIONS[verb](nodes=names)


def _window(names: tuple[str, ...], reason: str, flags: Mapping[str, object]) -> MaintainNode:
    """Return the maintenance that is ordered or cancelled.

    Raises:
        UsageError: its end is missing, or a time cannot be read.
    """
    if flags["cancel"]:
        return MaintainNode(nodes=names, cancel=int(str(flags["cancel"])))
    now_s = float(round(SystemClock().wall_s()))
    start, end = str(flags["from_"]), str(flags["to"])
    if not end:
        raise UsageError(
            "maintenance needs its end",
            hint='gnodes maintenance NODE... --from "2026-12-01 08:00" --to 18:00 -m REASON',
        )
    from gsched.cli.moments import parse_coming  # late: only maintenance has times

    from_s = parse_coming(start, now_s=now_s, option="--from") if start else now_s
    return MaintainNode(
        nodes=names,
        reason=reason,
        from_s=from_s,
        to_s=parse_coming(end, now_s=now_s, option="--to", begin_s=from_s if start else None),
    )


def _lists_maintenance(verb: str, flags: Mapping[str, object]) -> bool:
    """Return whether maintenance is to be listed, and not to be ordered or cancelled.

    Raises:
        UsageError: it is so, or one of them excludes another one.
    """
    given = [f"--{name.rstrip('_')}" for name in ("from_", "to", "cancel") if flags[name]]
    if given and verb != "maintenance":
        raise UsageError(
            f"{given[0]} is valid only with maintenance",
            hint="gnodes maintenance NODE... --from TIME --to TIME -m REASON",
        )
    if flags["cancel"] and len(given) > 1:
        raise UsageError(f"--cancel and {given[0]} are mutually exclusive", hint="give one of them")
    return verb == "maintenance" and not given


def _nodes_of(head: HeadClient, number: int) -> tuple[str, ...]:
    """Return the nodes of a maintenance.

    Raises:
        UsageError: there is no such maintenance.
    """
    found = tuple(
        row.name
        for row in head.nodes().nodes
        if any(window.number == number for window in row.windows)
    )
    if not found:
        raise UsageError(f"there is no maintenance {number}", hint="gnodes maintenance lists them")
    return found


def _maintenance(head: HeadClient, names: Sequence[str], *, color: str, as_json: bool) -> int:
    """List the maintenance of nodes; return the exit code."""
    rows, errors = _chosen(head.nodes().nodes, names)
    if as_json:
        found = [{"node": row.name, "windows": row.windows} for row in rows if row.windows]
        print_json({"maintenance": found})
    else:
        print_maintenance(rows, color=color)
    return report_errors([("", each) for each in errors], as_json=as_json)


def _checked_identity(verb: str, beginning: str) -> str:
    """Return how the identity that is meant begins.

    Raises:
        UsageError: nothing is replaced, or it is no beginning of an identity.
    """
    text = beginning.strip().lower().rstrip("…")
    if text and verb != "replace":
        raise UsageError(
            "--identity is valid only with replace", hint="gnodes replace --identity BEGINNING NODE"
        )
    if not set(text) <= set("0123456789abcdef"):
        raise UsageError(
            f"--identity {beginning!r} is not the beginning of an identity",
            hint="give hex digits as `gnodes NODE` and gnode's log show them",
        )
    return text


def _check_subcommand(operands: Sequence[str]) -> None:
    """Refuse a misspelt subcommand: options, or the lack of such a node, show that one was meant.

    Raises:
        UsageError: the first operand is like one.
    """
    import difflib  # late: only a mistake needs it

    close = difflib.get_close_matches(operands[0], NODE_ACTIONS, n=1) if operands else []
    if close:
        raise UsageError(
            f"unknown subcommand {operands[0]!r}",
            hint=f"did you mean {close[0]!r}? gnodes {close[0]} NODE...",
        )


def _check_drain(verb: str) -> None:
    """Refuse --migrate where nothing is drained.

    Raises:
        UsageError: it is so.
    """
    if verb != "drain":
        raise UsageError(
            "--migrate is valid only with drain", hint="gnodes drain NODE... --migrate -m REASON"
        )


def _act(head: HeadClient, action: AnyNodeAction, *, yes: bool, as_json: bool) -> int:
    verb, names = action.action, action.nodes
    if isinstance(action, MaintainNode) and action.cancel and not names:
        names = _nodes_of(head, action.cancel)
        action = structs.replace(action, nodes=names)
    if not names:
        usage = "power down|up" if verb == "power" else verb
        raise UsageError(f"{verb} needs at least one node", hint=f"gnodes {usage} NODE...")
    if verb == "drain" and not action.reason:
        raise UsageError(
            "drain needs a reason: others will ask why the nodes take no jobs",
            hint=f'gnodes drain {" ".join(names)} -m "new driver"',
        )
    if verb == "confirm-dead" and not (yes or _is_sure(head, names)):
        print_note("nothing was done", command="gnodes")
        return 1
    reply = head.node_action(action)
    results = reply.results
    migrates = isinstance(action, MaintainNode) or (
        isinstance(action, DrainNode) and action.migrate
    )
    if migrates and not as_json:
        from gsched.cli.times import local_times  # late: few actions have words of their own

        results = tuple(
            structs.replace(each, text=f"{each.id}: {local_times(each.text)}") for each in results
        )
    return report_results(results, as_json=as_json, show_text=migrates)


def _is_sure(head: HeadClient, names: Sequence[str]) -> bool:
    """Tell a person at a terminal what it means, ask, and return the answer.

    Raises:
        UsageError: nobody can be asked; to be wrong here runs jobs twice, so it must be said.
    """
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise UsageError(
            "confirm-dead needs a confirmation: jobs that still run would run twice",
            hint=f"make sure that it is off, then: gnodes confirm-dead -y {' '.join(names)}",
        )
    rows, _ = _chosen(head.nodes().nodes, names)
    jobs = sum(len(row.jobs) for row in rows)
    print_note(
        f"{jobs} jobs on {', '.join(names)} will be ended, and may start on other nodes. If the "
        "machine is still alive, they run twice.",
        command="gnodes",
    )
    return click.confirm("gnodes: is the machine gone for good?", err=True)


def _check_only_lists(option: str, verb: str, reason: str, flags: Flags) -> None:
    """Refuse what does not go with an option that lists something else.

    Raises:
        UsageError: something else is requested, too.
    """
    letters = {
        "all_fields": "-a",
        "down_only": "-l",
        "migrate": "--migrate",
        "both": "--predictions",
    }
    other = [verb, "-m" if reason else "", *(letters[name] for name in letters if flags.get(name))]
    given = next(filter(None, other), "")
    if given:
        raise UsageError(
            f"{option} and {given} are mutually exclusive", hint=f"gnodes {option} [NODE...]"
        )


def _predictions(head: HeadClient, names: Sequence[str], *, color: str, as_json: bool) -> int:
    """Show what runs on nodes, predicted and measured; return the exit code."""
    from gsched.cli.show.predictions import (
        print_node_predictions,  # late: plain gnodes does without
    )

    reply = head.node_predictions()
    rows, errors = _chosen(reply.nodes, names)
    if as_json:
        print_json(structs.replace(reply, nodes=rows))
    else:
        print_node_predictions(rows, learns=reply.learns, color=color)
    return report_errors([("", each) for each in errors], as_json=as_json)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def _chosen(
    nodes: tuple[_Row, ...], names: Sequence[str]
) -> tuple[tuple[_Row, ...], list[ErrorBody]]:
    """Return the rows of the nodes named (none named: all), and an error for each unknown one."""
    if not names:
        return nodes, []
    known = {row.name: row for row in nodes}
    errors = [
        body_of(UnknownNodeError(f"Unknown node {name}", hint="gnodes lists the names"))
        for name in names
        if name not in known
    ]
    return tuple(known[name] for name in names if name in known), errors


def _print(
    rows: Sequence[NodeRow],
    *,
    named: bool,
    flags: Flags,
    listing: NodeList,
) -> None:
    if flags["down_only"]:
        print_state_list(rows)
    elif named:
        for row in rows:
            node_fields(row, now_s=listing.now_s)
    else:
        print_nodes(rows, color=str(flags["color"]))


main = runner(gnodes)

if __name__ == "__main__":
    main()
