"""What all commands share: options, the connection, errors, JSON and the way out.

A command is a click command that returns its exit code (or None for 0), and a ``main``:

    @gsched_command("gdel")
    @click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    @connected
    def gdel(head: Head, jobs: tuple[str, ...], as_json: bool) -> int:
        return report_results(head.act(...).results, as_json=as_json)

    def main() -> None:
        run(gdel)

`gsched_command` adds ``--head``, ``--json`` (the parameter ``as_json``), ``--version`` and
``--help``; `run` turns every error into a message, a hint and an exit code.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, update_wrapper
from typing import IO, TYPE_CHECKING, Any, Concatenate, ParamSpec

import click
import msgspec

from gsched.cli.dialect import spoken
from gsched.client import HeadClient
from gsched.config.environment import environment
from gsched.errors import GschedError, UsageError
from gsched.head_calls import body_of, error_from
from gsched.model.ids import short_job_id
from gsched.protocol.api import ActionResult, ErrorBody, ErrorReply
from gsched.protocol.job_rows import JobRow
from gsched.version import VERSION

if TYPE_CHECKING:
    from click.parser import _OptionParser, _ParsingState

#: Characters of a field in a format of users.
MAX_WIDTH = 10_000
JSON_SCHEMA = 1  # of what --json prints; grows when a field changes its meaning or goes away

P = ParamSpec("P")
Callback = Callable[..., int | None]


class QuickCommand(click.Command):
    """A click command without what click does at each start and nobody sees.

    It takes ``-l`` for a short option at once: click first tries it as a long option, fails, and
    looks for similar names to suggest. It counts no names of options, which tests do, and it
    translates no help of ``--help``, for which click loads `locale`.
    """

    def make_parser(self, ctx: click.Context) -> "_OptionParser":
        """Return click's parser with that detour cut off."""
        parser = super().make_parser(ctx)
        slow = parser._match_long_opt  # noqa: SLF001 - click offers no other way in

        def match(name: str, value: str | None, state: "_ParsingState") -> None:
            if name.startswith("--") or name in parser._long_opt:  # noqa: SLF001 - as above
                slow(name, value, state)
            else:
                raise click.NoSuchOption(name, message="not a long option")

        parser._match_long_opt = match  # type: ignore[method-assign,assignment]  # noqa: SLF001 - as above
        return parser

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help`` as the last one."""
        help_option = self.get_help_option(ctx)
        return self.params if help_option is None else [*self.params, help_option]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return ``--help``, always the same object, by which click orders callbacks."""
        names = self.get_help_option_names(ctx)
        if not names or not self.add_help_option:
            return None
        if self._own_help is None:
            self._own_help = QuickOption(
                [*names, "_help"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_help,
                help="Show this message and exit.",
            )
        return self._own_help

    _own_help: click.Option | None = None


def _print_help(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


class QuickOption(click.Option):
    """A click option whose help is one line: click would load `inspect` to remove indents of it."""

    def __init__(self, *words: Any, help: str | None = None, **settings: Any):  # noqa: A002 - click's name
        super().__init__(*words, **settings)
        self.help = help


#: `click.option` with `QuickOption`.
option = partial(click.option, cls=QuickOption)


def gsched_command(
    name: str,
    *,
    cls: type[click.Command] = QuickCommand,
    epilog: str = "",
    interspersed: bool = True,
) -> Callable[[Callback], click.Command]:
    r"""Return a decorator that makes a function a command with the options all commands have.

    Args:
        name: of the command, which also starts its error messages.
        cls: another kind of command.
        epilog: examples, each paragraph after a line ``\b`` to keep its lines.
        interspersed: whether options may follow operands.
    """

    def decorate(function: Callback) -> click.Command:
        for add in (version_option, json_option, head_option):
            function = add(function)
        make = click.command(
            name=name,
            cls=cls,
            epilog=epilog,
            context_settings={
                "help_option_names": ["--help"],  # -h is an operand's business: qsub -h holds
                "allow_interspersed_args": interspersed,
                "max_content_width": 100,
            },
        )
        return make(function)

    return decorate


def head_option(function: Callback) -> Callback:
    """Add ``--head ADDRESS`` as the parameter ``head_address`` (`connected` takes it)."""
    return option(
        "--head",
        "head_address",
        default="",
        metavar="ADDRESS",
        help="Address of the head: a socket path, ssh://HOST or https://host:port [default: "
        "$GSCHED_HEAD].",
    )(function)


def json_option(function: Callback) -> Callback:
    """Add ``--json`` as the parameter ``as_json``."""
    return option(
        "--json", "as_json", is_flag=True, help="Print one JSON document, including errors."
    )(function)


def version_option(function: Callback) -> Callback:
    """Add ``--version``."""
    return option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    )(function)


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not context.resilient_parsing:
        print(f"{context.command.name} (gsched) {VERSION}")
        context.exit(0)


def connected(
    function: Callable[Concatenate[HeadClient, P], int | None],
) -> Callable[..., int | None]:
    """Hand the function a `HeadClient` as its first argument, made from ``--head``."""

    def with_head(*args: P.args, **kwargs: P.kwargs) -> int | None:
        address = str(kwargs.pop("head_address", ""))
        return function(patient_head(address), *args, **kwargs)

    return update_wrapper(with_head, function)


#: How long a command waits for a head that does not answer, seconds: it may be restarted.
PATIENCE_S = 30.0
#: The same of commands that only show something.
READ_PATIENCE_S = 5.0
_READING = frozenset(
    {
        *(
            "gstat",
            "ghist",
            "gnodes",
            "gpeek",
            "gprio",
            "greport",
            "gseff",
            "gselect",
            "glimits",
            "gshare",
            "qstat",
            "qselect",
        ),
        *("pbsnodes", "tracejob", "squeue", "sinfo", "sacct", "sreport", "sstat"),
    }
)


def patient_head(address: str = "", *, command: str = "") -> HeadClient:
    """Return the head, for which a command waits while it is restarted, with a line on stderr.

    Args:
        address: what ``--head`` says.
        command: the name of the command; empty: as click has it.

    Raises:
        UsageError: $GSCHED_PATIENCE_S is invalid.
    """
    name = command or command_name()
    usual_s = READ_PATIENCE_S if name in _READING else PATIENCE_S
    text = environment("GSCHED_PATIENCE_S")
    try:
        patience_s = float(text) if text else usual_s
    except ValueError:
        patience_s = -1.0
    if not 0 <= patience_s < float("inf"):
        raise UsageError(
            f"$GSCHED_PATIENCE_S: invalid number of seconds {text!r}", hint="0: do not wait"
        )
    head = HeadClient(address, patience_s=patience_s)
    head.transport.on_wait = lambda wait_s: print_note(
        f"the head does not answer; waiting up to {wait_s:g} s", command=name
    )
    head.transport.on_silence = lambda quiet_s, limit_s: print_note(
        f"the head has not answered for {quiet_s:g} s; waiting up to {limit_s:g} s. "
        "Ctrl-C ends this command; gsched doctor on the head's host tells why",
        command=name,
    )
    warned: set[str] = set()

    def warn(text: str) -> None:
        if text not in warned:
            print_note(text, command=name)
        warned.add(text)

    head.transport.on_warning = warn
    return head


# --- printing ---


def print_json(document: msgspec.Struct | dict[str, object], *, out: IO[str] | None = None) -> None:
    """Print one JSON document, with ``"schema"`` as its first field; indented on a terminal.

    Every field is there, also those with their default value, which the wire leaves out: a program
    that reads ``.jobs[].gpus`` need not know what absence means.
    """
    stream = out or sys.stdout
    whole = {"schema": JSON_SCHEMA, **_whole_fields(document)}
    context = click.get_current_context(silent=True)
    if context is not None and SHAPE in context.meta and stream is sys.stdout:
        context.meta[SHAPE](whole, stream)
        return
    body = msgspec.json.encode(whole)
    if stream.isatty():
        body = msgspec.json.format(body, indent=2)
    stream.write(body.decode() + "\n")


def _whole_fields(document: msgspec.Struct | dict[str, object]) -> dict[str, object]:
    whole = _whole(document)
    assert isinstance(whole, dict)
    if isinstance(document, dict) and isinstance(now_s := document.get("now_s"), float):
        whole["now_iso"] = iso_time(now_s)
    return whole


#: Fields that are moments: each has a second one, with ``_iso`` for ``_s``.
MOMENTS = frozenset(
    {
        *("now_s", "submitted_s", "started_s", "ended_s", "assigned_s", "at_s", "start_after_s"),
        *("predicted_start_s", "predicted_end_s", "deadline_s", "expected_s", "early_s", "late_s"),
        *(
            "not_before_s",
            "planned_s",
            "requested_s",
            "prepared_s",
            "saved_s",
            "left_s",
            "placed_s",
        ),
        *("resumed_s", "heartbeat_s", "since_s", "reason_s", "probe_due_s", "next_try_s"),
    }
)
#: Where a command keeps what prints the requested part of a document to a stream.
SHAPE = "gsched.shape"


def iso_time(at_s: float | None) -> str | None:
    """Return a moment as ISO 8601 in local time, ``2026-11-23T14:20:00+01:00``; 0 is none."""
    if not at_s:
        return None
    from datetime import UTC, datetime  # late: only --json needs it

    try:
        return datetime.fromtimestamp(at_s, UTC).astimezone().isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None  # beyond any calendar


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})  # quick: there are 100,000 rows


