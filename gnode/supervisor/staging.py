"""Copies files to a job's node before its program starts, and from there after its end.

All of it is done with the owner's rights. The commands were made by gnode; each has a time limit.
Files that could not be copied away after the end are moved to the owner's home directory.
"""

import contextlib
import errno
import os
import signal

from gnode.supervisor import kernel, privilege
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.spool import Task

KEPT = "gsched-undelivered"  # in the owner's home directory
_LOOK_S = 0.2
_SAID_BYTES = 400
_SLACK_S = 10.0


def patience_s(task: Task) -> float:
    """Return how long the copies before the start may take together, seconds."""
    return len(task.get("stage_in", ())) * (task.get("stage_timeout_s", 0.0) + _SLACK_S)


def bring(task: Task) -> None:
    """Copy what the job wants to find; the caller has the owner's rights, and is to be the job.

    Raises:
        LaunchError: a copy failed; it may work later.
    """
    for argv in task.get("stage_in", ()):
        fault = _run(task, argv)
        if fault:
            raise LaunchError(
                f"stage-in failed: {' '.join(argv)}: {fault}",
                stage="files",
                subject="job",
                errno=errno.EIO,
            )


def take_away(task: Task) -> str:
    """Copy what the job has left; return what went wrong, in words.

    It is done by a process with the owner's rights, after all processes of the job are gone.
    """
    commands = task.get("stage_out", ())
    if not commands:
        return ""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return f"stage-out failed: {os.strerror(error.errno or 0)}"
    if pid == 0:
        _take_away_and_end(task, writer)
    os.close(writer)
    end_s = kernel.boottime_s() + 2 * len(commands) * (task.get("stage_timeout_s", 0.0) + _SLACK_S)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if kernel.boottime_s() > end_s:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK_S)
    with open(reader, "rb") as said:
        return said.read(16_384).decode("utf-8", "replace")


def _take_away_and_end(task: Task, writer: int) -> None:
    try:
        os.setsid()
        if task["switch_user"]:
            groups = privilege.resolve_groups(task["user"], task["uid"], task["gid"])
            privilege.become(task["uid"], task["gid"], groups)
        os.umask(task["umask"])
        faults = []
        for argv in task.get("stage_out", ()):
            fault = _run(task, argv)
            if fault:
                kept = _keep(task, argv[-2])
                faults.append(f"stage-out failed: {' '.join(argv)}: {fault}; {kept}")
        os.write(writer, "; ".join(faults).encode("utf-8", "replace")[:16_000])
    finally:
        os._exit(0)  # always: this is a forked copy, and the supervisor continues


def _keep(task: Task, path: str) -> str:
    """Move what could not be copied to where it stays; return where it is, in words."""
    if not path.startswith(f"{task['user_dir']}/"):
        return f"the files are where the job left them: {path}"
    place = os.path.join(task["env"].get("HOME", "/"), KEPT, f"{task['job']}.{task['attempt']}")
    try:
        os.makedirs(place, 0o700, exist_ok=True)
    except OSError as error:
        return f"they are lost: cannot make {place}: {os.strerror(error.errno or 0)}"
    fault = _run(task, ["mv", "--", path, place])
    return f"they are lost: {fault}" if fault else f"the files are kept in {place}"


def _run(task: Task, argv: list[str]) -> str:
    """Run a command to its end; return what went wrong, in words."""
    said = os.memfd_create("staging", os.MFD_CLOEXEC)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, said, 1)]
        actions.append((os.POSIX_SPAWN_DUP2, said, 2))
        kept = ("HOME", "PATH", "USER")
        env = {name: value for name, value in task["env"].items() if name in kept}
        try:
            pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsigmask=())
        except OSError as error:
            return os.strerror(error.errno or 0)
        limit_s = task.get("stage_timeout_s", 0.0)
        status = _wait(pid, limit_s)
        if status is None:
            return f"not done within {limit_s:.0f} s"
        if status == 0:
            return ""
        size = os.fstat(said).st_size
        text = os.pread(said, _SAID_BYTES, max(0, size - _SAID_BYTES)).decode("utf-8", "replace")
        return " ".join(text.split()) or f"exit code {os.waitstatus_to_exitcode(status)}"
    finally:
        os.close(said)
        os.close(null)


def _wait(pid: int, limit_s: float) -> int | None:
    """Return the status of a process; None: it was killed as it took too long."""
    end_s = kernel.boottime_s() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if kernel.boottime_s() > end_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK_S)
