"""``qmgr``: list server, queues and nodes; change queues, scheduling, and the state of nodes.

What a running head can change counts at once and after a restart. All else is configured in
gsched.toml, which the head reads at its start; it is refused with the key to change.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import click

from gsched.cli.common import (
    connected,
    gsched_command,
    is_terminal,
    option,
    print_error,
    print_note,
)
from gsched.cli.dialect import spoken
from gsched.cli.pbs.pbsnodes import attributes_of
from gsched.cli.pbs.queues import queue_attributes, server_attributes
from gsched.cli.queue_changes import change_of
from gsched.client import HeadClient
from gsched.errors import (
    GschedError,
    InvalidRequestError,
    UnknownNodeError,
    UnknownQueueError,
    UsageError,
)
from gsched.head_calls import error_from
from gsched.model.units import format_duration
from gsched.protocol.actions import AnyNodeAction, DrainNode, ResumeNode
from gsched.protocol.api import QueueRow, StatusReply
from gsched.protocol.queues import QueueChange

_VERBS: Final = ("active", "create", "delete", "help", "list", "print", "quit", "set", "unset")
_OBJECTS: Final = ("node", "queue", "server")
_OPERATORS: Final = ("+=", "-=", "=")


class _QmgrCommand(NamedTuple):
    """One command of qmgr: a verb, the kind and names of its objects, and the rest as text."""

    verb: str
    kind: str
    names: tuple[str, ...]
    rest: str


@gsched_command("qmgr")
@click.argument("servers", nargs=-1, metavar="[SERVER...]")
@option("-c", "command", default=None, metavar="COMMAND", help="Carry out one command.")
@option("-e", "echo", is_flag=True, help="Print each command before its result.")
@option("-n", "check", is_flag=True, help="Only check the syntax.")
@option("-z", "quiet", is_flag=True, help="No messages on stderr.")
@option("-a", "abort", is_flag=True, help="End at the first error.")
@connected
def qmgr(  # noqa: PLR0913 - one parameter for each option
    head: HeadClient,
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

    list and print server, queues and nodes; create and delete queues; set enabled, started,
    resources_max.walltime and resources_default.walltime of a queue, scheduling of the server, and
    state of a node. All else is configured in gsched.toml.
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


def _read(text: str) -> _QmgrCommand | None:
    """Return what a command says; words may be shortened, as ``l s`` for ``list server``.

    Raises:
        UsageError: it cannot be read.
    """
    words = text.split(maxsplit=3)
    verb = _word(words[0], _VERBS, "directive")
    if verb in {"quit", "help"}:
        return _QmgrCommand(verb, "", (), "")
    if len(words) < 2:
        raise UsageError("syntax error: no object named", hint="server, queue or node")
    kind = _word(words[1], _OBJECTS, "object type")
    if verb in {"list", "print", "active"}:
        names = tuple(words[2].split(",")) if len(words) > 2 else ()
        return _QmgrCommand(verb, kind, names, "")
    rest = words[2:]
    if kind == "server" and (not rest or any(each in " ".join(rest) for each in _OPERATORS)):
        return _QmgrCommand(verb, kind, (), " ".join(rest))
    if not rest:
        raise UsageError(f"syntax error: no {kind} named")
    return _QmgrCommand(verb, kind, tuple(rest[0].split(",")), " ".join(rest[1:]))


def _word(text: str, known: Sequence[str], what: str) -> str:
    found = [each for each in known if each.startswith(text.lower())]
    if not found:
        raise UsageError(f"illegal {what}: {text}", hint=f"valid: {', '.join(known)}")
    return found[0]


def _help(_head: HeadClient, _order: _QmgrCommand) -> None:
    print(f"Commands: {', '.join(_VERBS)}. Objects: {', '.join(_OBJECTS)}. See qmgr(1).")


def _list(head: HeadClient, order: _QmgrCommand) -> None:
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


def _queues(order: _QmgrCommand, known: Sequence[str]) -> Sequence[str]:
    for name in order.names:
        if name not in known:
            raise UnknownQueueError(f"no queue {name!r}", hint=f"queues here: {', '.join(known)}")
    return order.names or known


def _settings_of(row: QueueRow) -> list[str]:
    """Return the assignments that make a queue what it is."""
    sets = ["queue_type = Execution", f"Priority = {row.priority}"]
    if row.max_walltime_s:
        sets.append(f"resources_max.walltime = {format_duration(row.max_walltime_s)}")
    if row.default_walltime_s:
        default = format_duration(row.default_walltime_s)
        sets.append(f"resources_default.walltime = {default}")
    for kind, names in (("user", row.allow_users), ("group", row.allow_groups)):
        if names:
            sets += [f"acl_{kind}s = {','.join(names)}", f"acl_{kind}_enable = True"]
    sets += [f"enabled = {row.enabled}", f"started = {row.started}"]
    return sets


def _print(head: HeadClient, order: _QmgrCommand) -> None:
    """Print commands that would make these objects in Torque."""
    status = head.status()
    if order.kind in {"server", "queue"}:
        for name in _queues(order if order.kind == "queue" else _ALL, status.queues):
            row = next(each for each in status.queue_rows if each.name == name)
            sets = _settings_of(row)
            sys.stdout.write(f"create queue {name}\n")
            sys.stdout.write("".join(f"set queue {name} {each}\n" for each in sets))
    if order.kind == "server":
        sys.stdout.write(f"set server scheduling = {status.scheduling}\n")
        sys.stdout.write(f"set server default_queue = {next(iter(status.queues), '')}\n")
    if order.kind == "node":
        for node in head.nodes().nodes:
            if not order.names or node.name in order.names:
                sys.stdout.write(f"create node {node.name}\n")
                sys.stdout.write(f"set node {node.name} np = {node.cpus}\n")


_ALL: Final = _QmgrCommand("print", "queue", (), "")


def _change(head: HeadClient, order: _QmgrCommand) -> None:
    """Carry out ``create``, ``delete``, ``set`` and ``unset``.

    Raises:
        InvalidRequestError: only the configuration can change this.
    """
    if order.kind == "node":
        _change_nodes(head, order)
    elif order.kind == "queue" and order.verb in {"create", "delete"}:
        _make_queues(head, order)
    else:
        _set(head, order)


def _make_queues(head: HeadClient, order: _QmgrCommand) -> None:
    """Create or delete queues; ``create queue X a = b, c = d`` sets attributes, too."""
    verb: Literal["create", "delete"] = "create" if order.verb == "create" else "delete"
    known = head.status().queues
    for name in order.names:
        if verb == "create" and name in known:
            print_note(f"queue {name} exists already", command="qmgr")
        else:
            head.change_queues([QueueChange(verb=verb, queue=name)])
    if verb == "create" and order.rest:
        for term in order.rest.split(","):
            _set(head, order._replace(verb="set", rest=term.strip()))


def _set(head: HeadClient, order: _QmgrCommand) -> None:
    """Set or unset an attribute of queues or of the server."""
    name, operator, value = _assignment(order.rest)
    if order.verb == "set" and (not operator or (order.kind == "server" and operator != "=")):
        raise UsageError(f"syntax error: {order.rest}", hint="set queue NAME ATTRIBUTE = VALUE")
    if (of_list := _SWITCHES.get(name.lower())) and order.kind == "queue":
        if value.lower() in {"true", "t", "1", "y"}:
            return  # a list that has names counts
        name, operator, value = of_list, "=", ""
    status = head.status()
    names = ("",) if order.kind == "server" else _queues(order, status.queues)
    for queue in names:
        if order.verb == "set" and _is_so(name, value, status):
            continue
        attribute = _CHANGEABLE[order.kind].get(name.lower())
        if attribute is None:
            key = _CONFIGURED.get((order.kind, name.lower()), f"see {_WHERE[order.kind]}")
            raise InvalidRequestError(
                f"{order.verb} {order.kind} {name}: a running head cannot change it: {key}"
            )
        sign = operator if order.verb == "set" else ""
        head.change_queues([change_of(queue, attribute, sign, value)])


def _is_so(name: str, value: str, status: StatusReply) -> bool:
    """Return whether an attribute has a value already that only the configuration can change."""
    so = {"queue_type": ("execution", "e"), "default_queue": (next(iter(status.queues), ""),)}
    return value.lower() in so.get(name.lower(), ())


def _change_nodes(head: HeadClient, order: _QmgrCommand) -> None:
    """Carry out ``set node NAME state = offline`` and the like; refuse all other changes.

    Raises:
        InvalidRequestError: only the configuration can change this.
    """
    if order.verb in {"create", "delete"}:
        raise InvalidRequestError(
            f"{order.verb} node: {_WHERE['node']}",
            hint="start gnode on the machine; gnodes remove NODE forgets one",
        )
    attribute, operator, value = _assignment(order.rest)
    action: AnyNodeAction
    if attribute in {"note", "comment"}:
        drained = {row.name for row in head.nodes().nodes if row.drained}
        if not set(order.names) <= drained or order.verb != "set":
            raise InvalidRequestError(
                f"{order.verb} node {attribute}: a note is kept only with a drain",
                hint='pbsnodes -o -N "NOTE" NODE',
            )
        action = DrainNode(nodes=order.names, reason=value)
    elif attribute != "state":
        raise InvalidRequestError(
            f"set node {attribute}: {_WHERE['node']}", hint="see gsched.toml(5), [node]"
        )
    else:
        offline = (operator == "-=") != (value.lower() == "offline")
        offline = offline and value.lower() in {"offline", "free", "down"} and order.verb == "set"
        action = (
            DrainNode(nodes=order.names, reason="qmgr: state = offline")
            if offline
            else ResumeNode(nodes=order.names)
        )
    for each in head.node_action(action).results:
        if each.error is not None:
            raise error_from(each.error)


_WHERE: Final = {
    "server": "gsched.toml(5), [head] and [limits]",
    "queue": "gsched.toml(5), [[queue]]",
    "node": "nodes register themselves",
}
#: What a running head can change, by the names of PBS.
_CHANGEABLE: Final = {
    "server": {"scheduling": "scheduling"},
    "queue": {
        "enabled": "enabled",
        "started": "started",
        "resources_max.walltime": "max_walltime_s",
        "resources_default.walltime": "default_walltime_s",
        "priority": "priority",
        "acl_users": "allow_users",
        "acl_groups": "allow_groups",
    },
}
#: Whether a list counts, by the names of PBS: an empty one does not.
_SWITCHES: Final = {"acl_user_enable": "acl_users", "acl_group_enable": "acl_groups"}
#: Where else an attribute is configured.
_CONFIGURED: Final = {
    ("queue", "max_running"): "gsched has no limit of the running jobs of a queue",
    ("queue", "max_user_run"): "gsched has no limit of the running jobs of a user",
    ("queue", "max_queuable"): "change max_queued_per_user in [limits] of gsched.toml",
    ("server", "default_queue"): "the first [[queue]] of gsched.toml is the default one",
    ("server", "managers"): "change operators in [head] of gsched.toml",
    ("server", "operators"): "change operators in [head] of gsched.toml",
    ("server", "node_fail_requeue"): "change node_timeout_s in [head] of gsched.toml",
}


def _assignment(text: str) -> tuple[str, str, str]:
    """Return attribute, operator and value; a value may be in quotation marks."""
    for operator in _OPERATORS:
        name, found, value = text.partition(operator)
        if found:
            words = shlex.split(value)
            return name.strip(), operator, words[0] if words else ""
    return text.strip(), "", ""


def _nothing(_head: HeadClient, _order: _QmgrCommand) -> None:
    """``active`` names the objects for later commands; there is one server only."""


_CARRIED_OUT: Final[dict[str, Callable[[HeadClient, _QmgrCommand], None]]] = {
    "active": _nothing,
    "create": _change,
    "delete": _change,
    "help": _help,
    "list": _list,
    "print": _print,
    "set": _change,
    "unset": _change,
}
