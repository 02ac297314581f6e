"""What the job's process does between the fork and its program.

It becomes the owner, opens the files, tells the supervisor, waits for its word and execs. The word
comes only after the supervisor's record is written: nothing of a job ever runs that no record
names. The descriptor to the supervisor closes on exec, which is how the supervisor sees success.
"""

import errno
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import NoReturn, TypeVar

from gnode.supervisor import (
    affinity,
    away,
    cgroup,
    forward,
    gate,
    kernel,
    output,
    private,
    privilege,
    site_programs,
    staging,
    terminal,
)
from gnode.supervisor.errors import LaunchError, Subject, reason
from gnode.supervisor.start_channel import (
    AWAY,
    READY,
    STAGING,
    has_outbox,
    identified,
    may_continue,
    report,
)
from gnode.task import Task

_FIRST_PAUSE_S = 0.02  # before the second look for a directory that does not exist; then doubled
_LONGEST_PAUSE_S = 0.25
_FIRST_LINE_BYTES = 256  # as the kernel
_NEVER_STARTED = 254  # of a process that nobody asks for its code

Prepared = TypeVar("Prepared")


class Surroundings:
    """What the launcher found out once about itself and every job has to undo or obey.

    Attributes:
        confined: ``no_new_privs`` is set for this process; its children inherit it.
        core_limits: the soft and hard core-dump limits that jobs get; daemons get none.
        home: the control group that supervisors live in.
        namespace: the mount namespace of the present attempt, as a path; empty: that of the node.
        oom_score_adj: of the daemons, negative: they are kept from the kernel's OOM killer; jobs
            must not be.
        owners: whose groups are known.
        rules: whose jobs run here.
    """

    __slots__ = (
        *("confined", "core_limits", "home", "namespace", "oom_score_adj", "owners", "rules"),
    )

    def __init__(self) -> None:
        self.confined = False
        self.core_limits = resource.getrlimit(resource.RLIMIT_CORE)
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            self.oom_score_adj = int(file.read())
        self.home = cgroup.Home()
        self.namespace = ""
        self.owners = privilege.KnownOwners()
        self.rules = privilege.PrivilegeRules()

    @property
    def oom_protected(self) -> bool:
        """Return whether the daemons are kept from the kernel's OOM killer."""
        return self.oom_score_adj < 0


def become_job(
    task: Task,
    around: Surroundings,
    channel: int,
    *,
    stdin: int = -1,
    listener: socket.socket | None = None,
) -> NoReturn:
    """Turn this freshly forked process into the job's; never returns.

    Args:
        task: what to run.
        around: see `Surroundings`.
        channel: to the supervisor; see `start_channel`.
        stdin: the descriptor that becomes its standard input; negative: /dev/null.
        listener: where gnode reaches the keeper of its terminal; None: it has no terminal.
    """
    try:
        _run(task, around, channel, stdin, listener)
    except LaunchError as error:
        report(channel, error)
    except OSError as error:
        subject: Subject = "node" if os.getuid() == 0 else "job"  # what its user may use up
        report(
            channel,
            LaunchError(
                f"cannot start the job: {error}",
                stage="identity",
                subject=subject,
                errno=error.errno or 0,
            ),
        )
    finally:
        os._exit(_NEVER_STARTED)


def _run(
    task: Task, around: Surroundings, channel: int, stdin: int, listener: socket.socket | None
) -> None:
    if listener is not None:
        terminal.close_all_but(channel, listener.fileno())
    become_member(task, around, lambda groups: identified(channel, groups))
    is_away = away.look(task)
    if is_away and not has_outbox(channel):
        return
    private.check_paths(task)
    if staging.has_begun_before(task):
        planned = (*output.planned_paths(task), AWAY if is_away else "")
        if not may_continue(channel, STAGING, planned):
            return
        os.umask(task.umask)
        staging.bring(task)
    paths, descriptors = prepare_as_owner(task, _sleep)
    site_programs.prepare_as_owner(task, descriptors[2])
    if not may_continue(channel, READY, (*paths, AWAY if is_away else "")):
        return
    null, out, err = descriptors
    for number, fd in enumerate((null if stdin < 0 else stdin, out, err)):
        os.dup2(fd, number)
    if listener is not None:
        timeout_s = task.detach_timeout_s or 0.0
        _hold(task, listener, channel=channel, detach_timeout_s=timeout_s)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _tell_pid(task)
    start_program(task, os.execve)


