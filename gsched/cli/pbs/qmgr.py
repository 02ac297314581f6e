"""``qmgr``: list server, queues and nodes; set nodes offline and online.

Queues and the server are configured in gsched.toml, which the head reads at its start, so that
``create``, ``delete`` and ``set`` of them are refused with the key to change.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import click

from gsched.cli.common import connected, gsched_command, is_terminal, print_error
from gsched.cli.dialect import spoken
from gsched.cli.pbs.pbsnodes import attributes_of
from gsched.cli.pbs.queues import queue_attributes, server_attributes
from gsched.client import Head, error_from
from gsched.errors import (
    GschedError,
    InvalidRequestError,
    UnknownNodeError,
    UnknownQueueError,
    UsageError,
)
from gsched.model.units import format_duration
from gsched.protocol.actions import AnyNodeAction, DrainNode, ResumeNode

_VERBS: Final = ("active", "create", "delete", "help", "list", "print", "quit", "set", "unset")
_OBJECTS: Final = ("node", "queue", "server")
_OPERATORS: Final = ("+=", "-=", "=")


class _Order(NamedTuple):
    """One command of qmgr: a verb, the kind and names of its objects, and the rest as text."""

    verb: str
    kind: str
    names: tuple[str, ...]
    rest: str


@gsched_command("qmgr")
@click.argument("servers", nargs=-1, metavar="[SERVER...]")
@click.option("-c", "command", default=None, metavar="COMMAND", help="Carry out one command.")
@click.option("-e", "echo", is_flag=True, help="Print each command before its result.")
@click.option("-n", "check", is_flag=True, help="Only check the syntax.")
@click.option("-z", "quiet", is_flag=True, help="No messages on stderr.")
@click.option("-a", "abort", is_flag=True, help="End at the first error.")
@connected
def qmgr(  # noqa: PLR0913 - one parameter for each option
    head: Head,
    /,
    *,
    servers: tuple[str, ...],
    command: str | None,
    echo: bool,
    check: bool,
    quiet: bool,
    abort: bool,
    as_json: bool,
) -> int:
    """Carry out commands of Torque's queue manager, from -c or stdin.

    list, print and set node NAME state = offline work. Queues and the server are configured in
    gsched.toml.
    """
    del as_json
    own = head.status().server
    for server in servers:
        if server.lower() != own.lower():
            raise UsageError(f"cannot connect to server {server}")
    result = 0
    for text in _commands(command):
        if echo:
            print(text)
        try:
            order = _read(text)
            if order is not None and not check:
                if order.verb == "quit":
                    break
                _CARRIED_OUT[order.verb](head, order)
        except GschedError as error:
            if not quiet:
                print_error(error, command="qmgr")
            result = result or spoken().exit_code(error)
            if abort:
                break
    return result


def _commands(command: str | None) -> Iterator[str]:
    """Yield the commands: lines, split at ``;``, continued by a backslash at the end."""
    source: Sequence[str] | Iterator[str] = [command] if command is not None else _lines()
    held = ""
    for line in source:
        text = held + line.rstrip("\n")
        if text.endswith("\\"):
            held = text[:-1] + " "
            continue
        held = ""
        for part in text.split(";"):
            bare = part.strip()
            if bare and not bare.startswith("#"):
                yield bare


def _lines() -> Iterator[str]:
    while True:
        if is_terminal(sys.stdin):
            sys.stdout.write("Qmgr: ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def _read(text: str) -> _Order | None:
    """Return what a command says; words may be shortened, as ``l s`` for ``list server``.

    Raises:
        UsageError: it cannot be read.
    """
    words = text.split(maxsplit=3)
    verb = _word(words[0], _VERBS, "directive")
    if verb in {"quit", "help"}:
        return _Order(verb, "", (), "")
    if len(words) < 2:
        raise UsageError("syntax error: no object named", hint="server, queue or node")
    kind = _word(words[1], _OBJECTS, "object type")
    if verb in {"list", "print", "active"}:
        names = tuple(words[2].split(",")) if len(words) > 2 else ()
        return _Order(verb, kind, names, "")
    rest = words[2:]
    if kind == "server" and (not rest or any(each in " ".join(rest) for each in _OPERATORS)):
        return _Order(verb, kind, (), " ".join(rest))
    if not rest:
        raise UsageError(f"syntax error: no {kind} named")
    return _Order(verb, kind, tuple(rest[0].split(",")), " ".join(rest[1:]))


def _word(text: str, known: Sequence[str], what: str) -> str:
    found = [each for each in known if each.startswith(text.lower())]
    if not found:
        raise UsageError(f"illegal {what}: {text}", hint=f"valid: {', '.join(known)}")
    return found[0]


def _help(_head: Head, _order: _Order) -> None:
    print(f"Commands: {', '.join(_VERBS)}. Objects: {', '.join(_OBJECTS)}. See qmgr(1).")


def _list(head: Head, order: _Order) -> None:
    """Print attributes, as ``list server`` of Torque."""
    status = head.status()
    if order.kind == "server":
        body = list(server_attributes(status, openpbs=False))[1:]
        sys.stdout.write(f"Server {status.server}\n{_indented(body)}\n")
    elif order.kind == "queue":
        for name in _queues(order, status.queues):
            row = next(each for each in status.queue_rows if each.name == name)
            body = list(queue_attributes(row, openpbs=False))[1:]
            sys.stdout.write(f"Queue {name}\n{_indented(body)}\n")
    else:
        reply = head.nodes()
        rows = {row.name: row for row in reply.nodes}
        for name in order.names or tuple(rows):
            if name.lstrip("@") not in rows:
                raise UnknownNodeError(f"unknown node {name!r}", hint="see pbsnodes -a")
            attributes = attributes_of(rows[name], head, reply.server)
            fields = "".join(f"\t{key} = {value}\n" for key, value in attributes.items())
            sys.stdout.write(f"Node {name}\n{fields}\n")


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"\t{line.strip()}\n" for line in lines if line.strip())


def _queues(order: _Order, known: Sequence[str]) -> Sequence[str]:
    for name in order.names:
        if name not in known:
            raise UnknownQueueError(f"no queue {name!r}", hint=f"queues here: {', '.join(known)}")
    return order.names or known


def _print(head: Head, order: _Order) -> None:
    """Print commands that would make these objects in Torque."""
    status = head.status()
    if order.kind in {"server", "queue"}:
        for name in _queues(order if order.kind == "queue" else _ALL, status.queues):
            row = next(each for each in status.queue_rows if each.name == name)
            sets = ["queue_type = Execution", f"Priority = {row.priority}"]
            if row.max_walltime_s:
                sets.append(f"resources_max.walltime = {format_duration(row.max_walltime_s)}")
            if row.default_walltime_s:
                default = format_duration(row.default_walltime_s)
                sets.append(f"resources_default.walltime = {default}")
            sets += [f"enabled = {row.enabled}", f"started = {row.started}"]
            sys.stdout.write(f"create queue {name}\n")
            sys.stdout.write("".join(f"set queue {name} {each}\n" for each in sets))
    if order.kind == "server":
        sys.stdout.write(f"set server scheduling = {not status.safe_mode}\n")
        sys.stdout.write(f"set server default_queue = {next(iter(status.queues), '')}\n")
    if order.kind == "node":
        for node in head.nodes().nodes:
            if not order.names or node.name in order.names:
                sys.stdout.write(f"create node {node.name}\n")
                sys.stdout.write(f"set node {node.name} np = {node.cpus}\n")


_ALL: Final = _Order("print", "queue", (), "")


def _change(head: Head, order: _Order) -> None:
    """Carry out ``set node NAME state = offline`` and the like; refuse all other changes.

    Raises:
        InvalidRequestError: only the configuration can change this.
    """
    if order.kind != "node" or order.verb in {"create", "delete"}:
        raise InvalidRequestError(
            f"{order.verb} {order.kind}: {_WHERE[order.kind]}", hint="see gsched.toml(5)"
        )
    attribute, operator, value = _assignment(order.rest)
    if attribute == "note":
        raise InvalidRequestError(
            "set node note: a note is kept only with a drain",
            hint='pbsnodes -o -N "NOTE" NODE',
        )
    if attribute != "state":
        raise InvalidRequestError(
            f"set node {attribute}: {_WHERE['node']}", hint="see gsched.toml(5), [node]"
        )
    offline = (operator == "-=") != (value.lower() == "offline") and value.lower() in {
        "offline",
        "free",
        "down",
    }
    offline = offline and order.verb == "set"
    asked: AnyNodeAction = (
        DrainNode(nodes=order.names, reason="qmgr: state = offline")
        if offline
        else ResumeNode(nodes=order.names)
    )
    for each in head.node_action(asked).results:
        if each.error is not None:
            raise error_from(each.error)


_WHERE: Final = {
    "server": "the server is configured in gsched.toml",
    "queue": "queues are configured in gsched.toml, [[queue]]",
    "node": "nodes register themselves",
}


def _assignment(text: str) -> tuple[str, str, str]:
    """Return attribute, operator and value; a value may be in quotation marks."""
    for operator in _OPERATORS:
        name, found, value = text.partition(operator)
        if found:
            words = shlex.split(value)
            return name.strip(), operator, words[0] if words else ""
    return text.strip(), "", ""


def _nothing(_head: Head, _order: _Order) -> None:
    """``active`` names the objects for later commands; there is one server only."""


_CARRIED_OUT: Final[dict[str, Callable[[Head, _Order], None]]] = {
    "active": _nothing,
    "create": _change,
    "delete": _change,
    "help": _help,
    "list": _list,
    "print": _print,
    "set": _change,
    "unset": _change,
}
