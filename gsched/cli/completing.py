"""Shell completion: what a command answers when a shell asks it, in place of running.

`gsched.cli.common.run` imports this module only when the shell's request is in the environment. The
shell sets ``_GSUB_COMPLETE`` (each command has its own such name) and

* ``COMP_LINE``: the command line up to the cursor;
* ``COMP_WORD``: in bash, the part of the last word that bash would replace. bash also breaks
  words at ``=`` and ``:``.

The answer has a line for each candidate: kind, value and description between TABs. The kinds are
``plain``; ``open``, after which no blank belongs; ``file``, ``dir`` and ``command``, for which the
shell lists what there is. The scripts for the shells are in `gsched.cli.local.completion`.

Completion prints no error, and a head that does not answer within LIMIT_S costs the user the
candidates and nothing else.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string
from msgspec import structs

from gsched.cli.show.usage import GROUPS
from gsched.client import HeadClient
from gsched.config.environment import environment, full_environment
from gsched.errors import GschedError
from gsched.model.ids import short_job_id, submitted_number
from gsched.model.states import HoldKind, JobState
from gsched.protocol.job_rows import JobRow

LIMIT_S: Final = 1.0  # from the import of this module; a person waits at the keyboard
NEWEST: Final = 50  # so many past jobs are offered
#: Values come from the head, and other users had a hand in them. The shell puts them on the command
#: line as they are: a name that the shell would read as more than a word is not offered.
_SAFE: Final = re.compile(r"[A-Za-z0-9._:=,@+/%-]+")
_OPEN_ENDS: Final = ("=", ":", ",")

Found = Iterable[CompletionItem[str]]
Source = Callable[[click.Context, str], Found]

_DELETED: Final = frozenset({JobState.DONE, JobState.EXITING})
_ALIVE: Final = frozenset(JobState) - _DELETED
#: The states of jobs that are offered to each command; the others take every unfinished job.
_STATES: Final[dict[str, frozenset[JobState]]] = {
    "gdel": _ALIVE,
    "gmigrate": frozenset({JobState.RUNNING}),
    "grerun": frozenset({JobState.RUNNING}),
    "gmsg": frozenset({JobState.RUNNING}),
    "grls": frozenset({JobState.HELD}),
    "gsig": frozenset({JobState.RUNNING}),
    "gshell": frozenset({JobState.RUNNING}),
}
_PAST: Final = frozenset({"ghist", "gpeek", "gseff"})  # these also take jobs that have ended
_RESOURCES: Final = (
    *("nodes=", "ncpus=", "gpus=", "mem=", "walltime=", "select=", "place=", "procs=", "pmem="),
)


def answer(command: click.Command, variable: str) -> NoReturn:
    """Print the candidates for the command line in the environment, and end this process."""
    if not environment("COMP_LINE"):
        os._exit(1)  # another script than ours asks, for an answer in another format
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        text = _Complete(command, {}, command.name or "", variable).complete()
        sys.stdout.write(text)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - nobody at a half-written command line wants to hear of it
        os._exit(1)
    os._exit(0)


class _TooLateError(Exception):
    """LIMIT_S are over."""


def _give_up(*_: object) -> None:
    raise _TooLateError


class _Complete(ShellComplete):
    """The answer in our own format, with candidates from `_SOURCES`."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words behind the command's name, and the one to be completed."""
        line = environment("COMP_LINE")
        words = split_arg_string(line)
        if not words or line[-1:].isspace():
            words.append("")
        return words[1:-1], words[-1] if len(words) > 1 else ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what fits; for ``--name=value`` the option's name is put before each value."""
        _prepare(self.cli, args)
        found = super().get_completions(args, incomplete)
        name, equals, _ = incomplete.partition("=")
        if equals and name.startswith("--"):
            for item in found:
                item.value = f"{name}={item.value}"
        return _trimmed(found, incomplete, environment("COMP_WORD", incomplete))

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return a line without its end."""
        kind = item.type
        if kind == "plain" and item.value.endswith(_OPEN_ENDS):
            kind = "open"
        words = "".join(each if each.isprintable() else " " for each in item.help or "")
        return f"{kind}\t{item.value}\t{words}\n"

    def complete(self) -> str:
        """Return all lines."""
        items = self.get_completions(*self.get_completion_args())
        return "".join(
            self.format_completion(item)
            for item in items
            if item.type != "plain" or _SAFE.fullmatch(item.value)
        )


def _trimmed(
    found: list[CompletionItem[str]], word: str, replaced: str
) -> list[CompletionItem[str]]:
    """Return the candidates without the part of the word that bash keeps."""
    if replaced != word and word.endswith(replaced):
        for item in found:
            item.value = item.value[len(word) - len(replaced) :]
    return found


def _prepare(command: click.Command, args: list[str]) -> None:
    """Give each parameter of the command, or of the sub-command named, its source of candidates."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        chosen = next(filter(None, (command.get_command(context, word) for word in args)), None)
        if chosen is not None:
            _prepare(chosen, args)
    rows = _of_rows(command.name) if command.name in {"gsub", "galter"} else {}
    for parameter in command.params:
        name = parameter.name or ""
        source = rows.get(name) or _SOURCES.get((command.name or "", name))
        source = source or _SOURCES.get(("", name))
        if source is not None and not getattr(parameter, "is_flag", False):
            parameter.type = _From(source)


