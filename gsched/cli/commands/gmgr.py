"""``gmgr``: create, change, delete and print queues, projects, users and QOS of a running head."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import click
from msgspec import structs

from gsched.cli.common import (
    connected,
    gsched_command,
    is_terminal,
    option,
    print_json,
    print_note,
    printable,
)
from gsched.cli.local.toml import queue_toml
from gsched.cli.queue_changes import (
    Objects,
    Term,
    change_of,
    config_of,
    object_commands,
    object_tables,
    printed,
    read_term,
    stated_attributes,
    text_of,
    words_of,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.config.errors import closest
from gsched.config.objects import KINDS, attributes, path_of
from gsched.config.tables import QUEUE_ATTRIBUTES
from gsched.errors import (
    GschedError,
    HeadUnreachableError,
    InvalidRequestError,
    UnknownQueueError,
    UsageError,
)
from gsched.model.configuration import ObjectKind
from gsched.protocol.api import QueueRow, StatusReply
from gsched.protocol.queues import QueueChange

EPILOG = """\b
Examples:
  gmgr list
  gmgr create night max_walltime_s=12h priority=-10 enabled=true started=true
  gmgr set night allow_groups=staff,ai deny_users+=mallory
  gmgr unset night max_walltime_s
  gmgr set server scheduling=false
  gmgr create project ai shares=3 users=alice:2,bob total.max_gpus=16
  gmgr set user alice max_running=20
  gmgr -c "set queue night started = true"
  gmgr print > queues.txt;  gmgr < queues.txt
  gmgr export >> /etc/gsched/gsched.toml
"""
_AllObjects = Mapping[str, Objects]
_SHOWS = ("list", "print", "export")
_CHANGES = ("create", "set", "unset", "delete")
_NAMED_MOST: Final = 5
_NONE: Final = "; no command was carried out"


@gsched_command("gmgr", epilog=EPILOG)
@option("-n", "--dry-run", is_flag=True, help="Only check the commands.")
@option(
    "-c",
    "--command",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help="Carry out this command, as of qmgr; may be repeated.",
)
@click.argument("words", nargs=-1, metavar="[COMMAND [KIND] [NAME[,...]] [ATTRIBUTE=VALUE...]]")
@connected
def gmgr(
    head: HeadClient,
    *,
    words: tuple[str, ...],
    commands: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Create, change, delete and show queues, projects, users and QOS of the running head.

    The commands are list, print and export, and for operators create, set, unset and delete; the
    kinds are queue (unless another one is given), project, user, qos and server. An attribute has
    the name of its key in gsched.toml, a limit with its table, such as total.max_gpus; += and -=
    change a list. Without a command, commands are read from standard input, a line each; all
    commands of a call are carried out, or none. What is set counts at once, also after a restart
    and whatever the file says; unset lets the file count again.
    """
    if words and commands:
        raise UsageError("-c and a command as arguments", hint=f"omit -c: gmgr {commands[0]}")
    status, objects = head.status(), head.objects().objects
    shown = tuple(words_of(commands[0])) if len(commands) == 1 else words
    if shown and shown[0] in _SHOWS:
        named = () if shown == ("print", "server") else shown[1:]  # all that it serves, as in qmgr
        return _show(_Shown.of(named, status, objects), shown[0], as_json=as_json)
    unit, lines = ("command", commands) if commands else ("line", _lines())
    if words or len(commands) == 1:
        changes = [*_read(" ".join(words) or commands[0], objects)]
    else:
        changes = _read_all(unit, lines, objects)
    if changes:
        _change(head, changes, dry_run=dry_run)
    if as_json:
        print_json({"changes": changes, "dry_run": dry_run})
    return 0


def _change(head: HeadClient, changes: Sequence[QueueChange], *, dry_run: bool) -> None:
    """Have the head carry out all changes, or check them.

    Raises:
        GschedError: it refuses one of them, and so all of them.
    """
    try:
        head.change_queues(changes, dry_run=dry_run)
    except HeadUnreachableError:
        raise
    except GschedError as error:
        if changes[0].where:
            error.message += _NONE
        raise


