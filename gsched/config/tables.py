"""The tables of the configuration file that the head reads, and the file as a whole."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from gsched.config.environment import (
    DEFAULT_SOCKET,
    DEFAULT_STATE_DIR,
)
from gsched.config.idle_gpus import IdleGpusConfig
from gsched.config.limits import SharedLimitTables
from gsched.config.nodes import (
    GpuShareConfig,
    LoginConfig,
    NodeConfig,
    OutsideConfig,
    StagingConfig,
)
from gsched.config.notify import NotifyConfig
from gsched.config.policies import BalanceConfig, FabricConfig, TrainingConfig
from gsched.config.preemption import OwnMinRun, OwnPreemptMode, PreemptionConfig
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig, SharesConfig
from gsched.config.tasks import TasksConfig
from gsched.config.tls import HttpsConfig, TlsConfig
from gsched.config.web import WebConfig
from gsched.config.words import (
    Days,
    Directory,
    OptionalPath,
    Port,
    QueuePolicy,
    RendezvousPort,
    Seconds,
    ServerName,
)
from gsched.model.host_lists import expanded
from gsched.model.limits import MAX_DETACH_TIMEOUT_S, MAX_LEASE_S


class HeadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[head]``: the head daemon.

    Attributes:
        server_name: the part of a job id behind the dot; empty: this machine's name.
        socket: path of the Unix socket for commands.
        node_socket: path of the Unix socket for nodes of this machine; empty: beside ``socket``,
            as `node_socket_of` says; ``none``: there is none.
        node_host, node_port: where nodes connect; port 0 takes a free one.
        addresses: of all heads of the cluster, as ``head-a:15010``, where they share a store: hosts
            go to the one that rules.
        state_dir: where the database, the mark and the lock live.
        allow_root_jobs: whether uid 0 may submit; such jobs run on nodes that allow it, too.
        min_uid: the lowest uid of users who may submit; 0: ``UID_MIN`` of /etc/login.defs.
        operators: users who change jobs of others, and nodes, besides root and the head's own user.
        administrators: operators who alone change queues and reload the configuration, besides root
            and the head's own user; none: all operators do.
        private: users see no names, commands and details of the jobs of others.
        operator_hosts: nodes and login hosts where operators are operators, too; elsewhere but on
            the head's machine they are ordinary users, and root is refused.
        single_user: whether only the head's own user may submit (a cluster without root).
        unknown_resource: what becomes of a request for a resource that no node has.
        master_port_first, master_port_last: rendezvous ports handed to distributed jobs.
        node_timeout_s: silence after which a node is unreachable.
        default_walltime_s: for jobs that state none, for planning only; 0: unknown.
        max_queued_per_user: unfinished jobs of one user; more are refused.
        max_array_elements: elements of one array; an array with more is refused.
        max_user_priority: the highest priority that users can give their own jobs; operators may
            give any.
        lease_s: of rerunnable jobs that say nothing of a lease; 0: they have none.
        detach_timeout_s: interactive jobs end when nobody was attached for so long; 0: they do not.
        operators_enter_jobs: whether operators may have a terminal in the jobs of others, and so
            act as these; root may in any case, and nobody in jobs of root.
        unsatisfiable: jobs whose dependency can never be satisfied: ``cancel`` or ``hold``.
        log_format: ``text``, or ``json``: an object a line.
        log_file: of the daemon; empty: stderr.
        audit_file: of the audit log; empty: ``audit.log`` in ``state_dir``.
    """

    server_name: ServerName = ""
    socket: str = DEFAULT_SOCKET
    node_socket: str = ""
    node_host: str = "127.0.0.1"
    node_port: Port = 15010
    addresses: tuple[str, ...] = ()
    state_dir: Directory = DEFAULT_STATE_DIR
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    operators: tuple[str, ...] = ()
    administrators: tuple[str, ...] = ()
    private: bool = False
    operator_hosts: tuple[str, ...] = ()
    single_user: bool = False
    unknown_resource: Literal["refuse", "warn"] = "refuse"
    master_port_first: RendezvousPort = 20000
    master_port_last: RendezvousPort = 29999
    node_timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=1e6)] = 15.0
    default_walltime_s: Seconds = 0.0
    max_queued_per_user: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = 1_000_000
    max_array_elements: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 100_000
    max_user_priority: Annotated[int, msgspec.Meta(ge=-1024, le=1023)] = 0
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_LEASE_S)] = 0.0
    detach_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DETACH_TIMEOUT_S)] = 3600.0
    operators_enter_jobs: bool = False
    unsatisfiable: Literal["cancel", "hold"] = "cancel"
    log_format: Literal["text", "json"] = "text"
    log_file: OptionalPath = ""
    audit_file: OptionalPath = ""


