"""salloc, and ``srun --pty`` outside a job, through the code of gsub and gshell."""

import copy
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from gsched.cli.common import status_of
from gsched.cli.slurm.sbatch import parsed_options
from gsched.cli.submit.foreign import Line
from gsched.cli.submit.foreign_directives import translated
from gsched.errors import UsageError

#: Of srun, beside those of sbatch.
_SRUN_FLAGS: Final = ("--pty", "--overlap", "--exact", "--unbuffered", "--label")
_SRUN_VALUED: Final = ("--jobid", "--cpu-bind", "--mpi")


def salloc(words: Sequence[str]) -> int:
    """Run a shell, or a command, in this terminal, on the first node of a new allocation."""
    options, command = parsed_options(words)
    return _interactive(options, command, name="salloc")


def srun_pty(words: Sequence[str]) -> int:
    """Run a command in this terminal: in a new job, or beside the running job that is named.

    Raises:
        UsageError: there is no command.
    """
    options, command = parsed_options(words, flags=_SRUN_FLAGS, valued=_SRUN_VALUED)
    job = options.get("--jobid", "")
    options = {
        name: value
        for name, value in options.items()
        if name not in _SRUN_FLAGS and name not in _SRUN_VALUED
    }
    if not command:
        raise UsageError("no command given to execute")
    if not job:
        return _interactive(options, command, name="srun")
    from gsched.cli.commands.gshell import gshell  # late: most start jobs

    node = ["--node", options["--nodelist"]] if "--nodelist" in options else []
    return _run(gshell, [*node, job, *command], name="srun")


def _interactive(options: Mapping[str, str], command: Sequence[str], *, name: str) -> int:
    from gsched.cli.commands.gsub import gsub  # late: the other commands submit nothing

    lines = [
        Line(0, "#SBATCH", shlex.join([f"{option}={value}" if value else option]))
        for option, value in options.items()
    ]
    result = translated(lines, where=name, submit_dir=os.getcwd())
    arguments = ["-I", *(word for each in result.directives for word in each.words)]
    if "--export" not in options:
        arguments.append("-V")
    if "--job-name" not in options:
        arguments += ["-N", os.path.basename(command[0]) if command else "interactive"]
    for variable, value in result.environment.items():
        arguments += ["-v", f'{variable}="{value}"']
    for text in result.warnings:
        print(f"{name}: {text}", file=sys.stderr)
    return _run(gsub, [*arguments, *(["--", *command] if command else [])], name=name)


def _run(command: click.Command, arguments: Sequence[str], *, name: str) -> int:
    named = copy.copy(command)
    named.name = name
    return status_of(named, list(arguments))
