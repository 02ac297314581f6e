"""Copies files to a job's node before its program starts, and from there after its end.

All of it is done by processes of the attempt (`gnode.supervisor.errand` after the end). The
commands were made by gnode. All copies before the start have one time limit together, and all
after the end have another one. Files that could not be copied away are moved to the owner's home
directory.
"""

import contextlib
import errno
import os
import signal
import stat

from gnode.supervisor import kernel
from gnode.supervisor.errors import LaunchError
from gnode.task import FILES, STAGE_WORD, Task

KEPT = "gsched-undelivered"  # in the owner's home directory
SLACK_S = 10.0  # for what is no copy: a file that goes home, the end of a process
_LOOK_S = 0.2
_MESSAGE_BYTES = 400
_REMOVAL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def limit_s(task: Task) -> float:
    """Return how long the copies before the start may take together, seconds."""
    return task.stage_timeout_s


def has_begun_before(task: Task) -> bool:
    """Return whether an attempt begins before its program: it copies files or prepares itself."""
    stages = task.stage_in or (task.away and task.away.stage_in)
    return bool(stages or (task.programs and task.programs.prolog_user))


def bring(task: Task) -> None:
    """Copy what the job wants to find; the caller has the owner's rights, and is to be the job.

    Raises:
        LaunchError: a copy failed; it may work later.
    """
    end_s = kernel.boottime_s() + limit_s(task)
    for argv in task.stage_in:
        fault = _run(argv, _environment(task), end_s)
        if fault:
            if fault == _LATE:
                fault = f"stage-in was not done within {limit_s(task):.0f} s"
            raise LaunchError(
                f"stage-in failed: {_shown(argv)}{fault}",
                stage="files",
                subject="job",
                errno=errno.EIO,
            )


def takes_away(task: Task, *, is_away: bool) -> bool:
    """Return whether files are copied after the end."""
    return bool(task.stage_out or (is_away and task.away and task.away.leave))


def take_away(task: Task, *, is_away: bool) -> str:
    """Copy what the job has left; return what went wrong, in words.

    The caller is a process of the attempt, after all processes of the job are gone. ``is_away``:
    its node does not have the directory of submission.
    """
    end_s = kernel.boottime_s() + limit_s(task)
    faults = _leave(task, end_s) if is_away else []
    for argv in task.stage_out:
        fault = _run(argv, _environment(task), end_s)
        if fault:
            if fault == _LATE:
                fault = f"stage-out was not done within {limit_s(task):.0f} s"
            kept = _keep(task, argv[-2])
            faults.append(f"stage-out failed: {' '.join(argv)}: {fault}; {kept}")
    return "; ".join(faults)


def _leave(task: Task, end_s: float) -> list[str]:
    """Put what returns through the head into the outbox; return what went wrong, in words.

    What lies in the job's own directory is moved, so that it takes no more space.
    """
    away = task.away
    assert away is not None, "it says so"
    faults = []
    own = f"{os.path.realpath(task.user_dir)}/"
    place = f"{away.outbox}/{FILES}"
    for name, path in away.leave:
        if path.startswith(f"{task.user_dir}/"):
            _open_up(path)
        if not os.path.lexists(path):
            if away.rank:
                continue
            faults.append(f"stage-out failed: {path} does not exist")
            continue
        is_own = not os.path.islink(path) and os.path.realpath(path).startswith(own)
        target = f"{place}/{name}"
        try:
            os.makedirs(place, 0o700, exist_ok=True)
            command = ("mv", "-T") if is_own else ("cp", "-rpHT")
            fault = _run((*command, "--", path, target), _environment(task), end_s)
        except OSError as error:
            fault = os.strerror(error.errno or 0)
        if fault:
            _run(("rm", "-rf", "--", target), _environment(task), kernel.boottime_s() + SLACK_S)
            if fault == _LATE:
                fault = f"it was not done within {limit_s(task):.0f} s"
            faults.append(f"stage-out failed: {path}: {fault}; {_keep(task, path)}")
    return faults