class _From(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has it without arguments
    """A type whose candidates come from a function."""

    name = "text"

    def __init__(self, source: Source):
        self.source = source

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the candidates that begin with what is there."""
        del param
        return [
            item
            for item in self.source(ctx, incomplete)
            if item.type != "plain" or item.value.startswith(incomplete)
        ]


# --- sources ---


def _head(context: click.Context) -> HeadClient:
    return HeadClient(str(context.params.get("head_address") or ""), patience_s=0.0)


def _jobs(context: click.Context, incomplete: str) -> Found:
    """Yield the user's jobs that the command can take; where there is none, everybody's."""
    import pwd  # late: only where job ids are completed

    named = {str(each).partition(".")[0] for each in context.params.get("jobs") or ()}
    head = _head(context)
    user = pwd.getpwuid(os.getuid()).pw_name
    name = context.info_name or ""
    for whose in (user, ""):
        if name == "grerun" and context.params.get("failed"):
            rows = _failed_jobs(head, whose)
        else:
            rows = list(head.jobs(user=whose, states=_STATES.get(name, ())).jobs)
        if name in _PAST:
            rows += head.history(user=whose, limit=NEWEST).jobs
        found = [
            CompletionItem(short_job_id(row.id), help=f"{row.letter} {row.name}")
            for row in rows
            if short_job_id(row.id).startswith(incomplete) and short_job_id(row.id) not in named
        ]
        if found:
            return found
    return ()


def _failed_jobs(head: HeadClient, user: str) -> list[JobRow]:
    """Return the newest jobs that have failed; in the place of elements their arrays."""
    past = head.history(user=user, outcome="failed", limit=NEWEST).jobs
    rows = {submitted_number(row.id): row for row in past}
    return [structs.replace(row, id=number) for number, row in rows.items()]


def _from_head(source: Source) -> Source:
    """Return a source that yields nothing where the head does not answer in time."""

    def answered(context: click.Context, incomplete: str) -> Found:
        try:
            return source(context, incomplete)
        except (GschedError, _TooLateError):
            return ()

    return answered


@_from_head
def _nodes(context: click.Context, incomplete: str) -> Found:
    del incomplete
    return [CompletionItem(row.name, help=row.state) for row in _head(context).nodes().nodes]


def _queues(context: click.Context, incomplete: str) -> Found:
    del incomplete
    return [CompletionItem(name) for name in _head(context).status().queues]


def _node_operands(context: click.Context, incomplete: str) -> Found:
    """Yield the verbs for the first operand, and nodes."""
    from gsched.protocol.actions import NODE_ACTIONS  # late: gnodes alone needs it

    given = context.params.get("operands") or ()
    if not given:
        yield from (CompletionItem(verb) for verb in NODE_ACTIONS)
    yield from (item for item in _nodes(context, incomplete) if item.value not in given)


def _queue_words(context: click.Context, incomplete: str) -> Found:
    """Yield the commands of gmgr, then kinds and queues, then attributes."""
    from gsched.config.objects import KINDS, attributes  # late: gmgr alone needs it

    verb, *rest = context.params.get("words") or ("",)
    if not verb:
        verbs = ("list", "print", "export", "create", "set", "unset", "delete")
        yield from (CompletionItem(each) for each in verbs)
    elif not rest:
        yield from (CompletionItem(each) for each in KINDS)
        yield from _queues(context, incomplete)
    elif verb in {"create", "set", "unset"}:
        kind = next((each for each in KINDS if each == rest[0]), KINDS[1])
        end = "" if verb == "unset" else "="
        yield from (CompletionItem(f"{each}{end}") for each in attributes(kind))


def _task_names(context: click.Context, incomplete: str) -> Found:
    del incomplete
    return [CompletionItem(row.name) for row in _head(context).tasks().tasks]


def _state_names(context: click.Context, incomplete: str) -> Found:
    del context
    if incomplete.isupper():
        return [CompletionItem(state.letter, help=state.value) for state in JobState]
    return [CompletionItem(state.value, help=state.letter) for state in JobState]


def _words(*words: str) -> Source:
    def source(context: click.Context, incomplete: str) -> Found:
        del context, incomplete
        return [CompletionItem(word) for word in words]

    return source


def _listed(source: Source) -> Source:
    """Return a source for the last item of a list with commas."""

    def listed(context: click.Context, incomplete: str) -> Iterator[CompletionItem[str]]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        for item in source(context, last):
            if item.value not in given:
                yield CompletionItem(before + comma + item.value, help=item.help)

    return listed


def _resources(context: click.Context, incomplete: str) -> Found:
    """Yield the names for ``-l``; behind ``nodes=N:`` those of what each node shall have."""
    del context
    before, comma, last = incomplete.rpartition(",")
    name, equals, value = last.partition("=")
    if not equals:
        return [CompletionItem(before + comma + each) for each in _RESOURCES]
    first, colon, _ = value.rpartition(":")
    inner = {"nodes": ("ppn=", "gpus="), "select": ("ncpus=", "ngpus=", "mem=")}.get(name, ())
    if not colon:
        return ()
    return [CompletionItem(f"{before}{comma}{name}={first}:{each}") for each in inner]


def _reservations(context: click.Context, incomplete: str) -> Found:
    del incomplete
    return [CompletionItem(row.reservation.name) for row in _head(context).reservations().rows]


def _reservation_words(context: click.Context, incomplete: str) -> Found:
    if not context.params.get("words"):
        words = ("list", "show", "calendar", "create", "alter", "delete")
        return [CompletionItem(word) for word in words]
    return _reservations(context, incomplete)


def _signals(context: click.Context, incomplete: str) -> Found:
    del context, incomplete
    return [CompletionItem(each.name.removeprefix("SIG")) for each in signal.Signals]


def _variables(context: click.Context, incomplete: str) -> Found:
    del context, incomplete
    return [CompletionItem(name) for name in full_environment() if not name.startswith("_")]


def _files(context: click.Context, incomplete: str) -> Found:
    del context
    return [CompletionItem(incomplete, type="file")]


def _directories(context: click.Context, incomplete: str) -> Found:
    del context
    return [CompletionItem(incomplete, type="dir")]


def _work(context: click.Context, incomplete: str) -> Found:
    """Say what the operands of gsub are: a script, or behind ``--`` a command with arguments."""
    behind_dashes = tuple(context.params.get("tail") or ()) == ("--",)
    return [CompletionItem(incomplete, type="command" if behind_dashes else "file")]


#: What completes the values of options, by the name in their rows; other words are the values.
_COMPLETE: Final[dict[str, Source]] = {
    "dir": _directories,
    "file": _files,
    "queues": _queues,
    "reservations": _reservations,
    "resources": _resources,
    "signals": _signals,
    "variables": _listed(_variables),
}
#: By command ("" for any) and parameter.
_SOURCES: Final[dict[tuple[str, str], Source]] = {
    ("", "jobs"): _jobs,
    ("", "job"): _jobs,
    ("", "nodes"): _listed(_nodes),  # gmigrate --to
    ("gsub", "nodes"): _words(),  # a number
    ("up", "nodes"): _words(),
    ("gnodes", "operands"): _node_operands,
    ("gsub", "operands"): _work,
    ("", "queue"): _queues,
    ("gmgr", "words"): _queue_words,
    ("gres", "words"): _reservation_words,
    ("gres", "nodes"): _listed(_nodes),
    ("tasks", "name"): _task_names,
    ("", "states"): _listed(_state_names),
    ("", "resources"): _resources,  # gselect
    ("", "rerunnable"): _words("y", "n"),
    ("galter", "attributes"): _words("kill_delay="),
    ("", "hold_list"): _words("n", *(kind.value[0] for kind in HoldKind)),
    ("", "signal_text"): _signals,
    ("greport", "form"): _words("daily", "weekly", "monthly"),
    ("greport", "by"): _words(*GROUPS),
    **{
        ("", name): _files
        for name in (
            *("file", "head_address", "config", "config_path", "trace_path", "json_path"),
            *("database", "cluster", "reservations"),
        )
    },
    **{("", name): _directories for name in ("directory", "csv_dir", "figures_dir", "dir")},
}


def _of_rows(command: str) -> dict[str, Source]:
    """Return what completes the options of gsub or galter, by their parameters."""
    from gsched.cli.submit.rows import ROWS  # late: of the other commands none is needed

    return {
        row.alter if command == "galter" else row.field: _COMPLETE.get(row.complete)
        or _words(*row.complete.split())
        for row in ROWS
        if row.complete
    }
