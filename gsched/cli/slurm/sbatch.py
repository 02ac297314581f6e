"""sbatch: submits a batch script, or with ``--wrap`` a command, through gsub's own code."""

import contextlib
import copy
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gsched.cli.common import patient_head
from gsched.cli.running import status_of
from gsched.cli.slurm import words as w
from gsched.cli.slurm.errors import SlurmError, failed, line_refused
from gsched.cli.slurm.values import check_values
from gsched.cli.submit.directives import DEFAULT_PREFIXES
from gsched.cli.submit.foreign import (
    SBATCH,
    DirectiveLine,
    foreign_lines,
    heterogeneous,
    options_of,
)
from gsched.cli.submit.foreign_directives import translated
from gsched.cli.submit.scripts import read_script
from gsched.cli.submit.slurm_options import NONE, OPTIONS, REQUIRED, parse
from gsched.cli.submit.slurm_request import SYNONYMS
from gsched.config.environment import environment
from gsched.errors import BadScriptError, UnreadableScriptError, UsageError
from gsched.model.request import parse_resources

_NO_INTERPRETER: Final = """\
This does not look like a batch script.  The first
line must start with #! followed by the path to an interpreter.
For instance: #!/bin/sh"""
_DOS_LINES: Final = """\
Batch script contains DOS line breaks (\\r\\n)
instead of expected UNIX line breaks (\\n)."""
_OWN: Final = frozenset({"--parsable", "--wrap", "--test-only", "--quiet"})
#: Options for which variables of the environment stand; the command line beats them.
_IN_ENVIRONMENT: Final = """
account acctg-freq clusters constraint container core-spec cpus-per-gpu delay-boot distribution
exclusive export gpu-bind gpu-freq gpus gpus-per-node gpus-per-task gres gres-flags hint job-name
mem-bind mem-per-cpu mem-per-gpu network no-kill no-requeue open-mode overcommit partition power
profile qos requeue reservation signal spread-job thread-spec threads-per-core tres-bind
use-min-nodes wait wait-all-nodes wckey
"""
_VARIABLES: Final = {
    **{f"SBATCH_{n.upper().replace('-', '_')}": f"--{n}" for n in _IN_ENVIRONMENT.split()},
    "SBATCH_ARRAY_INX": "--array",
    "SBATCH_MEM_PER_NODE": "--mem",
    "SBATCH_REQ_SWITCH": "--switches",
    "SBATCH_TIMELIMIT": "--time",
}


#: A job without a script, and a step for which nobody waits: without them it would be another one.
_REFUSED: Final = frozenset({"--external", "--async"})
_COMMAND: Final = ":"  # between the parts of a heterogeneous job


def parsed_options(words: Sequence[str], command: str) -> w.ParsedCommand:
    """Return the options of a command by their long names, and what follows them.

    Raises:
        SlurmError: a value cannot be read, or there are two jobs.
        OptionError: an option is unknown to Slurm.
    """
    read = parse(words, OPTIONS[command])
    stated = {SYNONYMS.get(name, name): value for name, value in read.options}
    check_values(stated)
    for option in sorted(_REFUSED & stated.keys()):
        raise SlurmError(f"{option} is not supported by gsched")
    if _COMMAND in words[: len(words) - len(read.operands)] or read.operands[:1] == (_COMMAND,):
        raise heterogeneous(_COMMAND)
    return w.ParsedCommand(stated, read.operands)