def _whole(value: object) -> object:
    """Return an API message as mappings and lists with all of their fields."""
    if isinstance(value, msgspec.Struct):
        whole = {
            name: each if type(each) in _PLAIN else _whole(each)
            for name in value.__struct_fields__
            if (each := getattr(value, name)) is not msgspec.UNSET
        }
        for name in sorted(MOMENTS.intersection(whole)):
            whole[f"{name[:-2]}_iso"] = iso_time(whole[name])  # type: ignore[arg-type]  # a moment
        if isinstance(value, JobRow):
            whole["job_id"] = f"{value.id}[]" if value.array else short_job_id(value.id)
        return whole
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_whole(each) for each in value]
    return value


def printable(text: str) -> str:
    """Return ``text`` with control characters made visible.

    Names and reasons come from other users: they must not move this user's cursor.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_error(
    error: GschedError | ErrorBody, *, command: str, as_json: bool = False, operand: str = ""
) -> None:
    """Print an error on stderr: ``command: message`` and a hint line, or as JSON.

    Args:
        operand: to which it belongs; empty: to none, or to all.
    """
    sys.stdout.flush()  # keeps the order when both go to one terminal
    body = error if isinstance(error, ErrorBody) else body_of(error)
    if as_json:
        sys.stderr.write(msgspec.json.encode(ErrorReply(error=body)).decode() + "\n")
        return
    raised = error_from(error) if isinstance(error, ErrorBody) else error
    other = spoken().lines(raised, command=command, operand=operand)
    if other is not None:
        sys.stderr.write("".join(f"{command}: {printable(line)}\n" for line in other))
        return
    for line in _in_local_time(body.message).splitlines() or [body.code]:
        sys.stderr.write(f"{command}: {printable(line)}\n")
    for line in body.hint.splitlines():
        sys.stderr.write(f"{' ' * len(command)}  hint: {printable(line)}\n")


def _in_local_time(message: str) -> str:
    if " UTC" not in message:
        return message
    from gsched.cli.times import local_times  # late: few errors speak of a moment

    return local_times(message)


def print_note(text: str, *, command: str) -> None:
    """Print a warning or a remark on stderr, never on stdout."""
    sys.stdout.flush()
    for line in text.splitlines():
        sys.stderr.write(f"{command}: {printable(line)}\n")


def command_name() -> str:
    """Return the name of the command that runs, as it starts messages."""
    context = click.get_current_context(silent=True)
    return (context.info_name or "gsched") if context else "gsched"


def report_results(
    results: Sequence[ActionResult], *, as_json: bool = False, show_text: bool = False
) -> int:
    """Print what became of each operand and return the exit code: that of the first error.

    Args:
        results: one for each operand, in order.
        as_json: print all of them as one document ``{"results": [...]}`` on stdout.
        show_text: print the words of the successful ones on stdout; qdel and its kin are silent.
    """
    if as_json:
        print_json({"results": list(results)})
    elif show_text:
        for result in results:
            if result.error is None and result.text:
                print(printable(result.text))
    for result in results:
        if result.note and not as_json:
            print_note(result.note, command=command_name())
    errors = [(result.id, result.error) for result in results if result.error is not None]
    return report_errors(errors, as_json=as_json)


def report_errors(errors: Iterable[tuple[str, ErrorBody]], *, as_json: bool = False) -> int:
    """Print the error of each operand on stderr; return the exit code of the first, or 0."""
    status = 0
    for operand, error in errors:
        print_error(error, command=command_name(), as_json=as_json, operand=operand)
        status = status or spoken().exit_code(error_from(error))
    return status


def is_terminal(stream: IO[str]) -> bool:
    """Return whether ``stream`` is a terminal."""
    return stream.isatty()


def wants_color(choice: str, stream: IO[str]) -> bool:
    """Return whether to colour: ``always``, ``never``, or ``auto`` as the environment says.

    $NO_COLOR (not empty) and TERM=dumb turn colour off, $CLICOLOR_FORCE turns it on.
    """
    if choice != "auto":
        return choice == "always"
    if environment("NO_COLOR"):
        return False
    if environment("CLICOLOR_FORCE", "0") != "0":
        return True
    return stream.isatty() and environment("TERM") != "dumb"


def color_option(function: Callback) -> Callback:
    """Add ``--color auto|always|never`` as the parameter ``color``."""
    return option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        metavar="WHEN",
        help="Colour: auto (only on a terminal), always or never.",
    )(function)


def check_width(spec: str, option: str) -> None:
    """Check the numbers in the format of a field, as in ``>20`` or ``.3f``.

    Raises:
        UsageError: one is above `MAX_WIDTH`, which would take that much memory for each line.
    """
    for number in re.findall(r"\d+", spec):
        if len(number) > len(str(MAX_WIDTH)) or int(number) > MAX_WIDTH:
            raise UsageError(
                f"{option}: a width of {number[:20]} characters; the limit is {MAX_WIDTH}",
                hint="write a smaller width, or none",
            )
