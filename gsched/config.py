"""The configuration file (TOML) and the few environment variables, read here and nowhere else."""

import os
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from gsched.errors import ConfigError

DEFAULT_CONFIG = "/etc/gsched/gsched.toml"
DEFAULT_SOCKET = "/run/gsched/head.sock"
DEFAULT_STATE_DIR = "/var/lib/gsched"
#: Not below the head's: whoever can write a node's spool can run programs as any user.
DEFAULT_NODE_STATE_DIR = "/var/lib/gnode"
DEFAULT_KEY = "/etc/gsched/cluster.key"

#: Not negative, and finite: a node that claims more than this would drown all others.
Quantity = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

#: The largest weight in ``[balance]``: any sum of them is a finite number.
MAX_WEIGHT: Final = 1e6


class HeadConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[head]``: the head daemon.

    Attributes:
        server_name: the part of a job id behind the dot; empty: this machine's name.
        socket: path of the Unix socket for commands.
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
        max_user_priority: the highest priority that users can give their own jobs; operators may
            give any.
    """

    server_name: str = ""
    socket: str = DEFAULT_SOCKET
    node_host: str = "127.0.0.1"
    node_port: int = 15010
    state_dir: str = DEFAULT_STATE_DIR
    key_file: str = DEFAULT_KEY
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    operators: tuple[str, ...] = ()
    single_user: bool = False
    unknown_resource: str = "refuse"
    plaintext_node_channel: bool = False
    node_tunnel: bool = False
    master_port_first: int = 20000
    master_port_last: int = 29999
    node_timeout_s: float = 15.0
    default_walltime_s: float = 0.0
    max_queued_per_user: int = 1_000_000
    max_user_priority: Annotated[int, msgspec.Meta(ge=-1024, le=1023)] = 0


#: What a queue's ``policy`` may name; a test holds it against gschedd's registry.
POLICIES: Final = ("balance", "fewest", "fifo", "paper", "roundrobin", "torque")
#: What plans trainings with deadlines, beside any of them.
DEADLINE_POLICIES: Final = ("deadline", "drs", "edf", "elasticflow", "fifowhole", "themis")
#: Whose DRS is meant; a test holds it against gschedd's.
DRS_VARIANTS: Final = ("paper", "ours")
#: What the simulator calls them, and how a site says the same.
_SIMULATED: Final = {"drs-paper": 'variant = "paper"', "drs-still": "moves_max = 0"}

#: What ``[deadline] profile`` may say; a test holds it against the head's.
PROFILING: Final = ("auto", "asked", "never")


class QueueConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[queue]]``: one queue.

    Attributes:
        name: what users write after ``-q``.
        policy: how its jobs are chosen: one of `POLICIES`; the same for all queues.
        priority: added to the priority of its jobs.
        max_walltime_s: jobs that ask for more are refused; 0: no limit.
        default_walltime_s: limit of jobs that state none; 0: no limit.
        enabled: whether it takes jobs.
        started: whether its jobs are started.
    """

    name: str
    policy: str = "balance"
    priority: int = 0
    max_walltime_s: float = 0.0
    default_walltime_s: float = 0.0
    enabled: bool = True
    started: bool = True


class WeightsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``weights`` in ``[balance]``: how much each resource counts, k1 to k4, of any sum."""

    cpu: float = 0.25
    memory: float = 0.25
    gpu: float = 0.25
    gpu_memory: float = 0.25


class BalanceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[balance]``: balancing, and what all policies predict by.

    Attributes:
        rule: what ``balance`` means: ``gsched``, or ``paper`` for the algorithm it was made from.
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
    window_s: float = 10.0
    predictor: str = "robust"
    predicted_times: bool = True
    latest: int = 20
    newest_weight: float = 0.6


class GpuConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[node.gpu]]``: declared GPUs, for a machine that has none that NVML sees.

    Attributes:
        rate_mhz: multiprocessors times their highest clock, of each; 0: as ``gpu_rate_mhz`` of
            the node.
    """

    count: int
    type: str = "declared"
    memory: str = "16gb"
    rate_mhz: Quantity = 0.0


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[node]``: the node daemon.

    Attributes:
        name: of this node; empty: this machine's name.
        head: ``host:port`` of the head's node channel.
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
        resources: counted resources by name.
        cgroup: directory below which attempts get a control group; ``auto`` finds one, ``none``
            tracks processes by descent.
        heartbeat_s, sample_s: how often load is sent, and each job's use is sampled.
        enforce_memory: kill a job that uses more memory than it asked for.
    """

    name: str = ""
    head: str = "127.0.0.1:15010"
    state_dir: str = ""
    key_file: str = DEFAULT_KEY
    allow_root_jobs: bool = False
    min_uid: Annotated[int, msgspec.Meta(ge=0, le=65533)] = 0
    address: str = ""
    cpus: int = 0
    cpu_capacity_cores: Quantity = 0.0
    cpu_clock_mhz: Quantity = 0.0
    memory: str = ""
    gpu_rate_mhz: Quantity = 0.0
    gpu: tuple[GpuConfig, ...] = ()
    features: tuple[str, ...] = ()
    resources: dict[str, int] = {}
    cgroup: str = "auto"
    heartbeat_s: float = 300.0
    sample_s: float = 10.0
    enforce_memory: bool = True


class HistoryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[history]``: what is remembered of jobs that have run; 0 keeps everything.

    Attributes:
        learn: whether what jobs cost is recorded and learned from.
        learn_rows: how many of the newest runs a head learns again when it starts.
        keep_days: how long the history is kept, since a run ended.
        keep_rows: how many runs are kept.
        keep_jobs_days: how long jobs that are done are kept, with their events, attempts and
            scripts, and events of nodes.
    """

    learn: bool = True
    learn_rows: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 5000
    keep_days: Annotated[float, msgspec.Meta(ge=0)] = 365.0
    keep_rows: Annotated[int, msgspec.Meta(ge=0)] = 500_000
    keep_jobs_days: Annotated[float, msgspec.Meta(ge=0)] = 0.0


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


class DeadlineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[deadline]``: trainings with deadlines.

    Attributes:
        policy: how they are planned: one of `DEADLINE_POLICIES`; all other jobs are planned by
            their queue's policy, beside them.
        refuse_impossible: deadlines that an idle cluster could not meet are not taken.
        move_s: from the order to move a training to its first further step, where nothing was
            measured; seconds.
        share_for_others: of the nodes with GPUs: on so many no training with a deadline is started
            while other jobs wait for GPUs.
        variant: of ``drs``: as published (``paper``), or ``ours``.
        moves_max: of ``drs``: so many trainings are moved at once to make room; 0: none. As
            published all of them are, or none.
        patience_s: of ``drs``, ours: one that is late and has waited so long goes first, seconds.
        profile: which elastic trainings run on their fewest GPUs until their steps are measured:
            those of which nothing is known (``auto``), only those that ask for it, or none.
    """

    policy: str = "deadline"
    refuse_impossible: bool = True
    move_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 30.0
    share_for_others: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    variant: str = "ours"
    moves_max: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 8
    patience_s: Annotated[float, msgspec.Meta(ge=0)] = 86400.0
    profile: str = "auto"


class MovesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[moves]``: running jobs that go on elsewhere.

    Attributes:
        at_once: so many jobs move at once when nodes are drained or a policy wants it.
        checkpoint_timeout_s: a job that has not saved its state so long after it was asked stays
            where it is, and one whose new place is not free so long after it left goes to its
            queue, seconds.
    """

    at_once: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 4
    checkpoint_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 300.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. The first queue is the default one."""

    head: HeadConfig = HeadConfig()
    node: NodeConfig = NodeConfig()
    balance: BalanceConfig = BalanceConfig()
    queue: tuple[QueueConfig, ...] = (QueueConfig(name="batch"),)
    history: HistoryConfig = HistoryConfig()
    fabric: FabricConfig = FabricConfig()
    deadline: DeadlineConfig = DeadlineConfig()
    moves: MovesConfig = MovesConfig()


_TABLES: Final[tuple[type[Struct], ...]] = (
    Config,
    HeadConfig,
    QueueConfig,
    BalanceConfig,
    WeightsConfig,
    NodeConfig,
    GpuConfig,
    HistoryConfig,
    FabricConfig,
    LinkConfig,
    DeadlineConfig,
)


def config_path(given: str | None) -> str:
    """Return which file is read: the one that was given, else the environment's, else the usual."""
    return given or environment("GSCHED_CONFIG") or DEFAULT_CONFIG


def load_config(path: str | None) -> Config:
    """Read a configuration; None means the default place, where a missing file means defaults.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key (did you mean), or a value that is wrong;
            the message names the file and, for syntax, the line.
    """
    from pathlib import Path  # late: every command imports this module, few read the file

    where = config_path(path)
    try:
        text = Path(where).read_text(encoding="utf-8")
    except FileNotFoundError:
        if path or environment("GSCHED_CONFIG"):
            raise ConfigError(f"{where}: no such file", hint="see --config") from None
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

    try:
        config = msgspec.convert(tomllib.loads(text), Config)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{where}: {error}", hint="the file is TOML: see gsched.toml(5)"
        ) from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", hint=_suggestion(str(error))) from error
    _check(config, where)
    return config


