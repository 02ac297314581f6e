"""Errors in the words and with the exit codes of Slurm's commands: programs match both."""

import re
import sys
from typing import Final

from gsched.cli.common import print_error
from gsched.cli.dialect import Dialect
from gsched.cli.submit.foreign import DirectiveLine
from gsched.cli.submit.slurm_options import INVALID_DIRECTIVE, DirectiveError, OptionError
from gsched.errors import GschedError, UsageError
from gsched.protocol.api import ErrorBody

#: Commands that end with -1 where an option cannot be read; the others end with 1.
SUBMITTING: Final = frozenset({"sbatch", "salloc", "srun"})
UNREADABLE: Final = 255
#: What Slurm's controller says of a refused submission, by our code.
_REFUSED: Final = {
    "unknown_queue": "Invalid partition name specified",
    "unknown_node": "Invalid node name specified",
    "bad_dependency": "Job dependency problem",
    "bad_resource": "Requested node configuration is not available",
    "request_too_large": "Requested node configuration is not available",
    "not_permitted": "Access/permission denied",
}
_ARRAY: Final = "Invalid job array specification"
_ARRAY_STATED: Final = re.compile(r"(-t: )?array '")
_QUEUE: Final = re.compile(r"unknown queue '([^']*)'")
TRY: Final = 'Try "{} --help" for more information'
INVALID_JOB: Final = "Invalid job id specified"
FINISHED: Final = "Job has already finished"
VERSION: Final = "slurm 23.11 (gsched)"
#: What Slurm's controller says of a refused action on a job or node, by our code.
_ACTIONS: Final = {
    "unknown_job": INVALID_JOB,
    "not_permitted": "Access/permission denied",
    "unknown_queue": "Invalid partition name specified",
    "unknown_node": "Invalid node name specified",
    "bad_dependency": "Job dependency problem",
    "bad_resource": "Requested node configuration is not available",
}


def error_words(error: ErrorBody) -> str:
    """Return what Slurm says of a refused action, or our own message where it has no words."""
    if "has already finished" in error.message:
        return FINISHED
    return _ACTIONS.get(error.code) or " ".join(error.message.split())


class SlurmError(UsageError):
    """A mistake that has its own words in Slurm.

    Args:
        message: its lines, each behind ``COMMAND: error: ``.
        status: exit code of the command.
        plain: the lines stand alone.
    """

    def __init__(self, message: str, *, status: int = 1, plain: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.plain = plain


def invalid(option: str) -> SlurmError:
    """Return the refusal of an option's value."""
    return SlurmError(f"Invalid {option} specification", status=UNREADABLE)


def line_refused(error: UsageError, line: DirectiveLine, where: str) -> SlurmError:
    """Return the refusal of a line of a batch script, in Slurm's words, and which line it is."""
    name, stated = "sbatch: error: ", f"{where}: line {line.number}: {line.mark} {line.text}"
    if isinstance(error, DirectiveError) and not error.message.startswith(INVALID_DIRECTIVE):
        fatal = f"sbatch: fatal: {where}: line {line.number}: {error.message}"
        return SlurmError(fatal, plain=True)
    status = UNREADABLE if isinstance(error, (OptionError, DirectiveError)) else 1
    status = error.status if isinstance(error, SlurmError) else status
    if isinstance(error, OptionError):
        lines = [f"sbatch: {error.message}", name + stated, TRY.format("sbatch")]
    else:
        words = [*error.message.split("\n"), stated, *([error.hint] if error.hint else [])]
        lines = [name + each for each in words]
    return SlurmError("\n".join(lines), status=status, plain=True)


class SlurmDialect(Dialect):
    """``sbatch: error: …``; exit code 1 for every error of the head, as Slurm has it."""

    name = "slurm"
    ignores_unknown = True

    def exit_code(self, error: GschedError) -> int:
        """Return 1."""
        del error
        return 1

    def lines(self, error: GschedError, *, command: str, operand: str) -> tuple[str, ...] | None:
        """Return ``error: MESSAGE`` and the hint; of a submission what Slurm says of it, too."""
        del operand
        found = [" ".join(error.message.split()).removeprefix("-t: ")]
        if command in SUBMITTING:
            match = _QUEUE.match(found[0])
            if match is not None:
                return tuple(
                    f"error: {each}"
                    for each in (
                        f"invalid partition specified: {match[1]}",
                        _failed(error, command),
                    )
                )
        found += [error.hint] if error.hint else []
        found += [_failed(error, command)] if command in SUBMITTING else []
        return tuple(f"error: {each}" for each in found if each)


def failed(command: str) -> str:
    """Return how a refused submission of a command begins."""
    action = "Batch job submission" if command == "sbatch" else "Job submit/allocate"
    return f"{action} failed"


def _failed(error: GschedError, command: str) -> str:
    words = _REFUSED.get(error.code, "")
    if _ARRAY_STATED.match(error.message):
        words = _ARRAY
    return f"{failed(command)}: {words}" if words else ""


def report(error: GschedError, command: str) -> int:
    """Print an error of a command of Slurm; return the exit code."""
    sys.stdout.flush()
    if isinstance(error, OptionError):
        print(f"{command}: {error.message}", file=sys.stderr)
        if command != "sacct":
            print(TRY.format(command), file=sys.stderr)
        return UNREADABLE if command in SUBMITTING else 1
    if isinstance(error, SlurmError):
        start = "" if error.plain else f"{command}: error: "
        for line in error.message.split("\n"):
            print(f"{start}{line}" if line else "", file=sys.stderr)
        return error.status
    print_error(error, command=command)
    return 1
