"""``srun`` inside a job on one node: starts the tasks, with their variables and output files."""

import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Final

from gsched.cli.slurm import words as w
from gsched.config import environment, full_environment
from gsched.errors import UsageError

_FLAGS: Final = {
    **dict.fromkeys(("-u", "--unbuffered"), "unbuffered"),
    **dict.fromkeys(("-l", "--label"), "label"),
    **dict.fromkeys(("-K", "--kill-on-bad-exit"), "kill"),
    **dict.fromkeys(("-v", "--verbose"), "verbose"),
    **dict.fromkeys(("-Q", "--quiet"), "quiet"),
    **dict.fromkeys(("--exclusive", "--exact", "--overlap", "--pty"), "ignored"),
}
_VALUED: Final = {
    **dict.fromkeys(("-n", "--ntasks"), "tasks"),
    **dict.fromkeys(("-N", "--nodes"), "nodes"),
    **dict.fromkeys(("-o", "--output"), "output"),
    **dict.fromkeys(("-e", "--error"), "error"),
    **dict.fromkeys(("-D", "--chdir"), "chdir"),
    **dict.fromkeys(("-c", "--cpus-per-task", "--cpu-bind", "--mpi", "--export"), "ignored"),
    **dict.fromkeys(
        ("-J", "--job-name", "--gres", "--gpus", "--mem", "--ntasks-per-node"), "other"
    ),
    "--open-mode": "open_mode",
    "--jobid": "other",
}
#: gsched sends signals to all processes of a job, tasks included: srun only waits for them.
_LEFT_TO_TASKS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


def srun(arguments: Sequence[str]) -> int:
    """Start a command as many times as the job has tasks; return the largest exit code."""
    options, command = w.parse(arguments, flags=_FLAGS, valued=_VALUED, operands_end_options=True)
    if not command:
        raise UsageError("no command given to execute")
    variables = full_environment()
    if "SLURM_JOB_ID" not in variables:
        raise UsageError(
            "srun runs inside a job only", hint="submit the command: gsub --watch -- COMMAND"
        )
    if environment("SLURM_NNODES", "1") != "1":
        raise UsageError(
            "srun starts tasks on one node only, and the job has several",
            hint="use gsub --torchrun or --every-node for jobs on several nodes",
        )
    tasks = _count(options.get("tasks") or environment("SLURM_NTASKS", "1"))
    for number in _LEFT_TO_TASKS:
        signal.signal(number, lambda *_: None)
    running = [_start(command, task, tasks, options, variables) for task in range(tasks)]
    return max(_exit_code(process.wait()) for process in running)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not int(text):
        raise UsageError(f"--ntasks: invalid number {text!r}")
    return int(text)


def _start(
    command: Sequence[str],
    task: int,
    tasks: int,
    options: Mapping[str, str],
    variables: Mapping[str, str],
) -> "subprocess.Popen[bytes]":
    own = {
        **variables,
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
    }
    mode = "ab" if options.get("open_mode", "truncate").startswith("a") else "wb"
    out = _opened(options.get("output", ""), task, variables, mode)
    err = _opened(options.get("error", ""), task, variables, mode)
    try:
        return subprocess.Popen(
            list(command),
            env=own,
            cwd=options.get("chdir"),
            stdin=subprocess.DEVNULL if task else None,
            stdout=out,
            stderr=err if err is not None else (subprocess.STDOUT if out is not None else None),
        )
    except OSError as error:
        raise UsageError(f"execve(): {command[0]}: {error.strerror}") from None
    finally:
        for stream in (out, err):
            if stream is not None:
                stream.close()


def _opened(pattern: str, task: int, variables: Mapping[str, str], mode: str) -> "IO[bytes] | None":
    if not pattern:
        return None
    names = {
        "t": str(task),
        "n": "0",
        "N": variables.get("SLURMD_NODENAME", ""),
        "u": variables.get("USER", ""),
        "x": variables.get("SLURM_JOB_NAME", ""),
        "a": variables.get("SLURM_ARRAY_TASK_ID", "0"),
        "A": variables.get("SLURM_ARRAY_JOB_ID", variables["SLURM_JOB_ID"]),
        **dict.fromkeys(("j", "J"), variables["SLURM_JOB_ID"]),
        "%": "%",
    }
    path = re.sub(r"%([tnNuxaAjJ%])", lambda match: names[match[1]], pattern)
    sys.stdout.flush()
    return open(path, mode)


def _exit_code(status: int) -> int:
    return 128 - status if status < 0 else status
