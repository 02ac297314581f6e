"""What can be seen wrong on the submitting machine, before the head is asked."""

import os

from gsched.cli.submit.place import SubmitContext
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import CannotWriteError, UnreadableScriptError, UsageError
from gsched.protocol.api import SubmitJob


def check_workdir(path: str) -> None:
    """Refuse a directory in which the job could not start.

    Raises:
        UsageError: missing, no directory, or not to be entered.
    """
    if not os.path.exists(path):
        raise UsageError(
            f"-d: directory {path} does not exist", hint=f"create it first: mkdir -p {path}"
        )
    if not os.path.isdir(path):
        raise UsageError(f"-d: {path} is not a directory", hint="give a directory")
    if not os.access(path, os.X_OK):
        raise UsageError(f"-d: no permission to enter {path}", hint="give a directory of your own")


def check_output(job: SubmitJob, place: SubmitContext, stated: StatedOptions) -> None:
    """Refuse output files that the job could not write; a path with a host is not looked at.

    Args:
        job: as it goes to the head.
        place: of submission.
        stated: what the options state.

    Raises:
        CannotWriteError: the directory is missing or read-only, or the file is read-only.
    """
    if job.join != "eo" and not ("stdout" in stated and stated["stdout"].names_host):
        _check_writable("-o", job.stdout_path or place.cwd + "/")
    if job.join != "oe" and not ("stderr" in stated and stated["stderr"].names_host):
        _check_writable("-e", job.stderr_path or place.cwd + "/")


def _check_writable(option: str, path: str) -> None:
    if path == "~/":  # on the node: the home directory there
        return
    if "$" in path:  # $PBS_JOBID: only what stands before it is known now
        known = os.path.dirname(path.partition("$")[0] + "x") + "/"
        if "$" in os.path.dirname(path) and not os.path.exists(known):
            return  # its user makes it when the job's number is known
        path = known
    directory = path if path.endswith("/") or os.path.isdir(path) else os.path.dirname(path)
    shown = directory.rstrip("/") or "/"
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(shown) else "does not exist"
        raise CannotWriteError(
            f"{option}: the output directory {shown} {what}",
            hint=f"create it first: mkdir -p {shown}; if it is on the nodes only, write HOST:PATH",
        )
    if os.path.isfile(path) and not os.access(path, os.W_OK):
        raise CannotWriteError(
            f"{option}: no permission to write {path}", hint=f"name another file with {option}"
        )
    makes_file = not os.path.exists(path) or os.path.isdir(path)
    if makes_file and not os.access(directory, os.W_OK | os.X_OK):
        raise CannotWriteError(
            f"{option}: no permission to create files in the output directory {shown}",
            hint=f"name a file in a directory of your own with {option}",
        )


def check_training_script(path: str) -> None:
    """Refuse a training script that is not there.

    Raises:
        UnreadableScriptError: missing, a directory, or not to be read.
    """
    if os.path.isdir(path):
        what = "is a directory"
    elif not os.path.exists(path):
        what = "does not exist"
    elif not os.access(path, os.R_OK):
        what = "cannot be read"
    else:
        return
    raise UnreadableScriptError(
        f"--torchrun: training script {path} {what}", hint="give the path of a Python script"
    )