def become_member(
    task: Task,
    around: Surroundings,
    identified: Callable[[list[int]], None] = lambda _groups: None,
) -> None:
    """Make this process one of the attempt's.

    It gets the attempt's limits, control groups and CPUs, and the owner's rights and no others.

    Args:
        task: of the attempt.
        around: see `Surroundings`.
        identified: is told the groups of an owner whom it has to become, before it does.

    Raises:
        LaunchError: that is not possible, or not allowed here.
        OSError: the kernel refused a step.
    """
    check_owner(task, around)  # again in the very process that gives up root, or does not
    os.setsid()
    _set_limits(task, around)
    cgroup.join(task)
    affinity.take(task)
    private.enter(around)
    if task.switch_user:
        groups = privilege.resolve_groups(task.user, task.uid, task.gid)
        identified(groups)
        privilege.become(task.uid, task.gid, groups)
    if task.no_new_privileges:
        kernel.forbid_new_privileges()


def _hold(
    task: Task,
    listener: socket.socket,
    *,
    channel: int,
    detach_timeout_s: float,
    command: str = "gsched",
    relays: bool = False,
) -> NoReturn:
    """Start the program of ``task`` on a terminal, and become its keeper.

    Args:
        task: with the program.
        listener, channel, detach_timeout_s: see `terminal.hold`.
        command: what the user's message begins with if the program cannot be started.
        relays: it is no program, but relays connections to ports.
    """

    def start() -> NoReturn:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if relays:
                kernel.set_name(b"gforward")
                os._exit(forward.serve())
            _tell_pid(task)
            start_program(task, os.execve)
        except LaunchError as error:
            os.write(2, f"{command}: {error.message}\r\n".encode("utf-8", "surrogateescape"))
            os._exit(127 if error.errno == errno.ENOENT else 126)  # as a shell says it
        finally:
            os._exit(_NEVER_STARTED)

    terminal.hold(listener, start, channel=channel, detach_timeout_s=detach_timeout_s)


def become_shell(
    task: Task,
    around: Surroundings,
    listener: socket.socket,
    *,
    linger_s: float,
    relays: bool = False,
) -> NoReturn:
    """Turn this freshly forked process into a further one of a running job, on a terminal.

    Args:
        task: of the job, with the program and the environment of the shell.
        around: see `Surroundings`.
        listener: where gnode reaches the keeper of the terminal, which also says what fails.
        linger_s: how long it waits for its user when the connection is lost.
        relays: it relays connections to ports of this node instead of the program.
    """
    try:
        terminal.close_all_but(listener.fileno())
        become_member(task, around)
        os.umask(task.umask)
        _enter(task)
        _hold(
            task,
            listener,
            channel=-1,
            detach_timeout_s=linger_s,
            command="gshell",
            relays=relays,
        )
    except LaunchError as error:
        terminal.refuse(listener, error.message)
    except OSError as error:
        terminal.refuse(listener, f"cannot start a shell: {error}")
    finally:
        os._exit(_NEVER_STARTED)


def check_owner(task: Task, around: Surroundings) -> None:
    """Refuse a task of a user whose jobs this node does not run, whoever wrote it.

    Raises:
        LaunchError: see `privilege.check_owner`.
    """
    privilege.check_owner(task.uid, task.gid, around.rules, switch_user=task.switch_user)


def _sleep(pause_s: float) -> None:
    signal.sigtimedwait((), pause_s)  # whoever stops the attempt meanwhile kills this process


def prepare_as_owner(
    task: Task, pause: Callable[[float], None]
) -> tuple[tuple[str, str], tuple[int, int, int]]:
    """Do all that touches what the user named; the caller has the owner's rights and no others.

    A directory may be made a moment after the submission, or be seen late on a network file
    system, so one that does not exist is looked for during ``directory_wait_s``.

    Args:
        task: what to start.
        pause: wait for so many seconds; it may raise to give the start up.

    Returns:
        The paths of the files for stdout and stderr, and the descriptors for 0, 1 and 2.

    Raises:
        LaunchError: the working directory or an output file cannot be used.
    """
    os.umask(task.umask)
    _patiently(task, _enter, pause)
    out, err, out_path, err_path = _patiently(task, output.open_output, pause)
    try:
        _write_files(task)
    except OSError as error:  # its user may write into that directory, too, and fill its disk
        for fd in {out, err}:
            os.close(fd)
        place = os.path.dirname(os.path.dirname(task.user_dir))
        raise LaunchError(
            f"cannot write the job's files below {place}: {os.strerror(error.errno or 0)}",
            stage="files",
            subject="job",
            errno=error.errno or 0,
        ) from error
    stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    return (out_path, err_path), (stdin, out, err)


