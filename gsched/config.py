"""The configuration file (TOML) and the few environment variables, read here and nowhere else."""

import os
import stat
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gsched.config_containers import ContainersConfig
from gsched.config_gpu_share import GpuShareConfig
from gsched.config_gpus import GpuConfig, OutsideConfig
from gsched.config_history import HistoryConfig
from gsched.config_limits import LimitsConfig, StagingConfig
from gsched.config_login import LoginConfig
from gsched.config_notify import NotifyConfig
from gsched.config_queues import QueueConfig
from gsched.config_units import BadValueError, plain_numbers
from gsched.errors import ConfigError
from gsched.model.container import RUNTIMES
from gsched.model.limits import MAX_DETACH_TIMEOUT_S, MAX_LEASE_S

DEFAULT_CONFIG = "/etc/gsched/gsched.toml"
DEFAULT_SOCKET = "/run/gsched/head.sock"
HEAD_ACCOUNT = "gsched"
DEFAULT_STATE_DIR = "/var/lib/gsched"
#: Not below the head's: whoever can write a node's spool can run programs as any user.
DEFAULT_NODE_STATE_DIR = "/var/lib/gnode"
DEFAULT_KEY = "/etc/gsched/cluster.key"

_MAX_CHARACTERS: Final = 4 * 1024 * 1024  # of a configuration file

#: Not negative, and finite: a node that claims more than this would drown all others.
Quantity = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