def _read_all(unit: str, lines: Iterable[str], objects: _AllObjects) -> list[QueueChange]:
    """Return the changes that all commands state; each that states none is told.

    Raises:
        UsageError: there are such.
    """
    changes: list[QueueChange] = []
    wrong: list[tuple[str, UsageError]] = []
    for number, line in enumerate(lines, start=1):
        where = f"{unit} {number}"
        try:
            changes += (structs.replace(each, where=where) for each in _read(line, objects))
        except UsageError as error:
            wrong.append((where, error))
    for where, why in wrong[:-1]:
        print_note(f"{where}: {why.message} ({why.hint})", command="gmgr")
    if wrong:
        where, why = wrong[-1]
        raise UsageError(f"{where}: {why.message}{_NONE}", hint=why.hint)
    return changes


def _lines() -> Iterator[str]:
    if is_terminal(sys.stdin):
        print_note("reading commands, a line each; end with Ctrl-D", command="gmgr")
    yield from sys.stdin


def _read(line: str, objects: _AllObjects) -> Iterator[QueueChange]:
    """Yield the changes that a command states.

    Raises:
        UsageError: it states none.
    """
    words = words_of(line)
    if not words:
        return
    verb, *named = words
    if verb in _SHOWS:
        raise UsageError(f"{verb} among commands that change objects", hint=f"run: gmgr {line}")
    if verb not in _CHANGES:
        known = (*_SHOWS, *_CHANGES)
        near = closest(verb, known) or f"valid: {', '.join(known)}"
        raise UsageError(f"unknown command {verb!r}", hint=near)
    kind, rest = _kind_of(named)
    if not rest:
        raise UsageError(f"{verb}: no {kind} named", hint="see gmgr --help")
    terms = [read_term(word) for word in rest[1:]]
    if not terms and verb in {"set", "unset"}:
        raise UsageError(f"{verb}: no attribute named", hint=_valid(kind))
    yield from _of_objects(verb, kind, rest[0].split(","), terms, objects)


def _kind_of(words: Sequence[str]) -> tuple[ObjectKind, Sequence[str]]:
    """Return the kind that a command names first, and the rest, which begins with a name."""
    for kind in KINDS if len(words) > 1 else ():
        if words[0] == kind == "server":
            return kind, ("", *words[1:])
        if words[0] == kind and "=" not in words[1]:
            return kind, words[1:]
    return "queue", words


def _of_objects(
    verb: str,
    kind: ObjectKind,
    names: Iterable[str],
    terms: Sequence[Term],
    objects: _AllObjects,
) -> Iterator[QueueChange]:
    """Yield the changes of each object.

    Raises:
        UsageError: an attribute cannot be changed so.
    """
    for term in terms:
        _check(verb, kind, term.name, term.operator)
    for name in names:
        if verb == "create" and name in objects[kind]:
            print_note(f"{kind} {printable(name)} exists already", command="gmgr")
        elif verb in {"create", "delete"}:
            yield QueueChange(
                verb="create" if verb == "create" else "delete", kind=kind, queue=name
            )
        for term in terms:
            of = "queue" if term.name == "scheduling" else kind
            yield change_of(name, *term, kind=of)


def _valid(kind: ObjectKind) -> str:
    """Return which attributes a kind has, of many the first."""
    valid = attributes(kind)
    more = len(valid) > _NAMED_MOST
    return f"valid: {', '.join(valid[:_NAMED_MOST])}{', and others: see gmgr(1)' if more else ''}"


def _check(verb: str, kind: ObjectKind, attribute: str, operator: str) -> None:
    """Check that an attribute can be changed so.

    Raises:
        UsageError: it cannot.
    """
    is_known = attribute == "scheduling" if kind == "server" else False
    if not is_known and not path_of(kind, attribute):
        near = closest(attribute, attributes(kind)) or _valid(kind)
        raise UsageError(f"unknown attribute {attribute!r} of a {kind}", hint=near)
    if bool(operator) == (verb == "unset") or verb == "delete":
        named = f"{kind} NAME" if kind != "queue" else "QUEUE"
        form = {"unset": f"unset {named} ATTRIBUTE...", "delete": f"delete {named}"}
        raise UsageError(
            f"{verb}: syntax error at {attribute!r}",
            hint=form.get(verb, f"{verb} {named} ATTRIBUTE=VALUE..."),
        )


