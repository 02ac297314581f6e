"""The environment that a job takes along from where it was submitted."""

import os
import pwd
from collections.abc import Iterable, Mapping

from gsched.errors import UsageError
from gsched.model.limits import MAX_ENVIRONMENT_BYTES, MAX_MESSAGE, SUBMIT_ARGS
from gsched.model.patterns import pattern

#: Taken along even without -V, so that the programs and the Python of an activated environment
#: are those of the job. Only PATH would do for most; the others let pip and conda agree with it,
#: and commands in the job find the head to which it was submitted.
ALWAYS_TAKEN = (
    *("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
    *("GSCHED_HEAD", "GSCHED_CONFIG"),
)
_VARIABLE = pattern(
    r"""(?P<name>[^=,]*)(?:=(?:"(?P<double>[^"]*)"(?=,|$)|'(?P<single>[^']*)'(?=,|$)"""
    r"""|(?P<plain>(?:\\,|[^,])*)))?(?:,|$)"""
)
_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]*")  # what a shell can read
#: What Slurm tells a job of itself, which is not true of a job that it submits.
_OF_SLURM_JOB = pattern(
    r"SLURM_(?:ARRAY_|STEP)\w+|SLURM_(?:JOB_(?:ID|ACCOUNT|GPUS)|JOBID|NTASKS|NPROCS|NTASKS_PER_NODE"
    r"|CPUS_PER_TASK|RESTART_COUNT|TASK_PID|GPUS_ON_NODE|MEM_PER_NODE)"
)
_ORIGIN = ("HOME", "LANG", "PATH", "MAIL", "SHELL", "TZ")  # as PBS_O_*, from POSIX qsub


def job_environment(
    *,
    environment: Mapping[str, str],
    lists: Iterable[Iterable[tuple[str, str | None]]],
    export_all: bool,
    workdir: str,
    queue: str,
    submit_args: str = "",
) -> tuple[dict[str, str], list[str]]:
    """Return the job's variables, and a sentence for each that could not be taken.

    Args:
        environment: of the submitting process.
        lists: what is given after ``-v``, as `parse_variables` reads it.
        export_all: ``-V``.
        workdir: the directory of submission.
        queue: as asked for; may be empty.
        submit_args: the command line of qsub; empty: another command submits.

    Raises:
        UsageError: a name that is none, or more than MAX_ENVIRONMENT_BYTES in all.
    """
    notes: list[str] = []
    variables = {name: environment[name] for name in ALWAYS_TAKEN if name in environment}
    if export_all:
        variables = dict(environment)
        if "SLURM_JOB_ID" in environment:
            variables = {n: v for n, v in environment.items() if not _OF_SLURM_JOB.fullmatch(n)}
    for pairs in lists:
        for name, value in pairs:
            if value is not None:
                variables[name] = value
            elif name in environment:
                variables[name] = environment[name]
            else:
                notes.append(f"-v {name}: not set in your environment, so the job does not get it")
    variables |= {f"PBS_O_{name}": environment[name] for name in _ORIGIN if name in environment}
    variables["PBS_O_LOGNAME"] = _login_name()
    variables["PBS_O_WORKDIR"] = workdir
    variables["PBS_O_HOST"] = os.uname().nodename
    variables.pop(SUBMIT_ARGS, None)
    if submit_args:
        variables[SUBMIT_ARGS] = submit_args[:MAX_MESSAGE]
    variables.pop("PBS_O_QUEUE", None)  # of a job in which this one is submitted
    if queue:  # else the node fills in the default one, which is not known here
        variables["PBS_O_QUEUE"] = queue
    return _bounded(variables, notes), notes


def _login_name() -> str:
    """Who the kernel says it is, whatever $LOGNAME says; the number where there is no entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _bounded(variables: dict[str, str], notes: list[str]) -> dict[str, str]:
    taken: dict[str, str] = {}
    size = 0
    for name, value in variables.items():
        try:
            size += len(name.encode()) + len(value.encode()) + 2
        except UnicodeEncodeError:
            notes.append(f"variable {ascii(name)[1:-1]} is not valid UTF-8 and is omitted")
            continue
        taken[name] = value
    if size > MAX_ENVIRONMENT_BYTES:
        raise UsageError(
            f"the job's environment has {size} bytes; the limit is {MAX_ENVIRONMENT_BYTES}",
            hint="list the variables that the job needs with -v instead of -V",
        )
    return taken


def parse_variables(text: str) -> list[tuple[str, str | None]]:
    """Return the names and values of ``NAME=VALUE,NAME``; None stands for "from my environment".

    A value with commas stands in a pair of quotation marks, or has a backslash before each comma.

    Raises:
        UsageError: a value without a name, or with one that no shell could read.
    """
    found: list[tuple[str, str | None]] = []
    at = 0
    while at < len(text):
        match = _VARIABLE.match(text, at)
        assert match is not None  # every part may be empty
        at = match.end() if match.end() > at else at + 1
        name = match["name"].strip()
        value = match["double"] if match["double"] is not None else match["single"]
        if value is None and match["plain"] is not None:
            value = match["plain"].replace("\\,", ",")
        if name and not _NAME.fullmatch(name):
            raise UsageError(
                f"-v: invalid variable name {name!r}",
                hint="use letters, digits and _, and begin with a letter or _",
            )
        if name:
            found.append((name, value))
        elif value is not None:
            raise UsageError(f"-v: {match[0]!r} has no variable name", hint="write NAME=VALUE,NAME")
    return found
