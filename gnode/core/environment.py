"""The variables of a job's environment, and what they count of its allocation. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gnode.core.site import Site
from gnode.core.task import Account, AttemptKey
from gsched.model.counts import repeated
from gsched.model.host_lists import compact
from gsched.model.ids import (
    array_of,
    format_job_id,
    index_of,
    short_job_id,
)
from gsched.model.outputs import ARRAY_INDEX_NAMES
from gsched.model.resources import Chunk, Share
from gsched.model.states import LaunchKind
from gsched.protocol.node import Launch

#: Set at submission of a job that came as one of Slurm's.
SLURM_MARK: Final = "SLURM_SUBMIT_DIR"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
FALLBACK_SHELL = "/bin/sh"
TMPDIR_BYTES_MAX = 64  # programs put Unix sockets (at most 107 bytes) below TMPDIR
NODEFILE_NAME = "nodefile"
GPUFILE_NAME = "gpufile"
SNAPSHOT_NAME = "code"  # in the job's directory
#: So that gsub works inside a job; and the line of an element of an array, from the head.
KEPT_NAMES = frozenset({"GSCHED_HEAD", "GSCHED_CONFIG", "GSCHED_ARRAY_LINE"})
KEPT_PREFIX = "PBS_O_"
CLUSTER_LETTERS = 12  # of its id: enough to tell clusters of one site apart


def environment_of(launch: Launch, account: Account, site: Site, user_dir: str) -> dict[str, str]:
    """Return the job's environment: the user's own, then what he cannot override."""
    if not site.runs_programs:
        return {"TMPDIR": user_dir}
    environment = {"PATH": DEFAULT_PATH}
    environment.update(
        (name, value) for name, value in launch.environment.items() if _is_users(name, value)
    )
    environment.setdefault("PBS_O_WORKDIR", launch.spec.workdir)
    threads = str(_threads(launch, site))
    environment.setdefault("OMP_NUM_THREADS", threads)
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
    _point_to_head(environment, site)
    environment.update(_pbs(launch, site, user_dir), NCPUS=threads)
    environment.update(_gsched(launch, site, user_dir))
    environment.update(_step_variables(launch, site.elastic_socket, user_dir))
    if len(launch.origin.allocation) > 1:
        nodefile = f"{user_dir}/{NODEFILE_NAME}"
        for name, value in _mpi_variables(launch, site.launch_agent, nodefile).items():
            environment.setdefault(name, value)
    if SLURM_MARK in launch.environment:
        environment.update(slurm_variables(launch, account, node_cpus=site.cpu_count))
    if len(launch.origin.allocation) > 1 or launch.spec.launch is LaunchKind.TORCHRUN:
        environment.update(
            MASTER_ADDR=launch.master_address or "127.0.0.1",
            MASTER_PORT=str(launch.origin.master_port),
            NODE_RANK=str(launch.rank),
            NNODES=str(len(launch.origin.allocation)),
            GSCHED_RDZV_ID=rendezvous(launch),
        )
    return environment


def _point_to_head(environment: dict[str, str], site: Site) -> None:
    """Let commands in the job find the head from this node, wherever the job was submitted."""
    if site.command_socket:
        environment["GSCHED_HEAD"] = site.command_socket
    elif environment.get("GSCHED_HEAD", "").startswith("ssh:"):  # the head is on this machine
        del environment["GSCHED_HEAD"]


def variables_of_gsched(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job that describe it, and none that its user can set."""
    own = {
        name: value
        for name, value in env.items()
        if name.startswith("GSCHED_") and name not in KEPT_NAMES
    }
    return {**own, "CUDA_VISIBLE_DEVICES": env.get("CUDA_VISIBLE_DEVICES", "")}


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
    stated_threads = _stated_threads(launch)
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
    nodes, ranks = str(len(launch.origin.allocation)), ranks_on_hosts(launch)
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
        "PBS_NNODES": nodes,
        "PBS_NUM_NODES": nodes,
        "PBS_NUM_PPN": str(ranks[launch.rank]),
        "PBS_NP": str(sum(ranks)),
        "PBS_WALLTIME": _walltime(launch),
        "PBS_O_INITDIR": spec.workdir,
    }
    array = array_of(launch.job)
    if array:
        index = str(index_of(launch.job))
        names |= dict.fromkeys(ARRAY_INDEX_NAMES, index)
        names["PBS_ARRAY_ID"] = f"{array}[].{launch.server}"
    if has_gpus(launch):
        names["PBS_GPUFILE"] = f"{user_dir}/{GPUFILE_NAME}"
    return names


