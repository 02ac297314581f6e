"""Starts the process of a task, which may be told its own process id, and leaves signals to it.

Only the standard library is used here, as step agents start quickly.
"""

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

#: A step of Slurm's has this variable, and its tasks read their process ids in the other.
_STEP: Final = "SLURM_STEP_ID"
TASK_PID: Final = "SLURM_TASK_PID"


def leave_signals(numbers: Iterable[signal.Signals]) -> None:
    """Leave the signals of the job to its tasks: this process catches them and does nothing.

    It has a handler, and does not ignore them, so that tasks do not inherit that. Its name tells
    the supervisor that it saves nothing at them (`gnode.supervisor.proc`).
    """
    for number in numbers:
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(b"gsv steps")


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str | None,
    streams: tuple[int | None, int | None, int | None],
    start_new_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program with exactly these variables, looked for along their ``PATH``.

    Args:
        argv: the program and its arguments.
        env: its variables.
        cwd: its working directory; None: that of this process.
        streams: its standard input, output and error, as `subprocess.Popen` takes them.
        start_new_session: in a session of its own.

    Raises:
        OSError: it cannot be started.
    """
    stdin, stdout, stderr = streams
    is_step = _STEP in env
    return subprocess.Popen(
        list(argv),
        executable=_path_of(argv[0], env, cwd or "") if is_step else None,
        env=None if is_step else dict(env),
        preexec_fn=partial(_take, env) if is_step else None,  # noqa: PLW1509 - see _take
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=start_new_session,
    )


def _take(env: Mapping[str, str]) -> None:
    """Set the variables of this freshly forked process, which alone knows its process id.

    Threads of its parent dial programs and change no variables, so no lock of theirs matters here.
    """
    own = os.environ  # noqa: TID251 - they are set, not read, and in the new process only
    own.clear()
    own.update({**env, TASK_PID: str(os.getpid())})


def _path_of(program: str, env: Mapping[str, str], cwd: str) -> str:
    """Return the file of a program, as ``execvp`` finds it in the task's directory."""
    if "/" in program:
        return program
    denied = False
    for directory in os.get_exec_path(dict(env)):
        path = os.path.join(directory, program)
        seen = os.path.join(cwd, path)
        if os.path.isfile(seen):
            if os.access(seen, os.X_OK):
                return path if "/" in path else f"./{path}"
            denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number), program)
