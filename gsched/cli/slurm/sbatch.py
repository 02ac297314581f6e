"""sbatch: submits a batch script, or with ``--wrap`` a command, through gsub's own code."""

import contextlib
import copy
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from gsched.cli.common import status_of
from gsched.cli.slurm import words as w
from gsched.cli.submit.directives import DEFAULT_PREFIXES
from gsched.cli.submit.foreign import Line, foreign_lines, options_of
from gsched.cli.submit.foreign_directives import translated
from gsched.cli.submit.scripts import read_script
from gsched.cli.submit.slurm_request import OPTIONS, SYNONYMS
from gsched.config import environment

#: Options without a value, or with one that may be left out.
_FLAGS: Final = (
    *("--parsable", "--wait", "--test-only", "--hold", "--exclusive", "--requeue", "--no-requeue"),
    *("--get-user-env", "--overcommit", "--spread-job", "--verbose", "--quiet", "--no-kill"),
    *("--nice", "--propagate", "--contiguous", "--use-min-nodes", "--reboot", "--ignore-pbs"),
    *("--oversubscribe", "--immediate"),
)
_VALUED: Final = (
    *("--account", "--array", "--begin", "--chdir", "--comment", "--constraint", "--cpus-per-task"),
    *("--dependency", "--error", "--export", "--gpus", "--gpus-per-node", "--gpus-per-task"),
    *("--gres", "--job-name", "--mail-type", "--mail-user", "--mem", "--mem-per-cpu"),
    *("--mem-per-gpu", "--nodelist", "--nodes", "--ntasks", "--ntasks-per-node"),
    *("--open-mode", "--output", "--partition", "--qos", "--signal", "--time", "--wckey", "--wrap"),
    *("--clusters", "--distribution", "--hint", "--profile", "--threads-per-core", "--mincpus"),
    *("--cpus-per-gpu", "--licenses", "--exclude", "--reservation", "--input", "--tmp"),
    *("--kill-on-invalid-dep", "--gpu-bind", "--gpu-freq", "--mem-bind", "--cpu-freq"),
    *("--gres-flags", "--acctg-freq", "--switches", "--core-spec", "--thread-spec", "--network"),
    *("--power", "--prefer", "--delay-boot", "--time-min", "--extra-node-info", "--priority"),
    *("--sockets-per-node", "--cores-per-socket", "--ntasks-per-core", "--ntasks-per-socket"),
    *("--ntasks-per-gpu", "--deadline", "--uid", "--gid", "--export-file", "--container"),
    *("--container-image", "--container-mounts", "--container-workdir"),
    *("--mcs-label", "--extra", "--nodefile", "--bb", "--bbf", "--batch"),
)
_SHORT: Final = {
    **OPTIONS,
    "-A": "--account",
    "-a": "--array",
    "-B": "--extra-node-info",
    "-b": "--begin",
    "-D": "--chdir",
    "-d": "--dependency",
    "-e": "--error",
    "-F": "--nodefile",
    "-H": "--hold",
    "-i": "--input",
    "-I": "--immediate",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-s": "--oversubscribe",
    "-S": "--core-spec",
    "-t": "--time",
    "-W": "--wait",
    "-v": "--verbose",
    "-x": "--exclude",
    "-Q": "--quiet",
    "-M": "--clusters",
    "-m": "--distribution",
    "-O": "--overcommit",
}
_OWN: Final = frozenset({"--parsable", "--wrap", "--test-only"})
#: Variables of the environment that stand for options; the command line beats them.
_VARIABLES: Final = {
    "SBATCH_ACCOUNT": "--account",
    "SBATCH_CONSTRAINT": "--constraint",
    "SBATCH_EXPORT": "--export",
    "SBATCH_GRES": "--gres",
    "SBATCH_GPUS": "--gpus",
    "SBATCH_JOB_NAME": "--job-name",
    "SBATCH_MEM_PER_CPU": "--mem-per-cpu",
    "SBATCH_MEM_PER_NODE": "--mem",
    "SBATCH_PARTITION": "--partition",
    "SBATCH_QOS": "--qos",
    "SBATCH_SIGNAL": "--signal",
    "SBATCH_TIMELIMIT": "--time",
}


