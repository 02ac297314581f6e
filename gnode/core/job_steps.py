"""What a job gets to start tasks on its other nodes, and to start in its code snapshot."""

from gnode.core.task import AttemptKey
from gsched.protocol.node import Launch

SNAPSHOT_NAME = "code"  # in the job's directory


def step_variables(launch: Launch, socket: str, user_dir: str) -> dict[str, str]:
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


def in_snapshot(
    launch: Launch, unpacker: tuple[str, ...], argv: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the command that runs ``argv`` in the code snapshot of its job, where it has one."""
    snapshot = launch.spec.snapshot
    if snapshot is None:
        return argv
    place = (snapshot.digest, str(snapshot.size_bytes), snapshot.directory)
    return (*unpacker, *place, "--", *argv)


def mpi_variables(launch: Launch, agent: str, nodefile: str) -> dict[str, str]:
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
