"""From a launch order to a task: command line, environment, files and limits."""

import posixpath
from dataclasses import replace

from msgspec import structs

from gnode.core.contained import ContainerPlan, container_of
from gnode.core.containers import Inside, runtime_for
from gnode.core.inputs import Account
from gnode.core.job_steps import in_snapshot, mpi_variables, step_variables
from gnode.core.ranks import ranks_on_hosts, threads_of
from gnode.core.site import Site
from gnode.core.slurm import SLURM_MARK, slurm_variables
from gnode.core.staging import staging_commands
from gnode.core.task import AcceptedTask, AttemptKey
from gnode.task import CpusetCgroup, EarlySignal, MemoryCgroup, PrivateTmp, TaskFile
from gsched.model.ids import (
    array_of,
    format_job_id,
    index_of,
    job_file_suffix,
    short_job_id,
    submitted_number,
)
from gsched.model.states import LaunchKind
from gsched.protocol.node import Launch

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
FALLBACK_SHELL = "/bin/sh"
#: Shells that read the user's profile when they are started with -l; csh takes it alone only.
LOGIN_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
#: Further ones that do so if they run no script.
INTERACTIVE_LOGIN_SHELLS = frozenset({"csh", "fish", "tcsh"})
SHELLS_THAT_REFUSE = frozenset({"nologin", "false", "sync", ""})
TMPDIR_BYTES_MAX = 64  # programs put Unix sockets (at most 107 bytes) below TMPDIR
#: The least memory limit that is enforced, whatever was asked for: a process cannot even be
#: prepared in less. Slurm's MinRAMSpace (30 MB) is there for the same reason.
LEAST_MEMORY_LIMIT_BYTES = 32 * 1024 * 1024
SCRIPT_NAME = "script"
NOWHERE = "/dev/null"
NODEFILE_NAME = "nodefile"
GPUFILE_NAME = "gpufile"
FAILURE_NAME = "failure.json"
#: So that gsub works inside a job; and the line of an element of an array, from the head.
KEPT_NAMES = frozenset({"GSCHED_HEAD", "GSCHED_CONFIG", "GSCHED_ARRAY_LINE"})
CLUSTER_LETTERS = 12  # of its id: enough to tell clusters of one site apart
KEPT_PREFIX = "PBS_O_"
#: In paths of output files, $NAME and ${NAME} stand for the index of the element of an array.
ARRAY_INDEX_NAMES = (
    *("PBS_ARRAYID", "PBS_ARRAY_INDEX", "GSCHED_ARRAY_INDEX"),
    *("LSB_JOBINDEX", "SGE_TASK_ID"),  # what scripts for LSF and Grid Engine read
)
OPENPBS_ARRAY_INDEX = "^array_index^"  # the same in OpenPBS
GATE_VARIABLE = "GSCHED_GATE"  # see gnode.supervisor.gate, torchrun_agent and gsched.elastic.gate


def bind_prepared(
    launch: Launch, account: Account, site: Site, *, limit_s: float, yields: bool
) -> AcceptedTask:
    """Return the task that starts the processes of ``launch`` behind a gate.

    It owns no GPU and has no lease.

    Args:
        limit_s: how long it may wait to be launched.
        yields: until then it has a lower priority.
    """
    task = bind(launch, account, site)
    return replace(
        task,
        env={**_without_launch(task.env), GATE_VARIABLE: "stdin"},
        gpu_indices=(),
        gpu_shares=(),
        fence=site.gpu_access.fence(task.key),
        walltime_s=limit_s,
        lease_s=0.0,
        early_signal=None,
        gate=True,
        yields=yields,
    )