def parsed_options(
    words: Sequence[str], *, flags: Sequence[str] = (), valued: Sequence[str] = ()
) -> w.Parsed:
    """Return the options by their long names, and what follows them.

    Args:
        words: of the command line.
        flags: further options without a value.
        valued: further options with one.
    """
    short_flags = {each: name for each, name in _SHORT.items() if name in _FLAGS}
    short_valued = {each: name for each, name in _SHORT.items() if name in _VALUED}
    return w.parse(
        words,
        flags={**{name: name for name in (*_FLAGS, *flags)}, **short_flags},
        valued={**{name: name for name in (*_VALUED, *valued)}, **SYNONYMS, **short_valued},
        operands_end_options=True,
    )


def sbatch(words: Sequence[str]) -> int:
    """Submit a batch script with the whole environment; its output goes to ``slurm-JOB.out``."""
    options, operands = parsed_options(words)
    with contextlib.ExitStack() as files:
        path, text = _script(options, operands, files)
        merged = _merged(text, options)
        lines = [
            Line(0, "#SBATCH", shlex.join([f"{name}={value}" if value else name]))
            for name, value in merged.items()
        ]
        result = translated(lines, where="sbatch", submit_dir=os.getcwd())
        arguments = [word for each in result.directives for word in each.words]
        arguments += ["-C", ""]
        if "--export" not in merged:
            arguments.append("-V")
        if "--output" not in merged:
            element = "${GSCHED_ARRAY_NUMBER}_${GSCHED_ARRAY_INDEX}"
            number = element if "--array" in merged else "$GSCHED_JOB_NUMBER"
            arguments += ["-o", f"slurm-{number}.out"]
            arguments += [] if "--error" in merged else ["-j", "oe"]
        if "--job-name" not in merged:
            arguments += ["-N", "wrap" if "--wrap" in options else os.path.basename(path)]
        for name, value in result.environment.items():
            arguments += ["-v", f'{name}="{value}"']
        if "--test-only" in options:
            arguments.append("--dry-run")
        for text_ in result.warnings:
            print(f"sbatch: {text_}", file=sys.stderr)
        return _submit([*arguments, path, "--", *operands[1:]], options)


def _script(
    options: Mapping[str, str], operands: Sequence[str], files: contextlib.ExitStack
) -> tuple[str, str]:
    """Return the path of the script and its text; of --wrap and stdin it is a new file."""
    if "--wrap" in options:
        text, name = f"#!/bin/sh\n{options['--wrap']}\n", "wrap"
    elif operands and operands[0] != "-":
        return operands[0], read_script(operands[0]).text
    else:
        text, name = read_script("-").text, "sbatch"
    directory = files.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path, text


def _merged(text: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the script's lines and of the command line, which beats them."""
    merged: dict[str, str] = {}
    for line in foreign_lines(text, own=DEFAULT_PREFIXES):
        if line.mark == "#SBATCH":
            for name, value in options_of(line):
                merged[SYNONYMS.get(name, _SHORT.get(name, name))] = value
    merged |= {
        name: environment(variable)
        for variable, name in _VARIABLES.items()
        if environment(variable)
    }
    merged |= {name: value for name, value in options.items() if name not in _OWN}
    # As Slurm has it: --partition= without a value says nothing.
    return {name: value for name, value in merged.items() if value or name not in _VALUED}


def _submit(arguments: Sequence[str], options: Mapping[str, str]) -> int:
    from gsched.cli.commands.gsub import gsub  # late: the other commands submit nothing

    told = io.StringIO()
    named = copy.copy(gsub)
    named.name = "sbatch"
    with contextlib.redirect_stdout(told):
        status = status_of(named, list(arguments))
    job_id = told.getvalue().split("\n", maxsplit=1)[0].strip()
    if status and not job_id:
        return status
    if "--test-only" in options:
        sys.stderr.write(told.getvalue())
        return status
    number = job_id.partition(".")[0].removesuffix("[]")
    print(number if "--parsable" in options else f"Submitted batch job {number}")
    return status
