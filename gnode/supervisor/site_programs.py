"""The site's programs around a job: health checks, prolog, epilog, and the owner's parts of both.

The prolog runs in the supervisor's rights before the process of the job is made, the epilog in a
process of the launcher once the exit record is written: it is the gate between the end of an
attempt and the next start on its resources. The owner's parts are processes of the attempt.
"""

import contextlib
import grp
import json
import os
import select
import signal
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from gnode.supervisor import kernel, last_words, proc, spool, terminal
from gnode.supervisor.errors import LaunchError, Stage, printable, reason
from gnode.supervisor.journal import Journal, open_journal
from gnode.task import Task

_LOOK_S = 0.2  # how often a program that runs is looked after
_WRITE_AGAIN_S = 1.0
_READ_BYTES = 1 << 16
_KEPT_BYTES = 4096  # of the end of a program's output
_REASON_LINES = 3
_REASON_CHARACTERS = 400
_UMASK = 0o022  # of root's programs: what they make is for the jobs of others
SLACK_S = 5.0  # for the end of a process beside its program


class Finished(NamedTuple):
    """How a program has ended: what went wrong, in words, and the end of its output."""

    fault: str
    output: str


def run(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    limit_s: float,
    look: Callable[[], None] = lambda: None,
) -> Finished:
    """Run a program to its end as a session of its own.

    What it has left in its process group is killed when it ends, and all that descends from it when
    it takes too long.

    Args:
        argv: the program and its arguments.
        env: its environment.
        limit_s: how long it may take.
        look: called while it runs; what it raises ends the program.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.set_blocking(writer, True)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, writer, number) for number in (1, 2)]
        try:
            pid = os.posix_spawn(
                argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=()
            )
        except OSError as error:
            return Finished(f"it cannot be run: {reason(error)}", "")
    finally:
        os.close(writer)
        os.close(null)
    try:
        return _attend(pid, reader, limit_s, look)
    finally:
        os.close(reader)


def _attend(pid: int, reader: int, limit_s: float, look: Callable[[], None]) -> Finished:
    until_s = kernel.boottime_s() + limit_s
    output = b""
    status: int | None = None
    pidfd = os.pidfd_open(pid)
    try:
        awaited = select.poll()
        awaited.register(pidfd, select.POLLIN)
        awaited.register(reader, select.POLLIN)
        while status is None and kernel.boottime_s() < until_s:
            for fd, events in awaited.poll(_LOOK_S * 1000):
                if fd == reader and not events & select.POLLIN:
                    awaited.unregister(reader)  # nothing has it open any more
            output = _read(reader, output)
            found, ended = os.waitpid(pid, os.WNOHANG)
            status = ended if found else None
            look()
    finally:
        os.close(pidfd)
        if status is None:
            proc.send(proc.descendants((pid,), proc.snapshot()) | {pid}, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            os.waitpid(pid, 0)
    text = _read(reader, output).decode("utf-8", "replace")
    return Finished(_fault(status, limit_s, text), text)


def _read(reader: int, output: bytes) -> bytes:
    """Return the end of what was read, with what there is to read now."""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reader, _READ_BYTES):
            output = (output + part)[-_KEPT_BYTES:]
    return output


def _fault(status: int | None, limit_s: float, output: str) -> str:
    if status == 0:
        return ""
    if status is None:
        fault = f"it did not end within {limit_s:g} s"
    elif os.WIFSIGNALED(status):
        fault = f"signal {os.WTERMSIG(status)} ended it"
    else:
        fault = f"exit code {os.WEXITSTATUS(status)}"
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    last = " / ".join(lines[-_REASON_LINES:])[-_REASON_CHARACTERS:]
    return printable(f"{fault}: {last}" if last else fault)


def _log(task: Task, name: str, output: str) -> None:
    for line in output.splitlines():
        spool.log(f"{task.job}.{task.attempt}: {name}: {printable(line)}")


def _group_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OSError):
        return str(gid)


# --- before the start ---


def prepare(task: Task, look: Callable[[], None]) -> None:
    """Run the health checks and the prolog of an attempt, as this process's user.

    Args:
        task: of the attempt.
        look: called while a program runs; it raises to give the start up.

    Raises:
        LaunchError: one of them failed; the node is not fit for the job.
    """
    programs = task.programs
    if programs is None:
        return
    steps: list[tuple[Stage, str, str, float]] = [
        ("health", f"health check {name}", path, limit_s) for name, path, limit_s in programs.checks
    ]
    if programs.prolog:
        steps.append(("prolog", "prolog", programs.prolog, programs.prolog_timeout_s))
    job, requested, *names = programs.arguments
    group = _group_of(task.gid)
    arguments = (job, task.user, group, programs.name, requested, *names)
    for stage, title, path, limit_s in steps:
        env = {**programs.variables, "GSCHED_GROUP": group, "GSCHED_STAGE": stage}
        finished = _as_root((path, *arguments), env, limit_s, look)
        _log(task, title, finished.output)
        if finished.fault:
            raise LaunchError(
                f"{title} {path} failed: {finished.fault}", stage=stage, subject="node"
            )


def _as_root(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    limit_s: float,
    look: Callable[[], None] = lambda: None,
) -> Finished:
    umask = os.umask(_UMASK)
    try:
        return run(argv, env, limit_s, look)
    finally:
        os.umask(umask)


def prepare_as_owner(task: Task, stderr: int) -> None:
    """Run the owner's part of the prolog; the caller is the job's process, in its directory.

    Raises:
        LaunchError: it failed.
    """
    programs = task.programs
    if programs is None or not programs.prolog_user:
        return
    env = {**task.env, "GSCHED_STAGE": "prolog_user"}
    finished = run((programs.prolog_user,), env, programs.prolog_timeout_s)
    os.write(stderr, finished.output.encode("utf-8", "surrogateescape"))
    if finished.fault:
        raise LaunchError(
            f"prolog_user {programs.prolog_user} failed: {finished.fault}",
            stage="prolog_user",
            subject="user",
        )


# --- after the end ---


def finish_as_owner(task: Task, result: Mapping[str, object], stderr_path: str) -> str:
    """Run the owner's part of the epilog; return what went wrong, in words.

    The caller is a process of the attempt, after all processes of the job are gone.
    """
    programs = task.programs
    assert programs is not None, "the caller has looked"
    try:
        os.chdir(task.cwd)
    except OSError:  # the job may have removed it
        os.chdir("/")
    env = {**task.env, **_exit_variables(result), "GSCHED_STAGE": "epilog_user"}
    finished = run((programs.epilog_user,), env, programs.epilog_timeout_s)
    if finished.output and stderr_path:
        with contextlib.suppress(OSError):
            last_words.append_text(stderr_path, finished.output)
    if finished.fault:
        return f"epilog_user {programs.epilog_user} failed: {finished.fault}"
    return ""


def _exit_variables(result: Mapping[str, object]) -> dict[str, str]:
    names = {
        "GSCHED_EXIT_KIND": "kind",
        "GSCHED_EXIT_CODE": "exit_code",
        "GSCHED_EXIT_SIGNAL": "signal",
        "GSCHED_STOP_REASON": "stop_reason",
    }
    values = {name: result.get(key) for name, key in names.items()}
    return {name: "" if value is None else str(value) for name, value in values.items()}


def become_epilog(directory: str) -> NoReturn:
    """Run the epilog of an attempt that has ended, once; never returns.

    For a freshly forked process of the launcher. One that an earlier launcher has left runs to its
    end first.
    """
    try:
        os.setsid()
        terminal.close_all_but()
        kernel.become_subreaper()
        kernel.set_name(b"gsv epilog")
        journal = open_journal(directory)
        journal.lock()
        story = journal.story()
        if story.epilog is None and story.ended is not None:
            fault = _epilog(directory, json.loads(story.ended)) if story.begun else ""
            _write_down(journal, directory, fault)
    except (OSError, ValueError) as error:
        spool.log(f"{directory}: its epilog cannot be run: {error}")
    finally:
        os._exit(0)


def _epilog(directory: str, result: Mapping[str, object]) -> str:
    task = spool.read_task(directory)
    programs = task.programs if task is not None else None
    if task is None or programs is None or not programs.epilog:
        return ""
    job, requested, *names = programs.arguments
    group = _group_of(task.gid)
    code = result.get("exit_code")
    status = code if code is not None else 256 + int(str(result.get("signal") or 15))
    used = (
        f"cput={_clock(result.get('cpu_s'))},mem={_kilobytes(result)}kb,"
        f"walltime={_clock(result.get('wall_s'))}"
    )
    arguments = (job, task.user, group, programs.name, "0", requested, used, *names, str(status))
    env = {
        **programs.variables,
        **_exit_variables(result),
        "GSCHED_GROUP": group,
        "GSCHED_STAGE": "epilog",
    }
    finished = _as_root((programs.epilog, *arguments), env, programs.epilog_timeout_s)
    _log(task, "epilog", finished.output)
    return f"epilog {programs.epilog} failed: {finished.fault}" if finished.fault else ""


def _clock(seconds: object) -> str:
    whole = int(seconds) if isinstance(seconds, int | float) else 0
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _kilobytes(result: Mapping[str, object]) -> int:
    size = result.get("memory_peak_bytes")
    return size // 1024 if isinstance(size, int) else 0


def _write_down(journal: Journal, directory: str, fault: str) -> None:
    """Write that the epilog has ended, however long the disk is full; gnode waits for it."""
    warned = False
    while True:
        try:
            journal.write_epilog(fault)
        except OSError as error:
            if error.errno not in spool.NO_SPACE:
                raise
            if not warned:
                spool.log(f"{directory}: cannot write the end of its epilog yet: {error}")
            warned = True
            signal.sigtimedwait((), _WRITE_AGAIN_S)
        else:
            return