#: Ranges of keys. Each key that is a number has one: a site's slip must not become a daemon that
#: polls a thousand times a second, or waits for a port that there is not.
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
RendezvousPort = Annotated[int, msgspec.Meta(ge=1024, le=65535)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Period = Annotated[float, msgspec.Meta(ge=0.05, le=86400)]

#: The largest weight in ``[balance]``: any sum of them is a finite number.
MAX_WEIGHT: Final = 1e6
Weight = Annotated[float, msgspec.Meta(ge=0, le=MAX_WEIGHT)]


def node_socket_of(head_socket: str) -> str:
    """Return where nodes of the same machine find the head whose commands come to ``head_socket``.

    Two heads never share that one, so they do not share this one.
    """
    return f"{head_socket.removesuffix('.sock')}-node.sock"


class HeadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[head]``: the head daemon.

    Attributes:
        server_name: the part of a job id behind the dot; empty: this machine's name.
        socket: path of the Unix socket for commands.
        node_socket: path of the Unix socket for nodes of this machine; empty: beside ``socket``,
            as `node_socket_of` says; ``none``: there is none.
        node_host, node_port: where nodes connect; port 0 takes a free one.
        state_dir: where the database, the mark and the lock live.
        key_file: the cluster's key.
        allow_root_jobs: whether uid 0 may submit; such jobs run on nodes that allow it, too.
        min_uid: the lowest uid of users who may submit; 0: ``UID_MIN`` of /etc/login.defs.
        operators: user names who may do everything, besides root and the head's own user.
        single_user: whether only the head's own user may submit (a cluster without root).
        unknown_resource: ``refuse`` or ``warn``.
        plaintext_node_channel: allow ``node_host`` to be other than loopback although the channel
            is not encrypted.
        node_tunnel: nodes may reach the head over loopback through a tunnel, such as ssh's.
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
    """

    server_name: str = ""
    socket: str = DEFAULT_SOCKET
    node_socket: str = ""
    node_host: str = "127.0.0.1"
    node_port: Port = 15010
    state_dir: str = DEFAULT_STATE_DIR
    key_file: str = DEFAULT_KEY
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    operators: tuple[str, ...] = ()
    single_user: bool = False
    unknown_resource: str = "refuse"
    plaintext_node_channel: bool = False
    node_tunnel: bool = False
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
    unsatisfiable: str = "cancel"


#: What a queue's ``policy`` may name; a test holds it against gschedd's registry.
POLICIES: Final = ("balance", "fewest", "fifo", "paper", "roundrobin", "torque")
#: What ``[training] policy`` may name; a test holds it against gschedd's registry, too.
TRAINING_POLICIES: Final = (
    "deadline",
    "drs",
    "edf",
    "elasticflow",
    "fifowhole",
    "gavel",
    "goodput",
    "pollux",
    "sia",
    "themis",
)
#: Those of them that choose batch sizes of adaptive training jobs, and need NumPy and highspy; a
#: test holds it against gschedd's registry.
ADAPTIVE_POLICIES: Final = ("gavel", "goodput", "pollux", "sia")
#: Whose DRS is meant; a test holds it against gschedd's.
DRS_VARIANTS: Final = ("paper", "ours")

#: What ``[node] cpu_binding`` may say.
CPU_BINDINGS: Final = ("auto", "cpuset", "affinity", "none")

#: What ``[training] profile`` may say; a test holds it against the head's.
PROFILING: Final = ("auto", "asked", "never")


class WeightsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``weights`` in ``[balance]``: how much each resource counts, k1 to k4, of any sum."""

    cpu: Weight = 0.25
    memory: Weight = 0.25
    gpu: Weight = 0.25
    gpu_memory: Weight = 0.25


class BalanceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[balance]``: balancing, and what all policies predict by.

    Attributes:
        rule: what ``balance`` means: ``gsched``, or ``paper`` for the algorithm of the paper.
        weights: of the resources.
        reserve: the first job that has to wait gets a reservation (rule ``gsched``).
        window_s: a job younger than this is not in its node's report yet.
        predictor: ``robust``, or ``paper`` for that of the same algorithm.
        predicted_times: plan with predicted run times instead of walltimes.
        latest: L of the paper's predictor: how many runs stand for a kind never seen.
        newest_weight: w of the paper's predictor: how much the newest fifth of them counts.
    """

    rule: str = "gsched"
    weights: WeightsConfig = WeightsConfig()
    reserve: bool = True
    window_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 10.0
    predictor: str = "robust"
    predicted_times: bool = True
    latest: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 20
    newest_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[node]``: the node daemon.

    Attributes:
        name: of this node; empty: this machine's name.
        head: the head's node channel: ``unix:/path`` on the same machine, else ``host:port``.
        head_user: the account that a head on the same machine runs as, besides root and gnode's.
        state_dir: spool, logs of supervisors, locks; empty: DEFAULT_NODE_STATE_DIR.
        key_file: the cluster's key.
        allow_root_jobs: whether jobs of uid 0 run here, whatever the head says.
        min_uid: the lowest uid of other users whose jobs run here; 0: ``UID_MIN`` of
            /etc/login.defs.
        address: where other nodes reach this one for rendezvous; empty: the connection's own.
        cpus: how many to offer; 0: all that gnode may use.
        cpu_capacity_cores: cores' worth of CPU time that they are; 0: as measured.
        cpu_clock_mhz: their clock; 0: the highest, as the machine tells it.
        memory: how much to offer, as ``64gb``; empty: all that gnode may use.
        gpu_rate_mhz: multiprocessors times clock, of each GPU; 0: as NVML tells them.
        gpu: declared GPUs; with none, NVML is asked.
        features: words that a request can name (``nodes=1:bigmem``).
        resources: consumable resources by name.
        cgroup: directory below which attempts get a control group; ``auto`` finds one, ``none``
            tracks processes by descent.
        cpu_binding: how jobs are kept on the CPUs that they were given: ``cpuset`` (control
            groups), ``affinity``, ``none``, or ``auto``: the strongest that works.
        gpu_fence: what keeps jobs from GPUs of others: ``bpf`` or ``devices`` (control groups of
            version 2 or 1), ``none``, or ``auto``: the first of them that works.
        container_runtimes: those that jobs may use here, in order of preference, if installed.
        tmp_dir: below which each job gets a directory of its own, its TMPDIR, which is removed at
            its end; empty: ``/tmp``.
        least_spool: free space in the file system of ``state_dir`` below which the node takes no
            new jobs, as ``32mb``.
        heartbeat_s, sample_s: how often load is sent, and each job's use is sampled.
        enforce_memory: kill a job that uses more memory than it asked for.
        no_new_privileges: setuid programs in jobs gain no rights.
        job_open_files: soft limit on open files of each process of a job.
        job_processes: processes and threads of a job, 0: no limit; by a control group, or without
            one of all that its user has on the machine.
        login_shell: scripts are run by login shells, which read the profiles of system and user.
        directory_wait_s: for how long a start waits for a working directory that does not exist,
            and for a directory of the output files; then the job waits, and is tried again.
        private_tmp: each job has a /tmp and a /dev/shm of its own; needs root.
    """

    name: str = ""
    head: str = f"unix:{node_socket_of(DEFAULT_SOCKET)}"
    head_user: str = HEAD_ACCOUNT
    state_dir: str = ""
    key_file: str = DEFAULT_KEY
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    address: str = ""
    cpus: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    cpu_capacity_cores: Quantity = 0.0
    cpu_clock_mhz: Quantity = 0.0
    memory: str = ""
    gpu_rate_mhz: Quantity = 0.0
    gpu: tuple[GpuConfig, ...] = ()
    features: tuple[str, ...] = ()
    resources: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]] = {}
    cgroup: str = "auto"
    cpu_binding: str = "auto"
    gpu_fence: str = "auto"
    container_runtimes: tuple[str, ...] = RUNTIMES
    tmp_dir: str = ""
    least_spool: str = "32mb"
    heartbeat_s: Period = 300.0
    sample_s: Period = 5.0
    enforce_memory: bool = True
    no_new_privileges: bool = False
    job_open_files: Annotated[int, msgspec.Meta(ge=64, le=1_048_576)] = 1024
    job_processes: Annotated[int, msgspec.Meta(ge=0, le=4_194_304)] = 0
    login_shell: bool = False
    directory_wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0
    private_tmp: bool = False


class LinkConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[fabric.link]]``: two nodes whose connection is not the usual one.

    Attributes:
        nodes: their names.
        bandwidth: as ``25GB/s``.
    """

    nodes: tuple[str, str]
    bandwidth: str


class FabricConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[fabric]``: how fast data moves among GPUs, and how fast these are.

    Attributes:
        inside, between: bandwidth in each node and between each pair of nodes.
        inside_of: of single nodes, by name.
        gpu_speeds: by type, against the GPU on which step times are measured; 1 where it is not
            named.
        link: pairs of nodes that differ.
    """

    inside: str = "10GB/s"
    between: str = "6GB/s"
    inside_of: dict[str, str] = {}
    gpu_speeds: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1e6)]] = {}
    link: tuple[LinkConfig, ...] = ()


class DeadlinePolicyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.deadline]``: the policy ``deadline``; defaults and meaning are its own.

    Attributes:
        reserve_share: part of the GPUs kept for training jobs still to come, once not all deadlines
            can be met.
        reserve_after_s: from when on, counted from now, they are kept; seconds.
        guarantee_below: a deadline is guaranteed once the GPU time that its job still needs is at
            most this part of the median of all, or of 4 hours of all GPUs; 0: never.
        grow_below: a running job gets more GPUs than it needs if its remaining time, with the
            migration, becomes at most this part of it.
        hold_s: a job that was started or migrated is left alone for so long; seconds.
        steps_max, steps_min: steps of the time line ahead, for few jobs and for many.
    """

    reserve_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.3
    reserve_after_s: Seconds = 3600.0
    guarantee_below: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.25
    grow_below: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.95
    hold_s: Seconds = 30.0
    steps_max: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 64
    steps_min: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 24


#: Ranges of keys of ``drs``, which stood in ``[deadline]``.
_MovesMax = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class DrsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.drs]``: the policy ``drs``; defaults and meaning are its own.

    Attributes:
        variant: as published (``paper``), or ``ours``.
        moves_max: maximum number of training jobs that migrate at once to make room; 0: none. In
            the published algorithm all of them migrate, or none.
        patience_s: with ``ours``, the waiting time after which a late job goes first; seconds.
    """

    variant: str = "ours"
    moves_max: _MovesMax = 8
    patience_s: Seconds = 86400.0


class ElasticflowConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.elasticflow]``: the policy ``elasticflow``; defaults and meaning are its own.

    Attributes:
        slot_s: a job keeps its number of GPUs for so long, unless others need them; seconds.
        in_slots: decisions are made at the end of each slot only.
    """

    slot_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 240.0
    in_slots: bool = False


class GoodputConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.goodput]``: the policy ``goodput``; defaults and meaning are its own.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the speed of a job, of its best.
        lambda_n: cost of a job that gets no GPUs, times its weight if that is more than 1.
        start_gpus: GPUs on which a job may start whose step times are known.
        caution: goodput on n times the GPUs on which a job has run is divided by n^caution.
        start_noise: gradient noise scale of a job that has measured none, in initial batches.
        short_first: weight of a job is (median / its time left)^short_first.
        weight_bound: that weight is no larger, nor smaller than one over it.
        ageing: a job counts (1 + its age in hours)^ageing times that weight.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    lambda_n: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.1
    start_gpus: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 8
    caution: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.1
    start_noise: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 4.0
    short_first: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.2
    weight_bound: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 1.5
    ageing: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.3
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 1e-3
    time_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    reserved_gpus: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]] = {}


class SiaConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.sia]``: the policy ``sia``; defaults and meaning are its own.

    Attributes:
        round_s: time between decisions about running jobs, seconds.
        p: power of the goodputs; not 0.
        lambda_n: cost of a job that gets no GPUs.
        restart_factor: whether the cost of a restart counts.
        gap: an assignment that is proven to be so near to the best is good enough, relative.
        time_limit_s: for the search of an assignment, seconds.
        reserved_gpus: GPUs of each type that are left to jobs of other policies.
    """

    round_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    p: Annotated[float, msgspec.Meta(ge=-10, le=10)] = -0.5
    lambda_n: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1.1
    restart_factor: bool = True
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 1e-5
    time_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    reserved_gpus: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]] = {}


class ThemisConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training.themis]``: the policy ``themis``; defaults and meaning are its own.

    Attributes:
        lease_s: GPUs are given for so long, seconds.
        fairness: the part of the bidders that sees no offer before the others have chosen.
        auctions_s: the shortest time between two auctions at ends of leases, seconds.
    """

    lease_s: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 1200.0
    fairness: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    auctions_s: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 300.0


class AnyTrainingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds under every policy for training jobs.

    Attributes:
        policy: how they are planned: one of `TRAINING_POLICIES`; all other jobs are planned by
            their queue's policy, beside them.
        refuse_impossible: deadlines that an idle cluster could not meet are not taken.
        move_s: from the order to migrate a training job to its first further step, where nothing
            was measured; seconds.
        share_for_others: fraction of the nodes with GPUs on which no training job with a deadline
            starts while other jobs wait for GPUs.
        profile: which elastic training jobs first run on their minimum number of GPUs, until their
            step times are measured: those without measured step times and those that request it
            (``auto``), only those that request it (``asked``), or none (``never``).
        planning_limit_s: a policy that has not planned within this time is given up for that time,
            and its process is started again, seconds.
    """

    policy: str = "deadline"
    refuse_impossible: bool = True
    move_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 30.0
    share_for_others: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    profile: str = "auto"
    planning_limit_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0