def _open_up(top: str) -> None:
    """Give the owner the rights to move a file or directory: to it, what is in it, and its place.

    The job may have taken them from itself, to protect its results.
    """
    place = os.path.dirname(top)
    left = [top, place]
    while left:
        path = left.pop()
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode):
                continue
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)
            if path != place:
                with os.scandir(path) as found:
                    left += [each.path for each in found if each.is_dir(follow_symlinks=False)]


def _shown(argv: tuple[str, ...]) -> str:
    """Return a command for a message; the one through the head says itself what it copies."""
    return "" if STAGE_WORD in argv else f"{' '.join(argv)}: "


def remove_container(task: Task, limit_s: float) -> str:
    """Remove what the attempt's container has left; return what went wrong, in words.

    The caller is a process of the attempt.
    """
    removal = task.removal
    if not removal:
        return ""
    os.chdir("/")
    environment = {**removal.env, "PATH": _REMOVAL_PATH, "LANG": "C.UTF-8"}
    fault = _run(removal.argv, environment, kernel.boottime_s() + limit_s)
    if fault == _LATE:
        fault = f"it was not done within {limit_s:.0f} s"
    return f"the container was not removed: {fault}" if fault else ""


def _environment(task: Task) -> dict[str, str]:
    kept = ("HOME", "PATH", "USER")
    return {name: value for name, value in task.env.items() if name in kept}


def _keep(task: Task, path: str) -> str:
    """Move what could not be copied to where it stays; return where it is, in words."""
    if not path.startswith(f"{task.user_dir}/"):
        return f"the files are where the job left them on {_node(task)}: {path}"
    place = os.path.join(task.env.get("HOME", "/"), KEPT, f"{task.job}.{task.attempt}")
    try:
        os.makedirs(place, 0o700, exist_ok=True)
    except OSError as error:
        words = os.strerror(error.errno or 0)
        return f"they are lost: cannot make {place} on {_node(task)}: {words}"
    _open_up(path)
    name = target = os.path.join(place, os.path.basename(path))
    number = 0
    while os.path.lexists(target):  # of another directory
        number += 1
        target = f"{name}.{number}"
    end_s = kernel.boottime_s() + SLACK_S
    fault = _run(("mv", "-T", "--", path, target), _environment(task), end_s)
    if fault:
        return f"they are lost: {fault}"
    return f"the files are kept on {_node(task)} in {place}"


def _node(task: Task) -> str:
    return task.env.get("GSCHED_NODE", "the node")


_LATE = "late"


def _run(argv: tuple[str, ...], environment: dict[str, str], end_s: float) -> str:
    """Run a command to its end; return what went wrong, in words.

    What it starts and leaves stays in the attempt's control groups, and ends with the attempt.

    Args:
        argv: the command.
        environment: of the command.
        end_s: when it is killed, CLOCK_BOOTTIME.
    """
    messages = os.memfd_create("staging", os.MFD_CLOEXEC)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, messages, 1)]
        actions.append((os.POSIX_SPAWN_DUP2, messages, 2))
        try:
            pid = os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsigmask=())
        except OSError as error:
            return os.strerror(error.errno or 0)
        status = _wait(pid, end_s)
        if status is None:
            return _LATE
        if status == 0:
            return ""
        size = os.fstat(messages).st_size
        text = os.pread(messages, _MESSAGE_BYTES, max(0, size - _MESSAGE_BYTES)).decode(
            "utf-8", "replace"
        )
        return " ".join(text.split()) or f"exit code {os.waitstatus_to_exitcode(status)}"
    finally:
        os.close(messages)
        os.close(null)


def _wait(pid: int, end_s: float) -> int | None:
    """Return the status of a process; None: it was killed as it took too long."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if kernel.boottime_s() > end_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK_S)
