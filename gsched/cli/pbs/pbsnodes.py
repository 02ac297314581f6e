"""``pbsnodes``: list nodes as Torque does, take them offline and back."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    option,
    print_error,
    report_results,
)
from gsched.cli.dialect import spoken
from gsched.cli.pbs import vnodes
from gsched.cli.pbs.documents import nodes_xml
from gsched.cli.pbs.personality import OPENPBS
from gsched.client import HeadClient
from gsched.errors import GschedError, UnknownNodeError, UsageError
from gsched.head_calls import body_of
from gsched.model.ids import format_job_id
from gsched.protocol.actions import AnyNodeAction, DrainNode, ResumeNode
from gsched.protocol.node_rows import NodeList, NodeRow
from gsched.version import VERSION

#: What ``-l STATE`` shows, by the words in a node's state; ``active`` and ``up`` are sums.
_FILTERS: Final = {
    "free": ("free",),
    "offline": ("offline",),
    "down": ("down", "state-unknown"),
    "reserve": ("reserve",),
    "job-exclusive": ("job-exclusive",),
    "job-sharing": ("job-sharing",),
    "busy": ("busy",),
    "state-unknown": ("state-unknown",),
    "time-shared": ("time-shared",),
    "active": ("busy", "job-exclusive", "job-sharing"),
}
#: Torque's power states of a node that is not on.
_POWER: Final = {"powering_down": "Shutdown", "powered_down": "Shutdown", "powering_up": "Standby"}
_BAD: Final = ("down", "offline", "state-unknown")


@gsched_command("pbsnodes")
@click.argument("operands", nargs=-1, metavar="[STATE] [NODE...]")
@option("-a", "_all", is_flag=True, help="All attributes of all nodes: the default.")
@option("-l", "brief", is_flag=True, help="Name and state of nodes that are down or offline.")
@option("-x", "as_xml", is_flag=True, help="Print XML.")
@option("-o", "offline", is_flag=True, help="Take the nodes offline: gnodes drain.")
@option("-c", "clear", is_flag=True, help="Take the nodes back: gnodes resume.")
@option("-r", "reset", is_flag=True, help="The same as -c.")
@option("-N", "note", default=None, metavar="NOTE", help="With -o: the reason.")
@option("-n", "notes", is_flag=True, help="With -l: show the reasons, too.")
@option("-q", "quiet", is_flag=True, help="No messages on stderr.")
@option("-v", "openpbs", is_flag=True, help="OpenPBS: all attributes of all vnodes.")
@option("-S", "summary", is_flag=True, help="OpenPBS: a line for each node.")
@option("-j", "with_jobs", is_flag=True, help="OpenPBS: jobs and what is free.")
@option("-L", "whole", is_flag=True, help="With -S and -j: do not cut names.")
@option("-F", "form", default="", metavar="json|dsv", help="OpenPBS: JSON or DSV.")
@option("-D", "delimiter", default="|", metavar="TEXT", help="With -F dsv: between fields.")
@option("-H", "hosts", default="", metavar="HOSTS", help="OpenPBS: only these hosts: a,b.")
@option("-C", "comment", default=None, metavar="TEXT", help="OpenPBS: with -o: the reason.")
@option("-s", "server", default="", metavar="SERVER", help="Only this server is accepted.")
@connected
def pbsnodes(  # noqa: C901, PLR0913 - one parameter for each option
    head: HeadClient,
    /,
    *,
    operands: tuple[str, ...],
    brief: bool,
    as_xml: bool,
    offline: bool,
    clear: bool,
    reset: bool,
    note: str | None,
    notes: bool,
    quiet: bool,
    server: str,
    comment: str | None,
    hosts: str,
    as_json: bool,
    **given: "str | bool",
) -> int:
    """List all nodes, or each NODE, with their attributes; take nodes offline (-o) or back (-c)."""
    if notes and not brief:
        raise UsageError("-n requires -l")
    note = note or comment
    operands = (*operands, *filter(None, hosts.split(",")))
    if given["form"] not in {"", "json", "dsv"}:
        raise UsageError(f"-F: unknown format {given['form']!r}", hint="valid: json, dsv")
    if offline or clear or reset:
        action: AnyNodeAction = (
            DrainNode(nodes=operands, reason=note or "pbsnodes -o")
            if offline
            else ResumeNode(nodes=operands)
        )
        if not operands:
            raise UsageError("no node named", hint="pbsnodes -o NODE...")
        return min(1, report_results(head.node_action(action).results, as_json=as_json))
    reply = head.nodes()
    if server and server.lower() != reply.server.lower():
        raise UsageError(f"cannot connect to server {server}")
    wanted, names = _state_wanted(operands) if brief else ("", operands)
    rows, status = _chosen(reply, names, quiet=quiet)
    modes = ("openpbs", "summary", "with_jobs", "form")
    if any(given[mode] for mode in modes) or (_is_openpbs() and not (brief or as_xml)):
        _write_vnodes(rows, head, reply, given)
        return status
    nodes = [(row, attributes_of(row, head, reply.server)) for row in rows]
    if brief:
        for row, attributes in nodes:
            if _matches(attributes["state"], wanted):
                shown_note = attributes.get("note", "") if notes else ""
                sys.stdout.write(_brief(row.name, attributes["state"], shown_note))
    elif as_xml:
        sys.stdout.write(nodes_xml((row.name, attributes) for row, attributes in nodes))
    else:
        for row, attributes in nodes:
            fields = "".join(f"     {name} = {value}\n" for name, value in attributes.items())
            sys.stdout.write(f"{row.name}\n{fields}\n")
    return status


def _is_openpbs() -> bool:
    return spoken().name == OPENPBS


def _write_vnodes(
    rows: Sequence[NodeRow], head: HeadClient, reply: NodeList, given: "dict[str, str | bool]"
) -> None:
    """Print nodes as OpenPBS does: all attributes, or the tables of -S and -j."""
    nodes = [vnodes.Vnode(row, _cpu_slots(row, head, reply.server)) for row in rows]
    summary = bool(given["summary"] or given["with_jobs"])
    if given["form"] == "json":
        version = f"gsched-{VERSION}"
        sys.stdout.write(
            vnodes.document(
                nodes, server=reply.server, version=version, now_s=reply.now_s, summary=summary
            )
        )
    elif given["form"] == "dsv":
        delimiter = str(given["delimiter"])
        sys.stdout.write("".join(vnodes.dsv(node, delimiter) for node in nodes))
    elif summary:
        jobs, whole = bool(given["with_jobs"]), bool(given["whole"])
        sys.stdout.write("".join(vnodes.table(nodes, jobs=jobs, whole=whole)))
    else:
        sys.stdout.write("".join(map(vnodes.text, nodes)))


def _cpu_slots(row: NodeRow, head: HeadClient, server: str) -> list[str]:
    """Return ``12.head/0, 12.head/1``: a word for each CPU that a job has on the node."""
    found: list[str] = []
    for text in _slots(row, head, server):
        span, _, job = text.partition("/")
        first, _, last = span.partition("-")
        found += [f"{job}/{cpu}" for cpu in range(int(first), int(last or first) + 1)]
    return found


def _state_wanted(operands: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the state that ``-l`` names first, and the nodes behind it."""
    if operands and operands[0].lower() in {*_FILTERS, "all", "up"}:
        return operands[0].lower(), operands[1:]
    return "", operands