class TrainingConfig(AnyTrainingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[training]``: training jobs; each policy that has settings has a table of its own."""

    deadline: DeadlinePolicyConfig = DeadlinePolicyConfig()
    drs: DrsConfig = DrsConfig()
    elasticflow: ElasticflowConfig = ElasticflowConfig()
    goodput: GoodputConfig = GoodputConfig()
    sia: SiaConfig = SiaConfig()
    themis: ThemisConfig = ThemisConfig()


class DeadlineConfig(AnyTrainingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[deadline]``: the deprecated name of ``[training]``, with the keys of ``drs`` in it."""

    variant: str = "ours"
    moves_max: _MovesMax = 8
    patience_s: Seconds = 86400.0


class MovesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[moves]``: migration of running jobs.

    Attributes:
        at_once: so many jobs move at once when nodes are drained or a policy wants it.
        checkpoint_timeout_s: a job that has not saved its state so long after it was asked stays
            where it is, and one whose new place is not free so long after it left goes to its
            queue, seconds.
        warm: the processes of a job's next attempt are started while the present one trains, where
            its script calls `elastic.ready`.
        prepare_timeout_s: a job is asked for its state without them so long after they were
            started, seconds.
    """

    at_once: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 4
    checkpoint_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 300.0
    warm: bool = True
    prepare_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=300)] = 60.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; the first queue is the default. ``training`` replaces ``[deadline]``."""

    head: HeadConfig = HeadConfig()
    node: NodeConfig = NodeConfig()
    balance: BalanceConfig = BalanceConfig()
    queue: tuple[QueueConfig, ...] = (QueueConfig(name="batch"),)
    history: HistoryConfig = HistoryConfig()
    fabric: FabricConfig = FabricConfig()
    training: TrainingConfig = TrainingConfig()
    deadline: DeadlineConfig | UnsetType = UNSET
    moves: MovesConfig = MovesConfig()
    gpu_share: GpuShareConfig = GpuShareConfig()
    outside_gpu_use: OutsideConfig = OutsideConfig()
    notify: NotifyConfig = NotifyConfig()
    limits: LimitsConfig = LimitsConfig()
    containers: ContainersConfig = ContainersConfig()
    staging: StagingConfig = StagingConfig()
    login: LoginConfig = LoginConfig()


def config_path(given: str | None) -> str:
    """Return which file is read: the one that was given, else the environment's, else the usual."""
    return given or environment("GSCHED_CONFIG") or DEFAULT_CONFIG


def _text_of(path: str) -> str:
    """Return the content of a regular file of a bounded size: a device may have no end.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        ConfigError: it is no such file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path}: cannot be read: not a regular file", hint="see gsched.toml(5)")
    with open(fd, encoding="utf-8") as stream:
        text = stream.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{path}: the file has more than 4mb", hint="see gsched.toml(5)")
    return text


def load_config(path: str | None) -> Config:
    """Read a configuration; None means the default place, where a missing file means defaults.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key (did you mean), or a value that is wrong;
            the message names the file and, for syntax, the line.
    """
    where = config_path(path)
    try:
        text = _text_of(where)
    except FileNotFoundError:
        if path or environment("GSCHED_CONFIG"):
            raise ConfigError(
                f"{where}: no such file", hint="give another file with --config or $GSCHED_CONFIG"
            ) from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error
    return parse_config(text, where=where)


def parse_config(text: str, *, where: str) -> Config:
    """Return the configuration that ``text`` states; ``where`` names it in errors.

    Raises:
        ConfigError: as `load_config`.
    """
    import tomllib

    from gsched import config_rules  # late: as above

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{where}: {error}", hint="the file must be TOML: see gsched.toml(5)"
        ) from error
    try:
        config = msgspec.convert(plain_numbers(document, Config), Config)
    except BadValueError as bad:
        from gsched import config_errors  # late: few files have a mistake

        raise config_errors.located(
            bad.keys, f": {bad.message}", hint=bad.hint, text=text, where=where
        ) from None
    except msgspec.ValidationError as error:
        from gsched import config_errors  # late: few files have a mistake

        raise config_errors.from_validation(
            error, root=Config, document=document, text=text, where=where
        ) from None
    try:
        config_rules.check(config, document)
    except config_rules.BrokenRuleError as broken:
        from gsched import config_errors  # late: as above

        raise config_errors.located(
            broken.keys, broken.message, hint=broken.hint, text=text, where=where
        ) from None
    return config_rules.without_aliases(config)


def environment(name: str, default: str = "") -> str:
    """Return an environment variable of this process."""
    return os.environ.get(name, default)


def full_environment() -> dict[str, str]:
    """Return all environment variables of this process, as a copy."""
    return dict(os.environ)
