"""Why gsched ended a job, as the last line of the job's own error file.

It is written by a process of the attempt (`gnode.supervisor.errand`), after all processes of the
job are gone and before the exit record, so that whoever hears of the end finds it there. A
file system that hangs costs PATIENCE_S and the line.
"""

import os
import stat
from collections.abc import Sequence

from gnode.task import Task

PATIENCE_S = 5.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK

#: By the reason for which gsched stopped it; others are no news for the owner.
_WORDS = {
    "walltime": "terminated: exceeded its walltime limit of {walltime}",
    "delete": "cancelled by request; see gstat -f",
    "rerun": "stopped to be requeued",
    "peer_failed": "stopped: its part on another node has ended",
    "node_stop": "stopped: the node was told to stop its jobs",
    "fenced": "stopped: the head has given this attempt up",
}


def words(task: Task, result: dict[str, object]) -> str:
    """Return why gsched ended the job, or could not start it; empty: it ended by itself."""
    if result.get("kind") in {"oom", "launch_failed", "node_lost"}:
        return str(result.get("message", ""))
    text = _WORDS.get(str(result.get("stop_reason", "")), "")
    return text.format(walltime=_duration(task.walltime_s))


def _duration(seconds: float | None) -> str:
    whole = int(seconds or 0)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def append(task: Task, stderr_path: str, lines: Sequence[str]) -> str:
    """Append lines to the job's error file; the caller is a process of the attempt.

    Returns:
        What went wrong, which nobody is told: the outcome is recorded anyway.
    """
    job = task.env.get("GSCHED_JOB_ID", str(task.job)).partition(".")[0]
    append_text(stderr_path, "".join(f"gsched: job {job}: {line}\n" for line in lines))
    return ""


def append_text(path: str, text: str) -> None:
    """Append text to a file of the owner's, if it is a regular one."""
    fd = os.open(path, _FLAGS)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        os.write(fd, text.encode("utf-8", "backslashreplace"))
