"""Make the configuration of a throw-away cluster, read it back, let it grow."""

import contextlib
import os
import re
import socket
import sys
import tomllib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
import psutil

from gsched.cli.local.daemons import Daemon
from gsched.cli.local.layout import ClusterLayout, NodeLayout
from gsched.cli.local.toml import head_toml, node_toml, with_value, write_file
from gsched.config.errors import Keys, closest
from gsched.config.load import load_config, parse_config
from gsched.config.nodes import GpuConfig, NodeConfig, share_runtimes
from gsched.config.tables import Config, HeadConfig
from gsched.config.words import ADAPTIVE_POLICIES, POLICIES, TRAINING_POLICIES
from gsched.errors import CannotWriteError, ConfigError, UsageError
from gsched.model.units import format_size, parse_size_bytes
from gsched.model.wording import counted

NODES_MAX = 256  # on one machine; more is a slip of the finger
MASTER_PORTS = 500  # each cluster of a machine gets its own range of rendezvous ports
MASTER_RANGES = 20
DEFAULT_GPU_TYPE = "declared"
_KEY_FILE = re.compile(r'^key_file = ".*/cluster\.key"\n', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """What the caller of ``gsched up`` asked for; None where nothing was said.

    Attributes:
        memory: of each node, as PBS writes sizes.
        policies: at most one for the queues and one for training jobs.
        share: how the nodes let jobs share GPUs: a runtime of ``[gpu_share]``.
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    memory: str | None = None
    policies: tuple[str, ...] = ()
    share: str | None = None


def make_directory(layout: ClusterLayout) -> None:
    """Make D. Root's is open to all users, who must reach the socket; another's is private.

    Raises:
        CannotWriteError: it cannot be made or written.
    """
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        layout.directory.mkdir(mode=mode, parents=True, exist_ok=True)
        layout.nodes_directory.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise CannotWriteError(
            f"{layout.directory}: cannot be created: {error.strerror}", hint="choose another --dir"
        ) from error
    if not os.access(layout.directory, os.W_OK | os.X_OK):
        raise CannotWriteError(
            f"{layout.directory}: no permission to write there", hint="choose another --dir"
        )


def new_head(layout: ClusterLayout) -> HeadConfig:
    """Return the head's configuration for a fresh cluster in ``layout``."""
    root = os.geteuid() == 0
    first = 20000 + MASTER_PORTS * (zlib.crc32(os.fsencode(layout.directory)) % MASTER_RANGES)
    return HeadConfig(
        server_name=host_name(),
        socket=str(layout.socket),
        node_port=0,
        state_dir=str(layout.directory),
        allow_root_jobs=root,
        single_user=not root,
        master_port_first=first,
        master_port_last=first + MASTER_PORTS - 1,
    )


def host_name() -> str:
    """Return this machine's short name."""
    return socket.gethostname().partition(".")[0] or "localhost"


def read_head(layout: ClusterLayout) -> Config:
    """Return the stored configuration of the head.

    Raises:
        ConfigError: it is broken, or was not made by ``gsched up``.
    """
    config = load_config(str(layout.config))
    if config.head.socket != str(layout.socket) or config.head.state_dir != str(layout.directory):
        raise ConfigError(
            f"{layout.config}: not a cluster of `gsched up` in {layout.directory}: its socket "
            f"is {config.head.socket}, its state_dir {config.head.state_dir}",
            hint="choose another --dir (a cluster cannot be moved by moving its directory)",
        )
    return config


def write_head(layout: ClusterLayout, config: Config) -> None:
    """Store the head's configuration."""
    write_file(layout.config, head_toml(config.head, config.queue))


def change(path: Path, keys: Keys, value: object) -> None:
    """Change one key of a stored configuration; comments and all other keys stay.

    Raises:
        ConfigError: the file would be no valid configuration, or states the key in another form.
        CannotWriteError: it cannot be written.
    """
    text = with_value(path.read_text(encoding="utf-8"), keys, value, where=str(path))
    parse_config(text, where=str(path))
    write_file(path, text)


def drop_key_file(layout: ClusterLayout) -> None:
    """Delete the key that ``gsched up`` wrote to each file before hosts had certificates."""
    for path in (layout.config, *(node.config for node in layout.nodes())):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # whoever reads it reports that
            text = path.read_text(encoding="utf-8")
            kept = _KEY_FILE.sub("", text)
            if kept != text:
                write_file(path, kept)


def pin_port(layout: ClusterLayout, port: int, nodes: Iterable[NodeLayout]) -> None:
    """Make ``port`` the head's port for ever, so that it is the same after a restart."""
    if read_head(layout).head.node_port != port:
        change(layout.config, ("head", "node_port"), port)
    for node in nodes:
        address = node_channel(layout)
        if read_node(node).head != address:
            change(node.config, ("node", "head"), address)


def set_policies(layout: ClusterLayout, policies: tuple[str, ...]) -> tuple[str, ...]:
    """Store the policies of the head; return what is other than before, in words."""
    changed = []
    for policy in policies:
        config = read_head(layout)
        if policy in TRAINING_POLICIES:
            before: str = config.training.policy
            what = "training jobs"
            keys: list[Keys] = [("training", "policy")]
        else:
            before, what = config.queue[0].policy, "the queues"
            keys = [("queue", at, "policy") for at in range(len(config.queue))]
        if policy == before:
            continue
        _change_all(layout.config, keys, policy)
        changed.append(f"the policy of {what} is now {policy} instead of {before}")
    return tuple(changed)


def _change_all(path: Path, keys: list[Keys], value: object) -> None:
    """Change keys that only together make a valid file."""
    text = path.read_text(encoding="utf-8")
    for each in keys:
        text = with_value(text, each, value, where=str(path))
    if keys[0][0] == "queue" and not tomllib.loads(text)["queue"][0].get("name"):
        text = with_value(text, ("queue", 0, "name"), "batch", where=str(path))
    parse_config(text, where=str(path))
    write_file(path, text)


def set_share(layout: ClusterLayout, runtime: str) -> tuple[str, ...]:
    """Store how the nodes share GPUs; return what is other than before, in words."""
    changed = []
    for node in layout.nodes():
        before = read_share(node)
        if before != runtime:
            change(node.config, ("gpu_share", "runtime"), runtime)
            changed.append(
                f"node {node.name} shares GPUs now: {runtime}"
                if runtime != "none"
                else f"node {node.name} shares no GPUs any more"
            )
    return tuple(changed)


def read_node(node: NodeLayout) -> NodeConfig:
    """Return the stored configuration of a node."""
    return load_config(str(node.config)).node


def read_share(node: NodeLayout) -> str:
    """Return the runtime by which a node shares GPUs."""
    return load_config(str(node.config)).gpu_share.runtime


def write_node(node: NodeLayout, config: NodeConfig) -> None:
    """Store the configuration of a node, and make its directory."""
    node.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(node.config, node_toml(config))


def node_channel(layout: ClusterLayout) -> str:
    """Return what the nodes dial: no other user of this machine can be at that end."""
    return f"unix:{layout.node_socket}"


def add_nodes(layout: ClusterLayout, wanted: ClusterRequest) -> tuple[str, ...]:
    """Add nodes until there are as many as wanted; return the names of the new ones."""
    there = layout.nodes()
    count = wanted.nodes if wanted.nodes is not None else (0 if there else 1)
    template = new_node(wanted, count, read_node(there[0]) if there else None)
    share = wanted.share or (read_share(there[0]) if there else "none")
    names = []
    for number in range(1, count + 1):
        node = layout.node(f"n{number}")
        if node.config.exists():
            continue
        config = msgspec.structs.replace(
            template,
            name=node.name,
            head=node_channel(layout),
            state_dir=str(node.directory),
        )
        write_node(node, config)
        if share != "none":
            change(node.config, ("gpu_share", "runtime"), share)
        names.append(node.name)
    return tuple(names)


def new_node(wanted: ClusterRequest, count: int, like: NodeConfig | None) -> NodeConfig:
    """Return what each of ``count`` new nodes offers.

    What was not said is taken from a node that is there; without one, this machine is divided by
    the number of nodes. Several nodes do not all offer the same real GPUs: theirs are declared.
    """
    cpus, memory, gpu = 0, "", ()  # type: int, str, tuple[GpuConfig, ...]
    no_new_privileges = True
    if like is not None:
        no_new_privileges = like.no_new_privileges
        cpus, memory, gpu = like.cpus, like.memory, like.gpu
    elif count > 0:
        cpus = max(1, (os.cpu_count() or 1) // count)
        memory = f"{psutil.virtual_memory().total // count // 1024**2}mb"
        gpu = (GpuConfig(count=0),) if count > 1 else ()
    if wanted.gpus is not None or wanted.gpu_type is not None:
        count_before = sum(each.count for each in gpu)
        type_before = gpu[0].type if gpu else DEFAULT_GPU_TYPE
        number = wanted.gpus if wanted.gpus is not None else count_before
        gpu = (GpuConfig(count=number, type=wanted.gpu_type or type_before),)
    return NodeConfig(
        cpus=wanted.cpus if wanted.cpus is not None else cpus,
        memory=wanted.memory if wanted.memory is not None else memory,
        gpu=gpu,
        address="127.0.0.1",
        # A node says for itself whether root's jobs run: here the cluster is root's own.
        allow_root_jobs=os.geteuid() == 0,
        no_new_privileges=no_new_privileges,
    )


def differences(layout: ClusterLayout, wanted: ClusterRequest) -> tuple[str, ...]:
    """Return, in words, what was requested otherwise than it is stored; the stored is kept."""
    found: list[str] = []
    kept_of: dict[str, list[str]] = {}
    nodes = layout.nodes()
    if wanted.nodes is not None and wanted.nodes < len(nodes):
        found.append(
            f"the cluster has {len(nodes)} nodes; --nodes {wanted.nodes} does not remove any"
        )
    for node in nodes:
        stored = read_node(node)
        pairs = (
            ("cpus", wanted.cpus, stored.cpus),
            ("gpus", wanted.gpus, sum(gpu.count for gpu in stored.gpu)),
            ("gpu-type", wanted.gpu_type, stored.gpu[0].type if stored.gpu else ""),
            ("memory", _bytes(wanted.memory), _bytes(stored.memory)),
        )
        for name, requested, kept in pairs:
            if requested is not None and requested != kept:
                shown = format_size(int(kept or 0)) if name == "memory" else kept
                kept_of.setdefault(f"--{name} {shown}".rstrip(), []).append(node.name)
    for option, names in kept_of.items():
        subject, verb = ("node", "keeps its") if len(names) == 1 else ("nodes", "keep their")
        found.append(
            f"{subject} {', '.join(names)} {verb} {option}: edit "
            f"{layout.nodes_directory}/NODE/gnode.toml and repeat this command, or choose another "
            "--dir"
        )
    return tuple(found)


def few_cpus(layout: ClusterLayout, names: Sequence[str]) -> tuple[str, ...]:
    """Return a warning where nodes have fewer CPUs than GPUs: each job takes at least one."""
    for name in names:
        node = read_node(layout.node(name))
        gpus = sum(each.count for each in node.gpu)
        if 0 < node.cpus < gpus:
            cpus, jobs = counted(node.cpus, "CPU"), counted(node.cpus, "job")
            words = (
                f"each new node has {cpus} and {gpus} GPUs, so at most {jobs} can run there at a "
                f"time; for a job on each GPU start the cluster in another --dir with --cpus {gpus}"
                ", which may be more than this machine has"
            )
            return (words,)
    return ()


def _bytes(memory: str | None) -> int | None:
    return parse_size_bytes(memory) if memory else None


def check_wanted(wanted: ClusterRequest) -> None:
    """Refuse what no cluster can be.

    Raises:
        UsageError: a number out of range, or a memory that is no size.
    """
    if wanted.nodes is not None and not 1 <= wanted.nodes <= NODES_MAX:
        raise UsageError(f"--nodes {wanted.nodes}: must be from 1 to {NODES_MAX}")
    if wanted.cpus is not None and wanted.cpus < 1:
        raise UsageError(f"--cpus {wanted.cpus}: must be at least 1")
    if wanted.gpus is not None and wanted.gpus < 0:
        raise UsageError(f"--gpus {wanted.gpus}: must be at least 0")
    if wanted.memory is not None and parse_size_bytes(wanted.memory) < 1024**2:
        raise UsageError(
            f"--memory {wanted.memory}: must be at least 1mb", hint="write 4gb or 512mb"
        )
    for policy in wanted.policies:
        _check_policy(policy, wanted.policies)
    if wanted.share is not None and wanted.share not in (known := share_runtimes()):
        raise UsageError(
            f"--share: unknown runtime {wanted.share!r}",
            hint=closest(wanted.share, known) or f"valid: {', '.join(known)}",
        )


def _check_policy(policy: str, policies: tuple[str, ...]) -> None:
    """Refuse a policy that the head does not have, or could not load.

    Raises:
        UsageError: its name is unknown, two plan the same jobs, or packages are missing.
    """
    known = (*POLICIES, *TRAINING_POLICIES)
    if policy not in known:
        raise UsageError(
            f"--policy: unknown policy {policy!r}",
            hint=closest(policy, known)
            or f"for queues: {', '.join(POLICIES)}; "
            f"for training jobs: {', '.join(TRAINING_POLICIES)}",
        )
    for kind, names in (("queues", POLICIES), ("training jobs", TRAINING_POLICIES)):
        chosen = [each for each in policies if each in names]
        if len(chosen) > 1:
            raise UsageError(
                f"--policy: {' and '.join(chosen)} are both policies for {kind}", hint="name one"
            )
    missing = [name for name in ("numpy", "highspy") if find_spec(name) is None]
    if policy in ADAPTIVE_POLICIES and missing:
        raise UsageError(
            f"--policy {policy} needs {' and '.join(missing)}, which this Python does not have",
            hint=f"{sys.executable} -m pip install numpy highspy, or pip install 'gsched[sia]'",
        )


def head_daemon(layout: ClusterLayout) -> Daemon:
    """Return how the head of this cluster is run."""
    return Daemon(
        label="head",
        module="gschedd.main",
        config=layout.config,
        pid_file=layout.pid,
        log=layout.log,
    )


def node_daemon(node: NodeLayout) -> Daemon:
    """Return how a node of this cluster is run."""
    return Daemon(
        label=f"node {node.name}",
        module="gnode.main",
        config=node.config,
        pid_file=node.pid,
        log=node.log,
    )
