"""``gsub -I``: what an interactive job runs, and what does not go with it."""

import os

from msgspec import structs

from gsched.cli.session.attaching import terminal_variables
from gsched.cli.submit.readers import find_program
from gsched.cli.submit.scripts import Script
from gsched.cli.submit.submission import Workload
from gsched.errors import UsageError
from gsched.model.job import Interactive
from gsched.protocol.submissions import SubmitJob

_NAME = "STDIN"  # of a job without a script, as qsub has it


def check_combination(given: dict[str, object]) -> None:
    """Refuse options that contradict -I.

    Raises:
        UsageError: there is one.
    """
    for name, option in (("torchrun", "--torchrun"), ("watch", "--watch"), ("as_json", "--json")):
        if given[name]:
            raise UsageError(
                f"-I and {option} are mutually exclusive: the terminal is the job's",
                hint=f"omit -I or {option}",
            )


def is_command(operands: tuple[str, ...], path: str) -> bool:
    """Return whether ``-x WORD…`` names a program, and not a script."""
    return (
        bool(operands) and not os.path.exists(operands[0]) and bool(find_program(operands[0], path))
    )


def interactive_work(
    *, executes: bool, operands: tuple[str, ...], tail: tuple[str, ...], script: Script | None
) -> Workload:
    """Return what runs on the terminal.

    Args:
        executes: ``-x``: the script, or the command among the operands.
        operands: words before ``--``.
        tail: words behind it.
        script: read from the first operand; without ``-x`` only for its directives.

    Raises:
        UsageError: words that nothing is done with.
    """
    if script is not None and executes:
        name = os.path.basename(script.where)
        return Workload(
            "script", default_name=name, script=script, arguments=(*operands[1:], *tail)
        )
    if executes:
        command = (*operands, *tail)
        if not command:
            raise UsageError("-x needs a command or a script", hint="write: gsub -I -x COMMAND")
        return Workload("command", default_name=os.path.basename(command[0]), arguments=command)
    if len(operands) > 1 or (operands and tail):
        raise UsageError(
            f"unexpected operand {(operands[1:] or tail)[0]!r}: without -x, only the directives of "
            f"{operands[0]} are read",
            hint="run it on the terminal with gsub -I -x",
        )
    name = os.path.basename(script.where) if script is not None else _NAME
    return Workload("command", default_name=name if operands else _NAME, arguments=tail)


def with_terminal(job: SubmitJob, timeout_s: float | None) -> SubmitJob:
    """Return a job that runs on the user's terminal; ``timeout_s``: while nobody is attached."""
    return structs.replace(
        job,
        rerunnable=False,
        interactive=Interactive(detach_timeout_s=timeout_s),
        stdout_path="",
        stderr_path="",
        environment=terminal_variables() | job.environment,
    )
