"""A job whose node lacks the directory of submission: where it starts, and what returns from there.

It starts in a directory of its own, and its output goes into its *outbox*, from which gnode sends
it to the host of submission after the end (`gnode.daemon.deliveries`). Whether the directory is
here is looked at by the process that becomes the job, as its owner, so a file server that hangs
delays this job only.
"""

import contextlib
import os
from typing import Final

from gnode.supervisor.errors import LaunchError
from gnode.supervisor.user_dir import make_owned
from gnode.task import STDERR, STDOUT, Task
from gsched.directories import has_same

#: Where a job's commands look for its files: ``cd $PBS_O_WORKDIR`` stands in many scripts.
_DIRECTORIES: Final = ("PBS_O_WORKDIR", "PBS_O_INITDIR", "SLURM_SUBMIT_DIR")


def make_outbox(task: Task) -> None:
    """Make the outbox of an attempt that may need one, as the supervisor.

    Raises:
        LaunchError: it cannot be made.
    """
    if task.away is None:
        return
    try:
        os.close(make_owned(task, task.away.outbox))
    except OSError as error:
        raise LaunchError(
            f"cannot make the directory for the job's output: {error}",
            stage="spool",
            subject="node",
            errno=error.errno or 0,
        ) from error


def remove_outbox(task: Task) -> None:
    """Remove the outbox of an attempt that has put nothing into it."""
    if task.away is not None:
        with contextlib.suppress(OSError):
            os.rmdir(task.away.outbox)


def look(task: Task) -> bool:
    """Adapt a task to a node that lacks its directory of submission; return whether it does.

    The caller has the owner's rights.
    """
    away = task.away
    if away is None or has_same(away.submit_dir, away.mark):
        return False
    if away.scratch:
        os.makedirs(away.scratch, 0o700, exist_ok=True)
    adapt(task)
    return True


def adapt(task: Task) -> None:
    """Let a task start in its own directory, and write into its outbox; twice is as once."""
    away = task.away
    assert away is not None, "only such a task is adapted"
    if away.scratch:
        task.cwd = away.scratch
    one_file = task.stdout_path == task.stderr_path and not task.stdout_path.endswith("/")
    for letter, name in (("o", STDOUT), ("e", STDERR)):
        path = f"{name}_path"
        if letter not in away.kept and not getattr(task, path).startswith("/dev/"):
            setattr(task, path, f"{away.outbox}/{STDOUT if one_file else name}")
    task.stage_in, task.stage_out = away.stage_in, away.stage_out
    if away.scratch:
        task.env |= {name: away.scratch for name in _DIRECTORIES if name in task.env}