def sbatch(words: Sequence[str]) -> int:
    """Submit a batch script with the whole environment; its output goes to ``slurm-JOB.out``."""
    options, operands = parsed_options(words, "sbatch")
    with contextlib.ExitStack() as files:
        path, text = _script(options, operands, files)
        merged = _merged(text, options, where=operands[0] if operands else "-")
        check_values(merged)
        check_gres(merged)
        queues = merged.pop("--partition", "").split(",")
        request = requested("sbatch", merged)
        arguments = [*request.arguments, "-C", ""]
        if "--output" not in merged:
            element = "${GSCHED_ARRAY_NUMBER}_${GSCHED_ARRAY_INDEX}"
            number = element if "--array" in merged else "$GSCHED_JOB_NUMBER"
            arguments += ["-o", f"slurm-{number}.out"]
            arguments += [] if "--error" in merged else ["-j", "oe"]
        if "--job-name" not in merged:
            name = "wrap" if "--wrap" in options else os.path.basename(path)
            arguments += ["-N", name or "sbatch"]
        tail = [path, "--", *operands[1:]]
        arguments = with_queue("sbatch", arguments, queues, tail)
        if "--test-only" in options:
            return _test([*arguments, *tail])
        for each in request.warnings:
            print(f"sbatch: {each}", file=sys.stderr)
        return _submit([*arguments, *tail], options)


class Requested(NamedTuple):
    """What options of Slurm come to: arguments of gsub, and warnings."""

    arguments: list[str]
    warnings: list[str]


def requested(command: str, options: Mapping[str, str]) -> Requested:
    """Return what options of Slurm mean to gsub.

    Raises:
        SlurmError: gsched does not have what one of them requests.
    """
    lines = [
        DirectiveLine(0, SBATCH, shlex.join([word]), (word,))
        for word in (f"{name}={value}" if value else name for name, value in options.items())
    ]
    try:
        result = translated(lines, where=command, submit_dir=os.getcwd())
    except BadScriptError as error:
        hint = f"\n{error.hint}" if error.hint else ""
        raise SlurmError(error.message.removeprefix(f"{command}:0: ") + hint) from None
    arguments = [word for each in result.directives for word in each.words]
    arguments += [] if "--export" in options else ["-V"]
    for name, value in result.environment.items():
        arguments += ["-v", f'{name}="{value}"']
    return Requested(arguments, [each.removeprefix(f"{command}:0: ") for each in result.warnings])


def check_gres(options: Mapping[str, str]) -> None:
    """Refuse generic resources that no node has.

    Raises:
        SlurmError: as Slurm says it.
    """
    items = [each.partition(":")[0] for each in options.get("--gres", "").split(",") if each]
    names = {each.removeprefix("gres/") for each in items} - {"gpu", "none"}
    if names and names - {
        name for node in patient_head(command="sbatch").nodes().nodes for name in node.generic
    }:
        raise SlurmError("Invalid generic resource (gres) specification")


def with_queue(
    command: str, arguments: list[str], queues: Sequence[str], tail: Sequence[str]
) -> list[str]:
    """Return the arguments of gsub with a queue: the first of several in which the job fits.

    Raises:
        SlurmError: one of them does not exist.
    """
    named = [each for each in queues if each]
    if len(named) < 2:
        return [*arguments, *(["-q", named[0]] if named else [])]
    known = set(patient_head(command="sbatch").status().queues)
    for name in named:
        if name not in known:
            raise SlurmError(
                f"invalid partition specified: {name}\n"
                f"{failed(command)}: Invalid partition name specified"
            )
    for name in named:
        found = [*arguments, "-q", name]
        if _run(["--dry-run", *found, *tail], shown=False)[0] == 0:
            return found
    return [*arguments, "-q", named[0]]


def _script(
    options: Mapping[str, str], operands: Sequence[str], files: contextlib.ExitStack
) -> tuple[str, str]:
    """Return the path of the script and its text; of --wrap and stdin it is a new file.

    Raises:
        SlurmError: it cannot be one, in Slurm's words.
    """
    if "--wrap" in options:
        if operands:
            raise SlurmError("Script arguments not permitted with --wrap option")
        text, name = f"#!/bin/sh\n{options['--wrap']}\n", "wrap"
    elif operands and operands[0] != "-":
        return operands[0], _checked(operands[0])
    else:
        text, name = _checked("-"), "sbatch"
    directory = files.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path, text