def bind(
    launch: Launch,
    account: Account,
    site: Site,
    *,
    lease_from_s: float = 0.0,
    gate: bool = False,
    cpus: tuple[int, ...] = (),
) -> AcceptedTask:
    """Return the task that carries out ``launch`` on this node for ``account``.

    Args:
        lease_from_s: of a launch with a lease: when the head was reached last, CLOCK_BOOTTIME.
        gate: it was prepared before.
        cpus: that are the attempt's alone; empty: it is not bound.
    """
    spec = launch.spec
    key = AttemptKey(launch.job, launch.attempt)
    user_dir = posixpath.join(site.user_root, key.name)
    stdout_path, stderr_path = _output_paths(launch, account)
    if launch.is_step_agent:
        stdout_path = stderr_path = NOWHERE  # its tasks write to the program that wants them
    memory = _memory_limit(launch, site, key)
    switch_user = site.uid == 0 and account.uid != 0
    env = _environment(launch, account, site, user_dir)
    stage_in, stage_out = staging_commands(launch, account, site.staging, site.node, env["TMPDIR"])
    task = AcceptedTask(
        job=launch.job,
        attempt=launch.attempt,
        user=account.user,
        uid=account.uid,
        gid=spec.owner.gid if switch_user else account.gid,
        switch_user=switch_user,
        argv=_command(launch, account, site, user_dir),
        env=env,
        cwd=spec.workdir,
        stdout_path=stdout_path,
        stderr_path=stderr_path,
        stdout_name=_default_name(launch, "o"),
        stderr_name=_default_name(launch, "e"),
        join=spec.join,
        append=spec.append or launch.attempt > 1,
        umask=spec.umask,
        files=_files(launch),
        user_dir=user_dir,
        cgroup=posixpath.join(site.cgroup_root, key.name) if site.cgroup_root else None,
        memory_cgroup=memory,
        walltime_s=launch.walltime_s,
        grace_s=spec.grace_s,
        failure_report=(
            posixpath.join(user_dir, FAILURE_NAME) if spec.launch is LaunchKind.TORCHRUN else None
        ),
        boot_id=site.boot_id,
        gpu_indices=launch.share.gpu_indices,
        gpu_shares=launch.share.gpu_shares,
        no_new_privileges=site.limits.no_new_privileges,
        open_files=site.limits.open_files,
        processes=site.limits.processes,
        processes_cgroup=_processes_group(site, key),
        origin=launch.origin,
        lease_s=launch.lease_s,
        lease_from_s=lease_from_s,
        lease_grace_s=launch.lease_grace_s,
        early_signal=_early_signal(launch),
        gate=gate,
        stage_in=stage_in,
        stage_out=stage_out,
        stage_timeout_s=site.staging.timeout_s if stage_in or stage_out else 0.0,
        directory_wait_s=site.limits.directory_wait_s,
        cpus=cpus,
        cpuset=_cpuset(site, key),
        fence=site.gpu_access.fence(key, launch.share.gpu_indices, launch.share.gpu_shares),
        detach_timeout_s=_detach_timeout_s(launch),
        private=private_tmp(site, user_dir, memory, shares=bool(launch.share.gpu_shares)),
    )
    plan = plan_container(task, launch, account, site)
    return task if plan is None else plan.task(task)


def plan_container(
    task: AcceptedTask, launch: Launch, account: Account, site: Site
) -> ContainerPlan | None:
    """Return the container of an attempt, which this node can run; None: it has none.

    Args:
        task: of the attempt; its environment and its directory count.
        launch: of the attempt.
        account: of its owner.
        site: this node.
    """
    spec = launch.spec
    container = container_of(launch)
    if container is None:
        return None
    runtime = runtime_for(container, site.containers)
    assert runtime is not None, "else it is refused"
    directories = [spec.workdir, task.user_dir]
    if launch.checkpoint_dir:
        directories += [launch.checkpoint_dir, posixpath.dirname(site.elastic_socket)]
    if spec.launch is LaunchKind.TORCHRUN:
        directories.append(posixpath.dirname(site.agent_path))
    command = _command(launch, account, site, task.user_dir)
    if spec.launch is LaunchKind.SCRIPT and not launch.script.startswith("#!"):
        shell = spec.shell or FALLBACK_SHELL  # the owner's login shell is of the node
        command = (shell, posixpath.join(task.user_dir, SCRIPT_NAME), *spec.arguments)
    cluster = f"-{launch.cluster[:12]}" if launch.cluster else ""
    inside = Inside(
        name=f"gsched-{task.key.name}{cluster}-{launch.rank}",
        command=command,
        environment=task.env,
        workdir=spec.workdir,
        home=account.home,
        directories=tuple(dict.fromkeys(directories)),
        gpus=tuple(sorted(held.index for held in launch.share.gpus_held)),
        as_root=account.uid == 0,
        no_new_privileges=site.limits.no_new_privileges,
    )
    return ContainerPlan(container=container, inside=inside, runtime=runtime, rules=site.containers)


def private_tmp(
    site: Site, user_dir: str, memory: MemoryCgroup | None, *, shares: bool
) -> PrivateTmp | None:
    """Return the /tmp and /dev/shm of an attempt; None: those of the node.

    Jobs that share a GPU by MPS meet its server in /dev/shm.
    """
    if not site.limits.private_tmp:
        return None
    return PrivateTmp(
        visible=(*site.visible, user_dir),
        shm=not shares,
        shm_bytes=memory.limit_bytes if memory is not None else 0,
    )