class _Shown(NamedTuple):
    """What is shown: queues, their limits, and objects of other kinds.

    Attributes:
        is_all: nothing was named.
    """

    status: StatusReply
    rows: Sequence[QueueRow]
    limits: Objects
    others: Mapping[ObjectKind, Objects]
    is_all: bool

    @classmethod
    def of(cls, words: Sequence[str], status: StatusReply, objects: _AllObjects) -> "_Shown":
        """Return what the words name; without any it is all.

        Raises:
            UnknownQueueError, InvalidRequestError: there is no such object.
        """
        limits = {
            queue: {name: value for name, value in values.items() if name not in QUEUE_ATTRIBUTES}
            for queue, values in objects["queue"].items()
        }
        rows = {row.name: row for row in status.queue_rows}
        kind = next((each for each in KINDS if words[:1] == (each,)), None)
        names = [name for word in words[kind is not None :] for name in word.split(",")]
        known = objects[kind or "queue"]
        for name in names:
            if name not in known and (kind or "queue") == "queue":
                raise UnknownQueueError(
                    f"unknown queue {name!r}", hint=f"queues: {', '.join(rows)}"
                )
            if name not in known:
                raise InvalidRequestError(
                    f"unknown {kind} {name!r}", hint=f"known: {', '.join(known) or 'none'}"
                )
        if kind in {None, "queue"} and (names or kind):
            return cls(status, [rows[name] for name in names or rows], limits, {}, is_all=False)
        if kind is not None:
            named = {name: known[name] for name in names or known}
            return cls(status, (), limits, {kind: named}, is_all=False)
        others: dict[ObjectKind, Objects] = {
            each: objects[each] for each in KINDS if each != "queue"
        }
        return cls(status, list(rows.values()), limits, others, is_all=True)


def _show(shown: _Shown, verb: str, *, as_json: bool) -> int:
    status, rows, others = shown.status, shown.rows, shown.others
    if as_json:
        limits = {row.name: shown.limits[row.name] for row in rows}
        found = {"scheduling": status.scheduling, "queues": rows, "limits": limits}
        print_json(found | {"objects": others})
    elif verb == "list":
        print("\n".join(_listed(shown)).lstrip("\n"))
    elif verb == "print":
        lines = [*printed(rows)]
        lines += object_commands("queue", {row.name: shown.limits[row.name] for row in rows})
        lines += [line for kind, each in others.items() for line in object_commands(kind, each)]
        if shown.is_all:
            lines.append(f"set server scheduling={text_of(status.scheduling)}")
        print("\n".join(lines))
    else:
        print("".join(_exported(shown)), end="")
        if rows and not status.scheduling:
            raise InvalidRequestError(
                "scheduling is stopped, which the file cannot state",
                hint="gmgr print states it, too",
            )
    return 0


def _exported(shown: _Shown) -> Iterator[str]:
    policy = shown.status.policy if shown.status.policy in {"balance", "fifo"} else ""
    for at, row in enumerate(shown.rows):
        yield "\n" * bool(at) + queue_toml(config_of(row, policy))
        limits = {row.name: shown.limits[row.name]}
        yield from (f"{line}\n" for line in object_tables("queue", limits))
    of_site = [
        line
        for kind in ("server", "user")
        for line in object_tables(kind, shown.others.get(kind, {}))
    ]
    if of_site:
        yield "\n".join(["", "[limits]", *of_site, ""])
    for kind in ("project", "qos"):
        yield from (f"{line}\n" for line in object_tables(kind, shown.others.get(kind, {})))


def _listed(shown: _Shown) -> Iterator[str]:
    status = shown.status
    if shown.rows or "server" in shown.others:
        yield f"scheduling = {text_of(status.scheduling)}"
    for row in shown.rows:
        default = "  # the default queue" if row.name == status.queues[0] else ""
        yield f"\nqueue {row.name}{default}"
        yield f"    jobs = {sum(row.jobs.values())}"
        for name, text in stated_attributes(row):
            yield f"    {name} = {text}"
        for name, value in shown.limits[row.name].items():
            yield f"    {name} = {text_of(value, name)}"
    for kind, objects in shown.others.items():
        for name, values in objects.items():
            if values or name:
                yield f"\n{kind} {name}".rstrip()
            yield from (f"    {each} = {text_of(value, each)}" for each, value in values.items())


main = runner(gmgr)

if __name__ == "__main__":
    main()
