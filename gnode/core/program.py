"""What a task runs: its command line, the files that it gets, and those of its output. Pure."""

import posixpath
from typing import Final, NamedTuple

from gnode.core.environment import (
    FALLBACK_SHELL,
    GPUFILE_NAME,
    NODEFILE_NAME,
    has_gpus,
    processes_per_node,
    ranks_on_hosts,
    rendezvous,
)
from gnode.core.site import Site
from gnode.core.task import Account
from gnode.task import TaskFile
from gsched.model.outputs import OutputFile, OutputNames, output_files
from gsched.model.states import LaunchKind
from gsched.protocol.node import Launch

#: Shells that read the user's profile when they are started with -l; csh takes it alone only.
LOGIN_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
#: Further ones that do so if they run no script.
INTERACTIVE_LOGIN_SHELLS = frozenset({"csh", "fish", "tcsh"})
SHELLS_THAT_REFUSE = frozenset({"nologin", "false", "sync", ""})
SCRIPT_NAME = "script"
FAILURE_NAME = "failure.json"
NOWHERE = "/dev/null"


class TaskProgram(NamedTuple):
    """What a task runs.

    Attributes:
        argv: its command line.
        files: that it gets in its directory.
        stdout, stderr: where its output goes.
        failure_report: the file in which torchrun's agent leaves the first failing rank, or None.
    """

    argv: tuple[str, ...]
    files: tuple[TaskFile, ...]
    failure_report: str | None
    stdout: OutputFile
    stderr: OutputFile


_NOTHING: Final = OutputFile(NOWHERE, NOWHERE)


def program_of(launch: Launch, account: Account, site: Site, user_dir: str) -> TaskProgram:
    """Return what a task runs, in its code snapshot where it has one."""
    if not site.runs_programs:
        return TaskProgram((), (), None, _NOTHING, _NOTHING)
    argv = _argv(launch, account, site, user_dir)
    snapshot = launch.spec.snapshot
    if snapshot is not None:
        place = (snapshot.digest, str(snapshot.size_bytes), snapshot.directory)
        argv = (*site.unpacker, *place, "--", *argv)
    is_torchrun = launch.spec.launch is LaunchKind.TORCHRUN
    report = posixpath.join(user_dir, FAILURE_NAME) if is_torchrun else None
    return TaskProgram(argv, _files(launch), report, *_output_files(launch, account))


def _argv(launch: Launch, account: Account, site: Site, user_dir: str) -> tuple[str, ...]:
    spec = launch.spec
    if launch.is_step_agent:
        return site.step_agent
    match spec.launch:
        case LaunchKind.COMMAND if spec.interactive is not None and not spec.arguments:
            shell = spec.shell or _login_shell(account)
            is_login = posixpath.basename(shell) in LOGIN_SHELLS | INTERACTIVE_LOGIN_SHELLS
            return (shell, "-l") if is_login else (shell,)
        case LaunchKind.COMMAND:
            return spec.arguments
        case LaunchKind.SCRIPT:
            script = posixpath.join(user_dir, SCRIPT_NAME)
            if launch.script.startswith("#!") and not spec.shell:
                login = _as_login_shell(launch.script) if site.limits.login_shell else ()
                return (*login, script, *spec.arguments)
            shell = spec.shell or _login_shell(account)
            reads_profile = site.limits.login_shell and posixpath.basename(shell) in LOGIN_SHELLS
            return (shell, *(("-l",) if reads_profile else ()), script, *spec.arguments)
        case LaunchKind.TORCHRUN:
            return _torchrun(launch, site, user_dir)


def _as_login_shell(script: str) -> tuple[str, ...]:
    """Return the shell of a script's first line, as a login shell; empty for other programs."""
    words = script.partition("\n")[0][2:].split()
    if not words:
        return ()
    if posixpath.basename(words[0]) == "env" and len(words) > 1:
        words = words[1:]
    if posixpath.basename(words[0]) not in LOGIN_SHELLS:
        return ()
    return (words[0], "-l", *words[1:])


def _login_shell(account: Account) -> str:
    if posixpath.basename(account.shell) in SHELLS_THAT_REFUSE:
        return FALLBACK_SHELL
    return account.shell


def _torchrun(launch: Launch, site: Site, user_dir: str) -> tuple[str, ...]:
    spec = launch.spec
    return (
        spec.python or "python3",
        site.agent_path,
        "--report",
        posixpath.join(user_dir, FAILURE_NAME),
        "--grace",
        str(spec.grace_s),
        "--",
        "--nnodes",
        str(len(launch.origin.allocation)),
        "--node-rank",
        str(launch.rank),
        "--master-addr",
        launch.master_address or "127.0.0.1",
        "--master-port",
        str(launch.origin.master_port),
        "--rdzv-id",
        rendezvous(launch),
        "--nproc-per-node",
        str(processes_per_node(launch)),
        "--max-restarts",
        "0",
        *spec.arguments,
    )


def _files(launch: Launch) -> tuple[TaskFile, ...]:
    files = [TaskFile(name=NODEFILE_NAME, mode=0o400, content=_nodefile(launch))]
    if has_gpus(launch):
        files.append(TaskFile(name=GPUFILE_NAME, mode=0o400, content=_gpufile(launch)))
    if launch.spec.launch is LaunchKind.SCRIPT and not launch.is_step_agent:
        files.append(TaskFile(name=SCRIPT_NAME, mode=0o500, content=launch.script))
    return tuple(files)


def _nodefile(launch: Launch) -> str:
    """Return the node file of PBS: each host as often as it has ranks."""
    counts = zip(launch.hosts, ranks_on_hosts(launch), strict=True)
    return "".join(f"{host}\n" * ranks for host, ranks in counts)


def _gpufile(launch: Launch) -> str:
    """Return Torque's GPU file: ``HOST-gpuINDEX`` on each line."""
    return "".join(
        f"{share.node}-gpu{index}\n"
        for share in launch.origin.allocation
        for index in share.gpu_indices
    )


# --- output ---


def _output_files(launch: Launch, account: Account) -> tuple[OutputFile, OutputFile]:
    """Return the files of a task's standard output and standard error."""
    spec = launch.spec
    names = OutputNames(
        job=launch.job,
        server=launch.server,
        node=launch.share.node,
        rank=launch.rank,
        home=account.home,
        short_number=launch.short_number,
    )
    out, err = output_files(spec, names)
    if spec.interactive is not None or launch.is_step_agent:  # a terminal, or sockets
        return OutputFile(NOWHERE, out.name), OutputFile(NOWHERE, err.name)
    return out, err
