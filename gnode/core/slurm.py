"""Variables of Slurm for jobs that were submitted as its jobs: what scripts and libraries read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gnode.core.inputs import Account
from gsched.model.counts import repeated
from gsched.model.host_lists import compact
from gsched.model.ids import array_of, index_of
from gsched.protocol.node import Launch

#: Set at submission of a job that came as one of Slurm's.
SLURM_MARK: Final = "SLURM_SUBMIT_DIR"


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