def _cpuset(site: Site, key: AttemptKey) -> CpusetCgroup | None:
    """Return the group for an attempt's CPUs: also of one without any, which may get them later."""
    if site.cpuset_root is None:
        return None
    version, root = site.cpuset_root
    return CpusetCgroup(version=version, path=posixpath.join(root, key.name))


def _early_signal(launch: Launch) -> EarlySignal | None:
    stated = launch.spec.early_signal
    return None if stated is None else EarlySignal(**structs.asdict(stated))


def _detach_timeout_s(launch: Launch) -> float | None:
    """Return the time-out of the part's terminal, None if it has none: agents have output files."""
    if launch.spec.interactive is None or launch.is_step_agent:
        return None
    return launch.spec.interactive.detach_timeout_s or 0.0


def _without_launch(env: dict[str, str]) -> dict[str, str]:
    """Return an environment without what only a launched attempt may use: GPUs, a rendezvous."""
    kept = {name: value for name, value in env.items() if name != "MASTER_PORT"}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}


def _processes_group(site: Site, key: AttemptKey) -> str | None:
    if not site.limits.processes or site.processes_root is None:
        return None
    return posixpath.join(site.processes_root, key.name)


def _memory_limit(launch: Launch, site: Site, key: AttemptKey) -> MemoryCgroup | None:
    if site.memory_root is None or not launch.share.memory_bytes:
        return None
    version, root = site.memory_root
    return MemoryCgroup(
        version=version,
        path=posixpath.join(root, key.name),
        limit_bytes=max(LEAST_MEMORY_LIMIT_BYTES, launch.share.memory_bytes),
    )


# --- output ---


def _rank_suffix(launch: Launch) -> str:
    """Return what tells the files of the nodes apart: two writers would overwrite each other."""
    return f".{launch.rank}" if launch.rank else ""


def file_name(launch: Launch) -> str:
    """Return the job's name as part of a file's name: it names no directory."""
    return launch.spec.name.replace("/", "_") or "job"


def _default_name(launch: Launch, letter: str) -> str:
    return f"{file_name(launch)}.{letter}{job_file_suffix(launch.job)}{_rank_suffix(launch)}"


def _output_paths(launch: Launch, account: Account) -> tuple[str, str]:
    spec = launch.spec
    if spec.interactive is not None:
        return "/dev/null", "/dev/null"  # it has a terminal
    return (
        _output_path(launch, account, spec.stdout_path, "o"),
        _output_path(launch, account, spec.stderr_path, "e"),
    )


def _output_path(launch: Launch, account: Account, stated: str, letter: str) -> str:
    if not stated:
        return posixpath.join(launch.spec.workdir, _default_name(launch, letter))
    path = stated
    names = {
        "PBS_JOBID": format_job_id(launch.job, launch.server),
        "GSCHED_JOB_NUMBER": str(launch.short_number or job_file_suffix(launch.job)),
        "GSCHED_ARRAY_NUMBER": str(submitted_number(launch.job)),
        "PBS_JOBNAME": file_name(launch),
        "GSCHED_NODE": launch.share.node,
        "USER": account.user,
    }
    if array_of(launch.job):
        names |= dict.fromkeys(ARRAY_INDEX_NAMES, str(index_of(launch.job)))
        path = path.replace(OPENPBS_ARRAY_INDEX, str(index_of(launch.job)))
    else:
        names["GSCHED_ARRAY_INDEX"] = "0"  # as in Slurm's %a
    for name, value in names.items():
        path = path.replace(f"${{{name}}}", value).replace(f"${name}", value)
    if path == "~" or path.startswith("~/"):
        path = account.home + path[1:]
    path = posixpath.join(launch.spec.workdir, path)
    if path.endswith("/") or path.startswith("/dev/"):
        return path
    return path + _rank_suffix(launch)


# --- command line ---


def _command(launch: Launch, account: Account, site: Site, user_dir: str) -> tuple[str, ...]:
    """Return what the task runs, in its code snapshot where it has one."""
    return in_snapshot(launch, site.unpacker, _argv(launch, account, site, user_dir))


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


def processes_per_node(launch: Launch) -> int:
    """Return how many ranks run on this node: one for each GPU, or for each CPU without any."""
    return len(launch.share.gpu_indices) or max(1, launch.share.cpus)