class QueueConfig(SharedLimitTables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[queue]]``: one queue.

    Attributes:
        name: what users write after ``-q``.
        policy: how its jobs are chosen; the same for all queues.
        priority: added to the priority of its jobs.
        preempt_mode, preempt_min_run_s: as ``mode`` and ``min_run_s`` of ``[preemption]``, for its
            jobs; empty and -1: these.
        max_walltime_s: jobs that ask for more are refused; 0: no limit.
        default_walltime_s: limit of jobs that state none; 0: ``max_walltime_s``.
        walltime_extension: by how much users can extend a running job in all, as ``4h`` or
            ``50%`` of its walltime; ``0``: not at all; empty: up to ``max_walltime_s``.
        walltime_extensions_per_user: running jobs that a user can have extended; 0: any number.
        enabled: whether it takes jobs.
        started: whether its jobs are started.
        allow_users, allow_groups: who may submit to it; both empty: everybody.
        deny_users: who may not, whatever the others say.
        detach_timeout_s: as in ``[head]``, for its jobs; -1: that of ``[head]``.
        max_interactive_walltime_s, max_detach_timeout_s, default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes: as in ``[limits]``, for its jobs; -1: that of
            ``[limits]``; 0: none.
    """

    name: str
    policy: QueuePolicy = "balance"
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    preempt_mode: OwnPreemptMode = ""
    preempt_min_run_s: OwnMinRun = -1.0
    max_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    default_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    walltime_extension: str = ""
    walltime_extensions_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    enabled: bool = True
    started: bool = True
    allow_users: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    deny_users: tuple[str, ...] = ()
    detach_timeout_s: Annotated[float, msgspec.Meta(ge=-1, le=MAX_DETACH_TIMEOUT_S)] = -1.0
    max_interactive_walltime_s: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    max_detach_timeout_s: Annotated[float, msgspec.Meta(ge=-1, le=MAX_DETACH_TIMEOUT_S)] = -1.0
    default_memory_per_cpu_bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**50)] = -1
    default_memory_per_gpu_bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**50)] = -1


#: What operators can change of a queue on a running head.
QUEUE_ATTRIBUTES: Final = tuple(
    name
    for name in QueueConfig.__struct_fields__
    if name not in {"name", "policy", *SharedLimitTables.__struct_fields__}
)


class LimitsConfig(SharedLimitTables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: what users may take and keep, and what their jobs get that state nothing.

    Attributes:
        default_memory_per_cpu_bytes: limit of jobs without ``-l mem``, for each CPU; 0: none.
        default_memory_per_gpu_bytes: likewise of chunks with GPUs, for each GPU; 0: as for CPUs.
        max_interactive_walltime_s: limit of interactive jobs, which is also the walltime of those
            that state none; 0: that of their queue.
        max_detach_timeout_s: the longest detach timeout; 0: jobs may have none at all.
        snapshot_bytes: of all files of a snapshot together, and of its archive.
        snapshot_files: their number.
        snapshots_total_bytes: of all archives on the head; 0: a tenth of its file system.
        snapshots_per_user_bytes: of those of one user; 0: a quarter of ``snapshots_total_bytes``.
        snapshots_total: number of all archives on the head.
        snapshots_per_user: of those of one user.
        texts_per_user_bytes: of scripts, environments and lines of arrays that jobs of a user have,
            also finished ones; 0: no limit.
    """

    default_memory_per_cpu_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    default_memory_per_gpu_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    max_interactive_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    max_detach_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DETACH_TIMEOUT_S)] = 0.0
    snapshot_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**33)] = 268_435_456
    snapshot_files: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20_000
    snapshots_total_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    snapshots_per_user_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    snapshots_total: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20_000
    snapshots_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1000
    texts_per_user_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 4_294_967_296


class StoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[store]``: a second place of the head's database, for a second head.

    Attributes:
        url: of a PostgreSQL database, ``postgresql://USER@HOST/NAME``; empty: there is none.
        lease_s: a head rules for so long after its last sign; then another one may.
    """

    url: str = ""
    lease_s: Annotated[float, msgspec.Meta(ge=1.0, le=600.0)] = 5.0


class HistoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[history]``: what is remembered of jobs that have run; 0 keeps everything.

    Attributes:
        learn: whether what jobs cost is recorded and learned from.
        learn_rows: how many of the newest runs a head learns again when it starts.
        keep_days: how long the history is kept, since a run ended.
        keep_rows: how many runs are kept.
        keep_jobs_days: how long jobs that are done are kept, with their events, attempts and
            scripts, and events of nodes.
        keep_jobs_per_user: how many jobs that are done are kept of each user, the newest.
        accounting: whether Torque's accounting records are written, to ``accounting/YYYYMMDD`` in
            the state directory.
    """

    learn: bool = True
    learn_rows: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 5000
    keep_days: Days = 365.0
    keep_rows: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 500_000
    keep_jobs_days: Days = 365.0
    keep_jobs_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 250_000
    accounting: bool = False


class ContainersConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[containers]``: containers of jobs; ``allowed`` is the head's, the others are a node's.

    Attributes:
        allowed: what the name of an image must begin with, one of these; empty: any image.
        mount_home: the owner's home directory is there in each container.
        mounts: directories of the node that are there in each container, as ``/data:/data:ro``.
    """

    allowed: tuple[str, ...] = ()
    mount_home: bool = True
    mounts: tuple[str, ...] = ()


class MovesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[moves]``: migration of running jobs.

    Attributes:
        at_once: so many jobs move at once when nodes are drained or a policy wants it.
        checkpoint_timeout_s: a job that has not saved its state so long after it was asked stays
            where it is, and one whose new place is not free so long after it left goes to its
            queue, seconds.
        warm: the processes of a job's next attempt are started while the present one trains, where
            its script calls `elastic.ready`.
        prepare_timeout_s: a job is requested its state without them so long after they were
            started, seconds.
    """

    at_once: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 4
    checkpoint_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 300.0
    warm: bool = True
    prepare_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=300)] = 60.0


class PowerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[power]``: idle nodes are powered down, and up again for jobs. Without programs: they stay.

    Attributes:
        suspend_program, resume_program: are run with a list of nodes, as ``n[01-04]``, that are to
            be powered down or up.
        suspend_after_s: a node is powered down when it was idle for so long.
        suspend_timeout_s: a node is powered down completely within this time after
            ``suspend_program`` was run; it is not powered up before.
        resume_timeout_s: a node that has not registered so long after ``resume_program`` was run
            is drained.
        exclude_nodes: are never powered down without an operator; names, or lists as ``n[01-04]``.
        nodes_per_minute: so many are powered down within a minute, and so many up; 0: no limit.
    """

    suspend_program: OptionalPath = ""
    resume_program: OptionalPath = ""
    suspend_after_s: Seconds = 1800.0
    suspend_timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 120.0
    resume_timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 600.0
    exclude_nodes: tuple[str, ...] = ()
    nodes_per_minute: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 60

    @property
    def is_on(self) -> bool:
        """Return whether there are programs that switch nodes."""
        return bool(self.suspend_program and self.resume_program)

    @property
    def excluded(self) -> frozenset[str]:
        """Return the names of the nodes that are never powered down without an operator.

        Raises:
            UsageError: a list cannot be read.
        """
        lists = (expanded(each, option="exclude_nodes") for each in self.exclude_nodes)
        return frozenset(name for names in lists for name in names)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; the first queue is the default."""

    head: HeadConfig = HeadConfig()
    node: NodeConfig = NodeConfig()
    balance: BalanceConfig = BalanceConfig()
    queue: tuple[QueueConfig, ...] = (QueueConfig(name="batch"),)
    project: tuple[ProjectConfig, ...] = ()
    qos: tuple[QosConfig, ...] = ()
    shares: SharesConfig = SharesConfig()
    priority: PriorityConfig = PriorityConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    store: StoreConfig = StoreConfig()
    history: HistoryConfig = HistoryConfig()
    fabric: FabricConfig = FabricConfig()
    training: TrainingConfig = TrainingConfig()
    moves: MovesConfig = MovesConfig()
    power: PowerConfig = PowerConfig()
    gpu_share: GpuShareConfig = GpuShareConfig()
    outside_gpu_use: OutsideConfig = OutsideConfig()
    idle_gpus: IdleGpusConfig = IdleGpusConfig()
    notify: NotifyConfig = NotifyConfig()
    limits: LimitsConfig = LimitsConfig()
    containers: ContainersConfig = ContainersConfig()
    staging: StagingConfig = StagingConfig()
    login: LoginConfig = LoginConfig()
    tasks: TasksConfig = TasksConfig()
    web: WebConfig = WebConfig()
    tls: TlsConfig = TlsConfig()
    https: HttpsConfig = HttpsConfig()