def _check(config: Config, where: str) -> None:
    names = [queue.name for queue in config.queue]
    if not names:
        raise ConfigError(
            f"{where}: no [[queue]] at all", hint="leave [[queue]] out for the default"
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: queue {name!r} is there twice")
    if config.head.unknown_resource not in {"refuse", "warn"}:
        raise ConfigError(
            f"{where}: head.unknown_resource is {config.head.unknown_resource!r}",
            hint="say refuse or warn",
        )
    if not 1024 <= config.head.master_port_first <= config.head.master_port_last <= 65535:
        raise ConfigError(
            f"{where}: master ports {config.head.master_port_first} to "
            f"{config.head.master_port_last} are no range",
            hint="give master_port_first <= master_port_last, both 1024 to 65535",
        )
    _check_node_name(config.node.name, where)
    for queue in config.queue:
        if queue.policy not in POLICIES:
            raise ConfigError(
                f"{where}: queue {queue.name!r} names an unknown policy {queue.policy!r}",
                hint=_closest(queue.policy, POLICIES) or f"known are: {', '.join(POLICIES)}",
            )
    _check_deadline(config.deadline, where)
    _check_balance(config.balance, where)


def _check_node_name(name: str, where: str) -> None:
    from gsched.model.node_name import NODE_NAME_RULE, is_node_name  # late: as above

    if name and not is_node_name(name):
        raise ConfigError(f"{where}: node.name {name!r} is not valid", hint=NODE_NAME_RULE)


def _check_deadline(deadline: DeadlineConfig, where: str) -> None:
    for key, word, known in (
        ("profile", deadline.profile, PROFILING),
        ("variant", deadline.variant, DRS_VARIANTS),
    ):
        if word not in known:
            raise ConfigError(
                f"{where}: deadline.{key} is {word!r}",
                hint=_closest(word, known) or f"say {', '.join(known)}",
            )
    name = deadline.policy
    if name in _SIMULATED:
        raise ConfigError(
            f"{where}: deadline.policy is {name!r}, which is a name for gsim",
            hint=f'write policy = "drs" and {_SIMULATED[name]}',
        )
    if name not in DEADLINE_POLICIES:
        raise ConfigError(
            f"{where}: deadline.policy is {name!r}, which plans no trainings",
            hint=_closest(name, DEADLINE_POLICIES) or f"known are: {', '.join(DEADLINE_POLICIES)}",
        )


def _check_balance(balance: BalanceConfig, where: str) -> None:
    for key, word, known in (
        ("rule", balance.rule, ("gsched", "paper")),
        ("predictor", balance.predictor, ("robust", "paper")),
    ):
        if word not in known:
            raise ConfigError(
                f"{where}: balance.{key} is {word!r}", hint=f"say {' or '.join(known)}"
            )
    weights = msgspec.structs.asdict(balance.weights)
    for key, number in weights.items():
        if not 0 <= number <= MAX_WEIGHT:
            raise ConfigError(
                f"{where}: balance.weights.{key} is {number:g}",
                hint=f"give a number from 0 to {MAX_WEIGHT:g}: only their ratios count",
            )
    if weights["cpu"] + weights["memory"] == 0:
        raise ConfigError(
            f"{where}: balance.weights.cpu and .memory are both 0",
            hint="give one of them a weight: for a job without GPUs nothing else counts",
        )
    for key, number, low, high in (
        ("window_s", balance.window_s, 0, 86400),
        ("latest", balance.latest, 1, 100_000),
        ("newest_weight", balance.newest_weight, 0, 1),
    ):
        if not low <= number <= high:
            raise ConfigError(
                f"{where}: balance.{key} is {number:g}", hint=f"give a number from {low} to {high}"
            )


def _suggestion(message: str) -> str:
    if "unknown field" not in message:
        return "see gsched.toml(5)"
    unknown = message.split("`")[1]
    known: list[str] = []
    for struct in _TABLES:
        known.extend(struct.__struct_fields__)
    return _closest(unknown, known) or "see gsched.toml(5) for the keys"


def _closest(word: str, known: Sequence[str]) -> str:
    """Return ``did you mean 'x'?``, or the empty string if nothing known is like the word."""
    import difflib  # late: every command imports this module, few have a mistake to explain

    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def environment(name: str, default: str = "") -> str:
    """Return an environment variable of this process."""
    return os.environ.get(name, default)


def full_environment() -> dict[str, str]:
    """Return all environment variables of this process, as a copy."""
    return dict(os.environ)