def _gsched(launch: Launch, site: Site, user_dir: str) -> dict[str, str]:
    spec = launch.spec
    allocation = launch.origin.allocation
    names = {
        "GSCHED_JOB_ID": format_job_id(launch.job, launch.server),
        "GSCHED_JOB_NUMBER": short_job_id(launch.job),
        "GSCHED_JOB_NAME": spec.name,
        "GSCHED_JOB_DIR": user_dir,
        "GSCHED_SUBMIT_DIR": spec.submit_dir or spec.workdir,
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
    if has_gpus(launch):
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


def _walltime(launch: Launch) -> str:
    return "" if launch.walltime_s is None else str(round(launch.walltime_s))


def _step_variables(launch: Launch, socket: str, user_dir: str) -> dict[str, str]:
    """Return what a job needs to start tasks on its other nodes, and to unpack its code."""
    snapshot = launch.spec.snapshot
    if not socket or (len(launch.origin.allocation) == 1 and snapshot is None):
        return {}
    variables = {
        "GSCHED_NODE_SOCKET": socket,
        "GSCHED_ATTEMPT_KEY": AttemptKey(launch.job, launch.attempt).name,
    }
    if snapshot is not None:
        variables["GSCHED_SNAPSHOT_DIR"] = f"{user_dir}/{SNAPSHOT_NAME}"
    return variables


def _mpi_variables(launch: Launch, agent: str, nodefile: str) -> dict[str, str]:
    """Return variables with which mpirun uses the job's nodes, unless the user has set them.

    Its daemons are started by gsched-launch-agent. Programs on all nodes of a job have no step
    agents, so mpirun is left as it is there.

    Args:
        agent: path of gsched-launch-agent; empty: it is not installed.
    """
    if launch.spec.runs_everywhere or not agent:
        return {}
    return {
        # Open MPI up to 4
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_ras": "^slurm,tm",
        "OMPI_MCA_orte_default_hostfile": nodefile,
        # Open MPI 5
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_ras": "^slurm,pbs",
        "PRTE_MCA_prte_default_hostfile": nodefile,
        # MPICH and Intel MPI
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
        "HYDRA_HOST_FILE": nodefile,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        "I_MPI_HYDRA_HOST_FILE": nodefile,
    }


# --- the allocation in numbers ---


def has_gpus(launch: Launch) -> bool:
    """Return whether the job has GPUs of its own on any node."""
    return any(share.gpu_indices for share in launch.origin.allocation)


def rendezvous(launch: Launch) -> str:
    """Return the id of an attempt's rendezvous, which no other one on any machine has."""
    name = AttemptKey(launch.job, launch.attempt).name
    return f"{name}.{launch.cluster[:CLUSTER_LETTERS]}" if launch.cluster else name


def processes_per_node(launch: Launch) -> int:
    """Return how many ranks run on this node: one for each GPU, or for each CPU without any."""
    return len(launch.share.gpu_indices) or max(1, launch.share.cpus)


def ranks_on_hosts(launch: Launch) -> tuple[int, ...]:
    """Return the lines that each host has in the node file.

    That is a line for each CPU, as in Torque, or for each of the ``mpiprocs`` of the chunks that
    lie there.
    """
    chunks, shares = launch.spec.request.chunks, launch.origin.allocation
    if not any(chunk.ranks for chunk in chunks):
        return tuple(share.cpus for share in shares)
    return tuple(_ranks(share, chunks) for share in shares)


def _stated_threads(launch: Launch) -> int:
    """Return the threads of each rank that the request states; 0: it states none."""
    chunks = launch.spec.request.chunks
    if not chunks or not (chunks[0].ranks or chunks[0].threads):
        return 0
    return chunks[0].threads or chunks[0].cpus


def _ranks(share: Share, chunks: Sequence[Chunk]) -> int:
    """Return the ranks on one node: of the chunk that it is, else in proportion to its CPUs."""
    cpus = share.cpus
    alike = [chunk for chunk in chunks if share.slots == 1 and chunk.cpus == cpus]
    if alike:
        return alike[0].ranks or alike[0].cpus
    places = sum(chunk.count for chunk in chunks)
    ranks = sum(chunk.count * (chunk.ranks or chunk.cpus) for chunk in chunks)
    total = sum(chunk.count * chunk.cpus for chunk in chunks)
    return max(1, round(cpus * ranks / total)) if total else max(1, ranks * share.slots // places)


def slurm_variables(launch: Launch, account: Account, *, node_cpus: int = 0) -> dict[str, str]:
    """Return ``SLURM_*`` of a job on one of its nodes, beside ``PBS_*``.

    The numbers of tasks and of CPUs for each come from the submission, where they were stated.

    Args:
        launch: the order.
        account: of the job's owner.
        node_cpus: that this node offers; 0: unknown.
    """
    spec, hosts, rank = launch.spec, launch.hosts, launch.rank
    nodes = len(hosts)
    held = [str(gpu.index) for gpu in launch.share.gpus_held]  # a part of one, too
    gpus = ",".join(held)
    stated = launch.environment
    slots = tuple(share.cpus for share in launch.origin.allocation)
    if launch.share.exclusive and node_cpus:  # the node is the job's: all nodes are taken as equal
        slots = tuple(max(node_cpus, own) for own in slots)
    tasks = stated.get("SLURM_NTASKS", "")
    tasks = tasks if tasks.isdecimal() and int(tasks) else str(nodes)
    found = {
        "SLURM_JOB_ID": str(launch.short_number or launch.job),
        "SLURM_JOBID": str(launch.short_number or launch.job),
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_PARTITION": spec.queue,
        "SLURM_JOB_USER": account.user,
        "SLURM_JOB_UID": str(account.uid),
        "SLURM_CLUSTER_NAME": launch.server,
        "SLURM_JOB_NODELIST": compact(hosts),
        "SLURM_NODELIST": compact(hosts),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(rank),
        "SLURMD_NODENAME": hosts[rank],
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_CPUS_ON_NODE": str(slots[rank]),
        "SLURM_JOB_CPUS_PER_NODE": repeated(slots),
        "SLURM_TASKS_PER_NODE": repeated(_tasks_on_nodes(int(tasks), nodes, slots, stated)),
        "SLURM_SUBMIT_HOST": stated.get("PBS_O_HOST", ""),
        "SLURM_GTIDS": str(rank),
        "SLURM_JOB_GID": str(spec.owner.gid),
    }
    if spec.account:
        found["SLURM_JOB_ACCOUNT"] = spec.account
    if launch.attempt > 1:
        found["SLURM_RESTART_COUNT"] = str(launch.attempt - 1)
    if array_of(launch.job):
        found["SLURM_ARRAY_JOB_ID"] = str(array_of(launch.job))
        found["SLURM_ARRAY_TASK_ID"] = str(index_of(launch.job))
    if gpus:
        found["SLURM_JOB_GPUS"] = gpus
        found["SLURM_GPUS_ON_NODE"] = str(len(held))
    if launch.share.memory_bytes:
        found["SLURM_MEM_PER_NODE"] = str(launch.share.memory_bytes // 1024**2)
    return found


def _tasks_on_nodes(
    tasks: int, nodes: int, slots: Sequence[int], stated: Mapping[str, str]
) -> Iterator[int]:
    """Yield how many tasks a step of all CPUs has on each node: as many as its CPUs allow."""
    each = stated.get("SLURM_NTASKS_PER_NODE", "")
    cpus = stated.get("SLURM_CPUS_PER_TASK", "")
    of_task = int(cpus) if cpus.isdecimal() and int(cpus) else 1
    left = tasks
    for index, slot in enumerate(slots):
        behind = nodes - index - 1
        room = int(each) if each.isdecimal() and int(each) else max(1, slot // of_task)
        here = max(1, min(room, left - behind)) if behind else max(1, left)
        left -= here
        yield here