def _rendezvous(launch: Launch) -> str:
    """Return the id of an attempt's rendezvous, which no other one on any machine has."""
    name = AttemptKey(launch.job, launch.attempt).name
    return f"{name}.{launch.cluster[:CLUSTER_LETTERS]}" if launch.cluster else name


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
        _rendezvous(launch),
        "--nproc-per-node",
        str(processes_per_node(launch)),
        "--max-restarts",
        "0",
        *spec.arguments,
    )


# --- environment ---


def _environment(launch: Launch, account: Account, site: Site, user_dir: str) -> dict[str, str]:
    """Return the job's environment: the user's own, then what he cannot override."""
    environment = {"PATH": DEFAULT_PATH}
    environment.update(
        (name, value) for name, value in launch.environment.items() if _is_users(name, value)
    )
    environment.setdefault("PBS_O_WORKDIR", launch.spec.workdir)
    environment.setdefault("OMP_NUM_THREADS", str(_threads(launch, site)))
    environment.update(
        HOME=account.home,
        USER=account.user,
        LOGNAME=account.user,
        SHELL=account.shell or FALLBACK_SHELL,
        HOSTNAME=site.node,
        TMPDIR=user_dir if len(user_dir.encode()) <= TMPDIR_BYTES_MAX else "/tmp",  # noqa: S108 - the system's own, where ours is too long
        CUDA_VISIBLE_DEVICES=site.gpu_access.visible(launch.share.gpus_held),
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    environment.update(_pbs(launch, site, user_dir))
    environment.update(_gsched(launch, site, user_dir))
    environment.update(step_variables(launch, site.elastic_socket, user_dir))
    if len(launch.origin.allocation) > 1:
        nodefile = f"{user_dir}/{NODEFILE_NAME}"
        for name, value in mpi_variables(launch, site.launch_agent, nodefile).items():
            environment.setdefault(name, value)
    if SLURM_MARK in launch.environment:
        environment.update(slurm_variables(launch, account, node_cpus=site.cpu_count))
    if len(launch.origin.allocation) > 1 or launch.spec.launch is LaunchKind.TORCHRUN:
        environment.update(
            MASTER_ADDR=launch.master_address or "127.0.0.1",
            MASTER_PORT=str(launch.origin.master_port),
            NODE_RANK=str(launch.rank),
            NNODES=str(len(launch.origin.allocation)),
            GSCHED_RDZV_ID=_rendezvous(launch),
        )
    return environment


def _threads(launch: Launch, site: Site) -> int:
    """Return how many threads each process is to have, unless the user says it.

    The CPUs of the job on this node, shared by the ranks that gsched starts there, or as many as
    ``ompthreads`` or Slurm's ``--cpus-per-task`` says; all CPUs of a node that the job has alone.
    """
    spec = launch.spec
    stated = launch.environment.get("SLURM_CPUS_PER_TASK", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    cpus = max(1, launch.share.cpus)
    stated_threads = threads_of(launch)
    if stated_threads:
        return stated_threads
    if launch.share.exclusive and site.cpu_count and spec.launch is not LaunchKind.TORCHRUN:
        return site.cpu_count
    if spec.launch is LaunchKind.TORCHRUN:
        return max(1, cpus // processes_per_node(launch))
    return cpus


def _is_users(name: str, value: str) -> bool:
    """Return whether a variable of the user's is passed on.

    PBS_* and GSCHED_* describe a job. Those in the user's environment describe the job from which
    he submitted this one, so that only what tells of the submission itself stays.
    """
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    if name.startswith("GSCHED_"):
        return name in KEPT_NAMES
    return not name.startswith("PBS_") or name.startswith(KEPT_PREFIX)


def _pbs(launch: Launch, site: Site, user_dir: str) -> dict[str, str]:
    spec = launch.spec
    names = {
        "PBS_ENVIRONMENT": "PBS_BATCH" if spec.interactive is None else "PBS_INTERACTIVE",
        "PBS_JOBID": format_job_id(launch.job, launch.server),
        "PBS_JOBNAME": spec.name,
        "PBS_QUEUE": spec.queue,
        "PBS_O_QUEUE": launch.environment.get("PBS_O_QUEUE", spec.queue),
        "PBS_SERVER": launch.server,
        "PBS_VERSION": f"gsched-{site.version}",
        "PBS_NODENUM": str(launch.rank),
        "PBS_VNODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_NODEFILE": f"{user_dir}/{NODEFILE_NAME}",
        "PBS_NNODES": str(len(launch.origin.allocation)),
        "PBS_NUM_NODES": str(len(launch.origin.allocation)),
        "PBS_NUM_PPN": str(ranks_on_hosts(launch)[launch.rank]),
        "PBS_NP": str(sum(ranks_on_hosts(launch))),
        "NCPUS": str(_threads(launch, site)),
        "PBS_WALLTIME": _walltime(launch),
        "PBS_O_INITDIR": spec.workdir,
    }
    array = array_of(launch.job)
    if array:
        index = str(index_of(launch.job))
        names |= dict.fromkeys(ARRAY_INDEX_NAMES, index)
        names["PBS_ARRAY_ID"] = f"{array}[].{launch.server}"
    if _has_gpus(launch):
        names["PBS_GPUFILE"] = f"{user_dir}/{GPUFILE_NAME}"
    return names


def _has_gpus(launch: Launch) -> bool:
    return any(share.gpu_indices for share in launch.origin.allocation)


def _walltime(launch: Launch) -> str:
    return "" if launch.walltime_s is None else str(round(launch.walltime_s))


def _gsched(launch: Launch, site: Site, user_dir: str) -> dict[str, str]:
    spec = launch.spec
    allocation = launch.origin.allocation
    names = {
        "GSCHED_JOB_ID": format_job_id(launch.job, launch.server),
        "GSCHED_JOB_NUMBER": short_job_id(launch.job),
        "GSCHED_JOB_NAME": spec.name,
        "GSCHED_JOB_DIR": user_dir,
        "GSCHED_ATTEMPT": str(launch.attempt),
        "GSCHED_RESTART_COUNT": str(launch.attempt - 1),
        "GSCHED_QUEUE": spec.queue,
        "GSCHED_SERVER": launch.server,
        "GSCHED_ACCOUNT": spec.account,
        "GSCHED_NODE": site.node,
        "GSCHED_NODE_RANK": str(launch.rank),
        "GSCHED_NUM_NODES": str(len(allocation)),
        "GSCHED_NODELIST": ",".join(launch.hosts),
        "GSCHED_NODEFILE": f"{user_dir}/{NODEFILE_NAME}",
        "GSCHED_CPUS_ON_NODE": str(launch.share.cpus),
        "GSCHED_NUM_CPUS": str(sum(share.cpus for share in allocation)),
        # a part of a GPU counts as one: launchers start a rank for each
        "GSCHED_GPUS_ON_NODE": str(len(tuple(launch.share.gpus_held))),
        "GSCHED_NUM_GPUS": str(
            sum(len(share.gpu_indices) for share in allocation) + len(launch.share.gpu_shares)
        ),
        "GSCHED_WALLTIME": _walltime(launch),
    }
    array = array_of(launch.job)
    if array:
        names["GSCHED_ARRAY_ID"] = f"{array}[].{launch.server}"
        names["GSCHED_ARRAY_INDEX"] = str(index_of(launch.job))
    if _has_gpus(launch):
        names["GSCHED_GPUFILE"] = f"{user_dir}/{GPUFILE_NAME}"
    for share in launch.share.gpu_shares:  # one at most
        names["GSCHED_GPU_SHARE_PERCENT"] = str(share.percent)
        names["GSCHED_GPU_SHARE_MEMORY_BYTES"] = str(share.memory_bytes)
        names["GSCHED_GPU_SHARE_CLASS"] = share.share_class.value
    if launch.checkpoint_dir:
        names["GSCHED_CHECKPOINT_DIR"] = launch.checkpoint_dir
        names["GSCHED_ELASTIC_SOCKET"] = site.elastic_socket
        if spec.checkpoint_interval_s is not None:
            names["GSCHED_CHECKPOINT_INTERVAL_S"] = f"{spec.checkpoint_interval_s:g}"
    if launch.batching is not None:
        names["GSCHED_BATCH_PER_GPU"] = str(launch.batching.per_gpu)
        names["GSCHED_ACCUMULATION"] = str(launch.batching.accumulation)
    if launch.profile_batches:
        names["GSCHED_PROFILE_BATCHES"] = "1"
    return names


# --- files ---


def _files(launch: Launch) -> tuple[TaskFile, ...]:
    files = [TaskFile(name=NODEFILE_NAME, mode=0o400, content=_nodefile(launch))]
    if _has_gpus(launch):
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
