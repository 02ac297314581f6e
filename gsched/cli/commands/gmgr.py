"""``gmgr``: create, change, delete and print queues of a running head."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import click

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
    Term,
    change_of,
    config_of,
    printed,
    read_term,
    stated_attributes,
    text_of,
    words_of,
)
from gsched.cli.running import runner
from gsched.client import HeadClient
from gsched.config.errors import closest
from gsched.config.tables import QUEUE_ATTRIBUTES
from gsched.errors import InvalidRequestError, UnknownQueueError, UsageError
from gsched.protocol.api import QueueRow, StatusReply
from gsched.protocol.queues import QueueChange

EPILOG = """\b
Examples:
  gmgr list
  gmgr create night max_walltime_s=12h priority=-10 enabled=true started=true
  gmgr set night allow_groups=staff,ai deny_users+=mallory
  gmgr unset night max_walltime_s
  gmgr set server scheduling=false
  gmgr print > queues.txt;  gmgr < queues.txt
  gmgr export >> /etc/gsched/gsched.toml
"""
_SHOWS = ("list", "print", "export")
_CHANGES = ("create", "set", "unset", "delete")


@gsched_command("gmgr", epilog=EPILOG)
@option("-n", "--dry-run", is_flag=True, help="Only check the commands.")
@click.argument("words", nargs=-1, metavar="[COMMAND [QUEUE[,...]] [ATTRIBUTE=VALUE...]]")
@connected
def gmgr(head: HeadClient, *, words: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Create, change, delete and show queues of the running head.

    The commands are list, print and export, and for operators create, set, unset and delete. An
    attribute has the name of its key in [[queue]] of gsched.toml; += and -= change a list. Without
    a command, commands are read from standard input, a line each, and all of them are carried
    out, or none. What is set counts at once, also after a restart and whatever the file says;
    unset lets the file count again.
    """
    status = head.status()
    if words and words[0] in _SHOWS:
        return _show(status, words[0], _names(words[1:], status), as_json=as_json)
    lines = [" ".join(words)] if words else _lines()
    changes = [change for line in lines for change in _read(line, status)]
    if changes and not dry_run:
        head.change_queues(changes)
    if as_json:
        print_json({"changes": changes, "dry_run": dry_run})
    return 0


def _lines() -> Iterator[str]:
    if is_terminal(sys.stdin):
        print_note("reading commands, a line each; end with Ctrl-D", command="gmgr")
    yield from sys.stdin


def _read(line: str, status: StatusReply) -> Iterator[QueueChange]:
    """Yield the changes that a command states.

    Raises:
        UsageError: it states none.
    """
    words = words_of(line)
    if not words:
        return
    verb, *rest = words
    if verb not in _CHANGES:
        known = (*_SHOWS, *_CHANGES)
        near = closest(verb, known) or f"valid: {', '.join(known)}"
        raise UsageError(f"unknown command {verb!r}", hint=near)
    if len(rest) > 1 and rest[0] == "queue" and "=" not in rest[1]:
        rest = rest[1:]
    if not rest:
        raise UsageError(f"{verb}: no queue named", hint="see gmgr --help")
    terms = [read_term(word) for word in rest[1:]]
    if not terms and verb in {"set", "unset"}:
        valid = ", ".join(QUEUE_ATTRIBUTES)
        raise UsageError(f"{verb}: no attribute named", hint=f"valid: {valid}")
    if rest[0] == "server" and terms and all(term.name == "scheduling" for term in terms):
        yield from (change_of("", *term) for term in terms)
    else:
        yield from _of_queues(verb, rest[0].split(","), terms, status)


def _of_queues(
    verb: str, queues: Iterable[str], terms: Sequence[Term], status: StatusReply
) -> Iterator[QueueChange]:
    """Yield the changes of each queue.

    Raises:
        UsageError: an attribute cannot be changed so.
    """
    for term in terms:
        _check(verb, term.name, term.operator)
    for queue in queues:
        if verb == "create" and queue in status.queues:
            print_note(f"queue {printable(queue)} exists already", command="gmgr")
        elif verb in {"create", "delete"}:
            yield QueueChange(verb="create" if verb == "create" else "delete", queue=queue)
        yield from (change_of(queue, *term) for term in terms)


def _check(verb: str, attribute: str, operator: str) -> None:
    """Check that an attribute can be changed so.

    Raises:
        UsageError: it cannot.
    """
    if attribute not in QUEUE_ATTRIBUTES:
        near = closest(attribute, QUEUE_ATTRIBUTES) or f"valid: {', '.join(QUEUE_ATTRIBUTES)}"
        raise UsageError(f"unknown attribute {attribute!r}", hint=near)
    if bool(operator) == (verb == "unset") or verb == "delete":
        form = {"unset": "unset QUEUE ATTRIBUTE...", "delete": "delete QUEUE"}
        raise UsageError(
            f"{verb}: syntax error at {attribute!r}",
            hint=form.get(verb, f"{verb} QUEUE ATTRIBUTE=VALUE..."),
        )


def _names(words: Sequence[str], status: StatusReply) -> Sequence[QueueRow]:
    rows = {row.name: row for row in status.queue_rows}
    if words[:1] == ("queue",):
        words = words[1:]
    names = [name for word in words for name in word.split(",")]
    for name in names:
        if name not in rows:
            raise UnknownQueueError(f"unknown queue {name!r}", hint=f"queues: {', '.join(rows)}")
    return [rows[name] for name in names or rows]


def _show(status: StatusReply, verb: str, rows: Sequence[QueueRow], *, as_json: bool) -> int:
    if as_json:
        print_json({"scheduling": status.scheduling, "queues": rows})
    elif verb == "list":
        print("\n".join(_listed(rows, status)))
    elif verb == "print":
        print("\n".join(printed(rows)))
        if len(rows) == len(status.queue_rows):
            print(f"set server scheduling={text_of(status.scheduling)}")
    else:
        policy = status.policy if status.policy in {"balance", "fifo"} else ""
        print("\n".join(queue_toml(config_of(row, policy)) for row in rows), end="")
        if not status.scheduling:
            raise InvalidRequestError(
                "scheduling is stopped, which the file cannot state",
                hint="gmgr print states it, too",
            )
    return 0


def _listed(rows: Iterable[QueueRow], status: StatusReply) -> Iterator[str]:
    yield f"scheduling = {text_of(status.scheduling)}"
    for row in rows:
        default = "  # the default queue" if row.name == status.queues[0] else ""
        yield f"\nqueue {row.name}{default}"
        yield f"    jobs = {sum(row.jobs.values())}"
        for name, text in stated_attributes(row):
            yield f"    {name} = {text}"


main = runner(gmgr)

if __name__ == "__main__":
    main()