def _chosen(reply: NodeList, names: Sequence[str], *, quiet: bool) -> tuple[Sequence[NodeRow], int]:
    rows = {row.name: row for row in reply.nodes}
    if not names:
        return reply.nodes, 0
    found: list[NodeRow] = []
    status = 0
    for name in names:
        if name in rows:
            found.append(rows[name])
            continue
        status = 1
        text = f"Unknown node  MSG=cannot locate specified node {name}"
        error: GschedError = UnknownNodeError(text)
        if not quiet:
            print_error(body_of(error), command="pbsnodes")
    return found, status


def node_state(row: NodeRow) -> str:
    """Return Torque's states of a node, separated by commas."""
    states = []
    if row.is_down:
        states.append("down")
    if row.drained or row.problem:
        states.append("offline")
    if not states:
        states.append("job-exclusive" if row.jobs and not row.cpus_free else "free")
    return ",".join(states)


def _matches(state: str, wanted: str) -> bool:
    words = state.split(",")
    if wanted == "all":
        return True
    if wanted == "up":
        return not set(words) & set(_BAD)
    return bool(set(words) & set(_FILTERS.get(wanted, _BAD)))


def _brief(name: str, state: str, note: str) -> str:
    if note:
        return f"{name[:20]:<20} {state[:26]:<26} {note}\n"
    return f"{name[:20]:<20} {state}\n"


def attributes_of(row: NodeRow, head: HeadClient, server: str) -> dict[str, str]:
    """Return a node's attributes in Torque's order."""
    fields = {
        "state": node_state(row),
        "power_state": _POWER.get(row.power, "Running"),
        "np": str(row.cpus),
        "properties": ",".join(row.features),
        "ntype": "cluster",
        "jobs": ",".join(_slots(row, head, server)),
        "status": _status(row),
        "note": " ".join(row.reason.split()),
        "gpus": str(row.gpus) if row.gpus else "",
        "gpu_status": ",".join(f"gpu[{at}]=gpu_type={kind}" for at, kind in _gpus(row)),
    }
    return {name: value for name, value in fields.items() if value}


def _gpus(row: NodeRow) -> Iterable[tuple[int, str]]:
    if len(row.gpu_types) != 1:
        return ()  # which GPU has which type is not in the row
    return ((at, row.gpu_types[0]) for at in range(row.gpus))


def _slots(row: NodeRow, head: HeadClient, server: str) -> list[str]:
    """Return ``0-3/12.head``: the CPUs of the node that each job has, numbered one by one."""
    found: list[str] = []
    first = 0
    for story in head.stories(row.jobs).jobs:
        parts = [part for each in story.attempts[-1:] for part in each.parts]
        cpus = sum(part.cpus for part in parts if part.node == row.name) or 1
        last = first + cpus - 1
        slots = str(first) if cpus == 1 else f"{first}-{last}"
        found.append(f"{slots}/{format_job_id(story.row.id, server)}")
        first = last + 1
    return found


def _status(row: NodeRow) -> str:
    """Return ``opsys=linux,ncpus=…``: what Torque's MOM reports, as far as gnode does."""
    kb = 1024
    fields = {
        "opsys": "linux",
        "ncpus": str(row.cpus),
        "physmem": f"{row.memory_bytes // kb}kb",
        "availmem": f"{row.memory_free_bytes // kb}kb",
        "loadave": f"{row.load.load1:.2f}" if row.load is not None else "",
        "state": node_state(row),
        "rectime": str(int(row.heartbeat_s)) if row.heartbeat_s else "",
    }
    return ",".join(f"{name}={value}" for name, value in fields.items() if value)
