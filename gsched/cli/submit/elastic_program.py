"""What can be seen at submission of a program that is to be elastic: its import, its Python."""

import os
import re

from gsched.cli.submit.readers import find_program
from gsched.model.signals import SIGNAL_NAMES
from gsched.model.states import LaunchKind
from gsched.protocol.submissions import SubmitJob

MAX_PROGRAM_BYTES = 1024 * 1024  # of a program that is looked at for what it imports
LOOK_TIMEOUT_S = 5.0  # a Python on a slow file system; then nothing is said of it
#: HUP, INT, QUIT and TERM: Python or torchrun have handlers for them, which end the program.
_ENDING = frozenset({1, 2, 3, 15})
_MISSING_STATUS = 3
_PYTHON = re.compile(r"python(?:[0-9][0-9.]*)?")
#: Run by the Python that is looked at, which may be old; nothing but its finders is imported.
_LOOK = f"""
import sys
sys.path[0] = sys.argv[1]
from importlib.util import find_spec
def has(name):
    try:
        return find_spec(name) is not None
    except Exception:
        return False
if not has("gsched.elastic"):
    print(" and no ".join(["gsched.elastic"] + ["torch"] * (not has("torch"))))
    sys.exit({_MISSING_STATUS})
"""


def elastic_notes(job: SubmitJob) -> list[str]:
    """Return a warning if an elastic job's program cannot be elastic, as far as can be seen here.

    Either it shows no sign of gsched.elastic, or its Python does not have that. Only what torchrun
    is given, or a command that is Python's, is looked at; a module of the program may do the
    import, and the Python on the nodes may be another one.
    """
    if job.checkpoint_signal:
        return _signal_notes(job.checkpoint_signal)
    if not job.movable:
        return []
    program = next((word for word in job.arguments if word.endswith(".py")), "")
    path = os.path.join(job.workdir, program)
    if job.launch == LaunchKind.TORCHRUN and program and not _may_import(path):
        warning = (
            f"--elastic is given, but {program} does not import gsched.elastic: unless one of its "
            "modules does, the job cannot save checkpoints, cannot be migrated and runs on its "
            "fewest GPUs"
        )
        return [warning]
    python = _python(job)
    missing = _missing(python, job, os.path.dirname(path)) if python else ""
    if not missing:
        return []
    other = "name" if job.launch == LaunchKind.TORCHRUN else "start the program with"
    option = " with --python" if job.launch == LaunchKind.TORCHRUN else ""
    warning = (
        f"--elastic is given, but {python} has no {missing}, so the job will fail: in a checkout "
        f"of gsched run '{python} -m pip install ./packages/gsched-elastic', or {other} the "
        f"training's Python{option}"
    )
    return [warning]


def _signal_notes(number: int) -> list[str]:
    """Return a warning of a checkpoint signal at which launchers, or Python itself, end."""
    if number not in _ENDING:
        return []
    name = SIGNAL_NAMES[number]
    warning = (
        f"--checkpoint-signal {name}: Python ends at INT, and torchrun at HUP, INT, QUIT and TERM, "
        f"without saving anything: unless the program handles {name} itself, it is killed and "
        "restarted instead of migrated; USR1 and USR2 are safe"
    )
    return [warning]


def _may_import(path: str) -> bool:
    """Return whether a program's text speaks of gsched; True if it cannot be read here."""
    try:
        with open(path, "rb") as file:
            return b"gsched" in file.read(MAX_PROGRAM_BYTES)
    except OSError:
        return True  # it may be on the nodes only


def _python(job: SubmitJob) -> str:
    """Return the Python that will run a job's program; nothing where that cannot be seen."""
    if job.launch == LaunchKind.TORCHRUN:
        return job.python
    if job.launch != LaunchKind.COMMAND or not job.arguments:
        return ""
    search = job.environment.get("PATH", "")
    program = find_program(job.arguments[0], search)
    if _PYTHON.fullmatch(os.path.basename(job.arguments[0])):
        return program
    words = _first_line(program)  # of torchrun, accelerate, or another script of Python's
    if words and os.path.basename(words[0]) == "env":
        words = [find_program(words[-1], search)]
    return words[0] if words and _PYTHON.fullmatch(os.path.basename(words[0])) else ""


def _first_line(program: str) -> list[str]:
    """Return the words after ``#!`` of a script."""
    try:
        with open(program, "rb") as file:
            line = file.readline(4096)
    except OSError:
        return []
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def _missing(python: str, job: SubmitJob, folder: str) -> str:
    """Return what a Python cannot import, in words; nothing if all is there, or it is not known.

    It gets the variables that the job will have, so that a PYTHONPATH which the job does not take
    along does not count.
    """
    import subprocess  # late: few jobs are elastic

    home = {"HOME": os.path.expanduser("~")}
    try:
        ran = subprocess.run(
            [python, "-c", _LOOK, folder],
            env={**home, **job.environment},
            cwd=job.workdir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOK_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == _MISSING_STATUS else ""
