"""What a node is to the tasks that it starts: its directories, its limits, its ways."""

from dataclasses import dataclass, field
from typing import Final

from gnode.core.containers import ContainerRules
from gnode.core.cpus import Cpu
from gnode.core.gpu_access import OPEN_ACCESS, GpuAccess
from gnode.core.staging import DEFAULT_STAGING, Staging
from gnode.core.task import Account

REMOVE_DELAY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What the node's configuration says of every job: see `gsched.config.nodes.NodeConfig`."""

    no_new_privileges: bool = False
    open_files: int = 1024
    processes: int = 0
    login_shell: bool = False
    directory_wait_s: float = 0.0
    private_tmp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRules:
    """Which programs the site has: see `gsched.config.nodes.NodeConfig`.

    Attributes:
        checks: health checks before a job: name, path and limit of time of each.
    """

    prolog: str = ""
    epilog: str = ""
    prolog_user: str = ""
    epilog_user: str = ""
    prolog_timeout_s: float = 300.0
    epilog_timeout_s: float = 300.0
    checks: tuple[tuple[str, str, float], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether there are no programs."""
        named = (self.prolog, self.epilog, self.prolog_user, self.epilog_user)
        return not any(named) and not self.checks

    @property
    def limit_s(self) -> float:
        """Return how long the programs of gnode's user may take around a job, seconds."""
        before_s = self.prolog_timeout_s if self.prolog else 0.0
        after_s = self.epilog_timeout_s if self.epilog else 0.0
        return before_s + after_s + sum(limit_s for _, _, limit_s in self.checks)


NO_PROGRAMS: Final = ProgramRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What binding must know of this node.

    Attributes:
        user_root: directory that holds the owners' directories, below ``tmp_dir``.
        outbox_root: directory that holds what jobs send to their hosts of submission; empty: none.
        agent_path: file of the program that runs torchrun and reports its first failing rank.
        uid: that gnode runs as; 0 can start jobs of any user.
        root_jobs: whether jobs of uid 0 may run here.
        cgroup_root: version 2 directory below which attempts get a group, or None.
        memory_root: version and directory below which memory is limited, or None.
        boot_id: of the machine.
        elastic_socket: path of the socket on which training jobs talk to gnode.
        probe_account: as whom the node probes itself; None: it cannot.
        limits: of each job's processes.
        processes_root: directory below which the number of processes is limited, or None.
        sharing: the runtime by which jobs share GPUs here; empty: they cannot.
        cpus: that attempts are bound to; empty: they are not.
        cpu_binding: how attempts are bound to CPUs, in words; empty: nothing is said of it.
        cpuset_root: version and directory below which CPUs are limited; None: by affinity.
        gpu_access: the names of its GPUs, and what keeps jobs from those of others.
        cpu_count: CPUs that the node offers; 0: unknown.
        containers: the runtimes of containers here, and what all containers have.
        step_agent: the command that runs a step agent.
        unpacker: the command that starts a program in the code snapshot of its job.
        carrier: the command that stages a file in through the head.
        staging: how files are copied for jobs.
        programs: of the site, around each job.
        launch_agent: path of gsched-launch-agent, by which MPI starts its daemons; empty: none.
        visible: directories of this node that jobs need, also where these have a /tmp of their own.
        command_socket: where commands on this node find the head; empty: where they look for it
            by default, as the head is on this machine.
        runs_programs: tasks have command lines, environments and files; not where the machine is a
            modelled one.
        remove_delay_s: how long the records of an acknowledged attempt stay: a repeated launch
            still gets its exit.
    """

    node: str
    user_root: str
    agent_path: str
    version: str
    boot_id: str
    uid: int
    root_jobs: bool = False
    cgroup_root: str | None = None
    memory_root: tuple[int, str] | None = None
    elastic_socket: str = ""
    probe_account: Account | None = None
    limits: NodeLimits = NodeLimits()
    processes_root: str | None = None
    sharing: str = ""
    cpus: tuple[Cpu, ...] = ()
    cpu_binding: str = ""
    cpuset_root: tuple[int, str] | None = None
    gpu_access: GpuAccess = OPEN_ACCESS
    cpu_count: int = 0
    containers: ContainerRules = field(default_factory=ContainerRules)
    step_agent: tuple[str, ...] = ()
    unpacker: tuple[str, ...] = ()
    carrier: tuple[str, ...] = ()
    launch_agent: str = ""
    staging: Staging = DEFAULT_STAGING
    programs: ProgramRules = NO_PROGRAMS
    visible: tuple[str, ...] = ()
    command_socket: str = ""
    outbox_root: str = ""
    runs_programs: bool = True
    remove_delay_s: float = REMOVE_DELAY_S
