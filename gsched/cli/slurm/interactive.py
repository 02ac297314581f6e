"""salloc, and ``srun --pty`` outside a job, through the code of gsub and gshell."""

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from gsched.cli.running import status_of
from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.sbatch import check_gres, parsed_options, requested, with_queue
from gsched.cli.submit.slurm_options import OPTIONS

#: Of salloc and srun alone; a new job has nothing of them.
_OF_STEPS: Final = frozenset({each.name for name in ("salloc", "srun")
                              for each in OPTIONS[name].values()}) - {
    each.name for each in OPTIONS["sbatch"].values()
}  # fmt: skip


def salloc(words: Sequence[str]) -> int:
    """Run a shell, or a command, in this terminal, on the first node of a new allocation."""
    options, command = parsed_options(words, "salloc")
    return _interactive(options, command, name="salloc")


def srun_pty(words: Sequence[str]) -> int:
    """Run a command in this terminal: in a new job, or beside the running job that is named.

    Raises:
        SlurmError: there is no command.
    """
    options, command = parsed_options(words, "srun")
    job = options.get("--jobid", "")
    if not command:
        raise SlurmError("No command given to execute.")
    if not job:
        return _interactive(options, command, name="srun")
    from gsched.cli.commands.gshell import gshell  # late: most start jobs

    node = ["--node", options["--nodelist"]] if "--nodelist" in options else []
    return _run(gshell, [*node, job, *command], name="srun")


def _interactive(options: Mapping[str, str], command: Sequence[str], *, name: str) -> int:
    from gsched.cli.commands.gsub import gsub  # late: the other commands submit nothing

    stated = {option: value for option, value in options.items() if option not in _OF_STEPS}
    check_gres(stated)
    queues = stated.pop("--partition", "").split(",")
    request = requested(name, stated)
    arguments = ["-I", *request.arguments]
    if "--job-name" not in stated:
        arguments += ["-N", os.path.basename(command[0]) if command else "interactive"]
    tail = ["--", *command] if command else []
    arguments = with_queue(name, arguments, queues, tail)
    for text in request.warnings:
        print(f"{name}: {text}", file=sys.stderr)
    return _run(gsub, [*arguments, *tail], name=name)


def _run(command: click.Command, arguments: Sequence[str], *, name: str) -> int:
    named = copy.copy(command)
    named.name = name
    return status_of(named, list(arguments))
