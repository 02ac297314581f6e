"""How a command runs: its completion, its errors and its exit code."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import click

from gsched.cli.common import print_error
from gsched.cli.dialect import spoken
from gsched.config.environment import environment
from gsched.errors import GschedError, InternalError, UsageError
from gsched.model.patterns import pattern

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE
_NOT_A_NUMBER = pattern(r"is not a valid integer( range)?")  # click's words for its types


def complete_if_requested(command: click.Command) -> None:
    """Answer a shell that requests completions; then this process ends here.

    The command itself must never run then: the user has not finished its command line.
    """
    variable = f"_{(command.name or '').upper()}_COMPLETE"
    if environment(variable):
        from gsched.cli.completing import answer  # late: only a shell at a TAB needs it

        answer(command, variable)


def run(command: click.Command) -> NoReturn:
    """Run a command with this process's arguments, and exit with its code."""
    complete_if_requested(command)
    end_with(partial(status_of, command, sys.argv[1:]))


def end_with(work: Callable[[], int]) -> NoReturn:
    """Run the work of a command, and exit with the code that it returns."""
    # One short life: collecting garbage would only cost time (a third of decoding 100,000 jobs).
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        status = EXIT_BROKEN_PIPE
    if environment("GSCHED_DEBUG"):
        sys.exit(status)
    # Everything is flushed and nothing is open: tearing the interpreter down costs 5 ms, a sixth
    # of the whole command.
    os._exit(status)


def runner(command: click.Command) -> Callable[[], NoReturn]:
    """Return what runs a command, for the script of its name."""
    return partial(run, command)


def status_of(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command, print its error if it has one, and return its exit code."""
    name = command.name or "gsched"

    def work() -> int:
        try:
            with command.make_context(name, list(arguments)) as context:
                status = command.invoke(context)
            return status if isinstance(status, int) else 0
        except click.exceptions.Exit as error:
            return error.exit_code

    def report(failure: GschedError) -> int:
        print_error(failure, command=name, as_json=_wants_json(arguments))
        return spoken().exit_code(failure)

    return guarded(work, name, report)


def guarded(work: Callable[[], int], name: str, report: Callable[[GschedError], int]) -> int:
    """Return the exit code of a command's work, or of its error, which ``report`` prints.

    With $GSCHED_DEBUG set, errors are raised, so that the traceback is seen.
    """
    try:
        return work()
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except Exception as error:  # the outermost frame: a user never sees a traceback
        if environment("GSCHED_DEBUG") and not isinstance(error, click.UsageError):
            raise
        return report(_as_gsched_error(error, name))


def _as_gsched_error(error: Exception, name: str) -> GschedError:
    if isinstance(error, GschedError):
        return error
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else name
        meant = _option_meant(error) if isinstance(error, click.NoSuchOption) else ""
        return UsageError(usage_message(error), hint=f"{meant}see `{path} --help`")
    if isinstance(error, FileNotFoundError) and not _is_in_directory():
        return UsageError(
            "the current directory has been deleted, or its path leads to another one here",
            hint="change to another directory: cd",
        )
    return InternalError(
        f"internal error: {type(error).__name__}: {error}",
        hint="run the command again with GSCHED_DEBUG=1 and report the output",
    )


def _is_in_directory() -> bool:
    """Return whether this process has a working directory that has a path."""
    try:
        return os.path.samefile(os.getcwd(), ".")
    except OSError:
        return False


def usage_message(error: click.ClickException) -> str:
    """Return click's message in the form of ours: ``unknown option '--frob'``."""
    if isinstance(error, click.NoSuchOption):
        return f"unknown option {error.option_name!r}"
    text = _NOT_A_NUMBER.sub("is not a valid number", error.format_message()).rstrip(".")
    text, _, choices = text.partition(". Choose from:")
    if choices:  # a line each
        text += f": choose from {' '.join(choices.split())}"
    return text[:1].lower() + text[1:]


def _option_meant(error: click.NoSuchOption) -> str:
    """Return ``did you mean '--params'? ``, or nothing; click takes --lr for --help."""
    import difflib  # late: only a mistake needs it

    names = {each.lstrip("-"): each for each in error.possibilities or ()}
    close = difflib.get_close_matches(error.option_name.lstrip("-"), names, n=1)
    return f"did you mean {names[close[0]]!r}? " if close else ""


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether ``--json`` was given, even if parsing failed before it was reached."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    names = {each.partition("=")[0] for each in options}
    return bool(names & {"--json", "--jq", "--template"})
