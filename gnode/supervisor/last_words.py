"""Why gsched ended a job, as the last line of the job's own error file.

It is written by a process of the owner's rights, after all processes of the job are gone and before
the exit record, so that whoever hears of the end finds it there. A file system that hangs costs
PATIENCE_S and the line.
"""

import os
import signal
import stat

from gnode.supervisor import kernel, privilege
from gnode.supervisor.spool import Task

PATIENCE_S = 5.0
_LOOK_S = 0.05
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK

#: By the reason for which gsched stopped it; others are no news for the owner.
_WORDS = {
    "walltime": "killed: exceeded its walltime limit of {walltime}",
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
    return text.format(walltime=_duration(task["walltime_s"]))


def _duration(seconds: float | None) -> str:
    whole = int(seconds or 0)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def say(task: Task, stderr_path: str, result: dict[str, object]) -> None:
    """Append the reason to the job's error file, if there is one to tell."""
    append(task, stderr_path, words(task, result))


def append(task: Task, stderr_path: str, text: str) -> None:
    """Append a line to the job's error file, if there is one, and something to be told."""
    if not text or not stderr_path:
        return
    line = f"gsched: job {task['job']}: {text}\n".encode("utf-8", "backslashreplace")
    try:
        pid = os.fork()
    except OSError:
        return  # the machine has none left: the outcome is still recorded
    if pid == 0:
        _write_and_end(task, stderr_path, line)
    end_s = kernel.boottime_s() + PATIENCE_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if kernel.boottime_s() > end_s:
            os.kill(pid, signal.SIGKILL)
            return
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK_S)


def _write_and_end(task: Task, path: str, line: bytes) -> None:
    try:
        if task["switch_user"]:
            groups = privilege.resolve_groups(task["user"], task["uid"], task["gid"])
            privilege.become(task["uid"], task["gid"], groups)
        fd = os.open(path, _FLAGS)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.write(fd, line)
    finally:
        os._exit(0)  # always: this is a forked copy, and the supervisor continues