def _checked(operand: str) -> str:
    try:
        script = read_script(operand)
    except UnreadableScriptError:
        raise SlurmError(f"Unable to open file {operand}") from None
    except BadScriptError as error:
        if error.message.endswith(" is empty"):
            raise SlurmError("Batch script is empty!") from None
        raise
    if not script.text.startswith("#!"):
        raise SlurmError(_NO_INTERPRETER)
    if script.has_dos_lines:
        raise SlurmError(_DOS_LINES)
    return script.text


def _merged(text: str, options: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Return the options of the script's lines and of the command line, which beats them.

    Raises:
        SlurmError: a line cannot be read.
    """
    merged: dict[str, str] = {}
    lines = foreign_lines(text, own=DEFAULT_PREFIXES)
    if not any(line.mark == SBATCH for line in lines) and "--ignore-pbs" not in options:
        _tell_of_pbs(text, where)
    for line in lines:
        if line.mark == SBATCH:
            try:
                stated = {SYNONYMS.get(name, name): value for name, value in options_of(line)}
                check_values(stated)
            except UsageError as error:
                raise line_refused(error, line, where) from None
            merged |= stated
    kinds = OPTIONS["sbatch"]
    merged |= {
        name: "" if kinds[name].value == NONE else environment(variable)
        for variable, name in _VARIABLES.items()
        if environment(variable)
    }
    merged |= {name: value for name, value in options.items() if name not in _OWN}
    # As Slurm has it: --partition= without a value says nothing.
    valued = {each.name for each in OPTIONS["sbatch"].values() if each.value == REQUIRED}
    return {name: value for name, value in merged.items() if value or name not in valued}


def _tell_of_pbs(text: str, where: str) -> None:
    """Warn of directives that sbatch does not read in a script that has no others."""
    for mark in DEFAULT_PREFIXES:
        if re.search(rf"^{mark}[ \t]+-", text, re.MULTILINE):
            note = f"{mark} lines are ignored; submit it with qsub or gsub"
            print(f"sbatch: {where}: {note}", file=sys.stderr)
            return


def _run(arguments: Sequence[str], *, shown: bool = True) -> tuple[int, str]:
    """Run gsub under the name of sbatch; return its exit code and what it prints on stdout."""
    from gsched.cli.commands.gsub import gsub  # late: the other commands submit nothing

    printed = io.StringIO()
    named = copy.copy(gsub)
    named.name = "sbatch"
    with contextlib.ExitStack() as streams:
        streams.enter_context(contextlib.redirect_stdout(printed))
        if not shown:
            streams.enter_context(contextlib.redirect_stderr(io.StringIO()))
        return status_of(named, list(arguments)), printed.getvalue()


def _test(arguments: Sequence[str]) -> int:
    """Print when and where a job would start, as ``sbatch --test-only`` does, on stderr."""
    status, text = _run(["--dry-run", "--json", *arguments], shown=False)
    if status:
        return _run(["--dry-run", *arguments])[0]
    plan = json.loads(text)
    start_s = plan.get("predicted_start_s")
    at = w.slurm_time(start_s, none="an unknown time")
    job = plan["job"]
    queue = job.get("queue") or patient_head(command="sbatch").status().queues[0]
    resources = parse_resources(job.get("resources", ()), generic_names=(), warn_unknown=True)
    count = sum(chunk.count * chunk.cpus for chunk in resources.request.chunks)
    print(
        f"sbatch: Job to start at {at} using {count} processors in partition {queue}",
        file=sys.stderr,
    )
    return 0


def _submit(arguments: Sequence[str], options: Mapping[str, str]) -> int:
    status, text = _run(arguments)
    job_id = text.split("\n", maxsplit=1)[0].strip()
    if status and not job_id:
        return status
    number = job_id.partition(".")[0].removesuffix("[]")
    if "--parsable" in options:
        print(number)
    elif "--quiet" not in options:
        print(f"Submitted batch job {number}")
    return status