def _patiently(
    task: Task, step: Callable[[Task], Prepared], pause: Callable[[float], None]
) -> Prepared:
    """Return ``step(task)``, tried again while it fails for a directory that does not exist.

    Both steps have their own time, so that a working directory that comes late leaves as much for
    the output directory in it.
    """
    give_up_s = kernel.boottime_s() + task.directory_wait_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return step(task)
        except LaunchError as error:
            if not error.missing or kernel.boottime_s() >= give_up_s:
                raise
        pause(pause_s)
        pause_s = min(2.0 * pause_s, _LONGEST_PAUSE_S)


def _set_limits(task: Task, around: Surroundings) -> None:
    if around.core_limits[0] != 0:
        resource.setrlimit(resource.RLIMIT_CORE, around.core_limits)
    if around.oom_protected:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("0")
    if task.nice:
        os.nice(task.nice)
    if task.yields:
        gate.lower_priority()
    limit_open_files(task)
    processes = task.processes
    if processes and not task.processes_cgroup:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def limit_open_files(task: Task) -> None:
    """Give this process the job's soft limit instead of the daemons'.

    Programs that use select(2), or close every descriptor that they could have, rely on a small
    one; whoever needs more raises it (``ulimit -n``) up to the hard one.
    """
    present, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(task.open_files, hard)
    if soft != present:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _write_files(task: Task) -> None:
    if not task.files:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    for file in task.files:
        fd = os.open(f"{task.user_dir}/{file.name}", flags, 0o600)
        try:
            content = file.content.encode("utf-8", "surrogateescape")
            while content:
                content = content[os.write(fd, content) :]
            os.fchmod(fd, file.mode)
        finally:
            os.close(fd)


def _enter(task: Task) -> None:
    directory, home = task.cwd, task.env.get("HOME", "").rstrip("/")
    try:
        os.chdir(directory)
    except OSError as error:
        if home and f"{directory}/".startswith(f"{home}/") and not _is_there(home):
            raise LaunchError(
                f"there is no home directory {home} on this node: mount it there, or choose "
                "another working directory with -d",
                stage="home",
                subject="user",
                errno=error.errno or 0,
            ) from error
        raise LaunchError(
            f"cannot enter the working directory {directory}: {reason(error)}: "
            "create it on every node or choose -d",
            stage="workdir",
            subject="job",
            errno=error.errno or 0,
            missing=directory if error.errno == errno.ENOENT else "",
        ) from error


def _is_there(directory: str) -> bool:
    """Return whether a directory exists; one of which that cannot be told counts as there."""
    try:
        os.stat(directory)
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


Started = TypeVar("Started")


def _tell_pid(task: Task) -> None:
    """Let the program that this process becomes read its process id, in a job of Slurm."""
    if "SLURM_JOB_ID" in task.env:
        task.env["SLURM_TASK_PID"] = str(os.getpid())


def start_program(
    task: Task, start: Callable[[str, tuple[str, ...], dict[str, str]], Started]
) -> Started:
    """Call ``start(path, argv, environment)`` for the program, looked for along the job's PATH.

    Raises:
        LaunchError: it cannot be run; the message says what to do.
    """
    argv, env = task.argv, task.env
    program = argv[0]
    if "/" in program:
        candidates = [program]
    else:
        candidates = [f"{place}/{program}" for place in env.get("PATH", os.defpath).split(":")]
    failure: OSError | None = None
    for path in candidates:
        try:
            return start(path, argv, env)
        except OSError as error:
            if failure is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failure = error
    assert failure is not None, "str.split gives at least one candidate"
    raise LaunchError(
        _explain(program, failure), stage="program", subject="job", errno=failure.errno or 0
    ) from failure


def _interpreter_of(program: str) -> str:
    """Return the interpreter that the first line of a script names; empty: it names none."""
    try:
        with open(program, "rb") as file:
            line = file.readline(_FIRST_LINE_BYTES)
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].strip(b" \t\n").split(None, 1)
    if line.endswith(b"\r\n"):  # the kernel takes it for a part of the name
        return f"{words[0].decode('utf-8', 'backslashreplace')} with a Windows line end (CR)"
    return words[0].decode("utf-8", "backslashreplace") if words else ""


def _explain(program: str, error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return (
            f"cannot run {program}: it is no program: a script begins with #!/bin/bash or the like"
        )
    if error.errno == errno.ENOENT and "/" in program and os.path.exists(program):
        named = _interpreter_of(program)
        if named:
            return f"cannot run {program}: line 1 names {named}, which does not exist on this node"
        return (
            f"cannot run {program}: its interpreter does not exist: "
            "check its first line (#!), also for a Windows line end"
        )
    if error.errno == errno.EACCES:
        return f"cannot run {program}: {reason(error)}: make it executable with chmod +x"
    if error.errno == errno.E2BIG:
        return f"cannot run {program}: {reason(error)}: arguments or environment are too large"
    return f"cannot run {program}: {reason(error)}: give a program that exists on every node"
