"""Make the configuration of a throw-away cluster, read it back, let it grow."""

import os
import secrets
import socket
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from gsched.cli.local.daemons import Daemon
from gsched.cli.local.layout import ClusterLayout, NodeLayout
from gsched.cli.local.toml import head_toml, node_toml, write_file
from gsched.config import Config, GpuConfig, HeadConfig, NodeConfig, load_config
from gsched.errors import CannotWriteError, ConfigError, UsageError
from gsched.model.units import format_size, parse_size_bytes

KEY_BYTES = 32
NODES_MAX = 256  # on one machine; more is a slip of the finger
MASTER_PORTS = 500  # each cluster of a machine gets its own range of rendezvous ports
MASTER_RANGES = 20
DEFAULT_GPU_TYPE = "declared"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the caller of ``gsched up`` asked for; None where nothing was said.

    Attributes:
        memory: of each node, as PBS writes sizes.
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    memory: str | None = None


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
            f"{layout.directory}: cannot be created: {error.strerror}",
            hint="choose another --dir",
        ) from error
    if not os.access(layout.directory, os.W_OK | os.X_OK):
        raise CannotWriteError(
            f"{layout.directory}: no permission to write there", hint="choose another --dir"
        )


def make_key(path: Path) -> bool:
    """Write a new random key, readable by its owner alone; keep one that is there.

    Returns:
        Whether a key was made.
    """
    if path.exists():
        return False
    write_file(path, secrets.token_hex(KEY_BYTES) + "\n", mode=0o600)
    return True


def new_head(layout: ClusterLayout) -> HeadConfig:
    """Return the head's configuration for a fresh cluster in ``layout``."""
    root = os.geteuid() == 0
    first = 20000 + MASTER_PORTS * (zlib.crc32(os.fsencode(layout.directory)) % MASTER_RANGES)
    return HeadConfig(
        server_name=host_name(),
        socket=str(layout.socket),
        node_port=0,
        state_dir=str(layout.directory),
        key_file=str(layout.key),
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


def pin_port(layout: ClusterLayout, port: int) -> None:
    """Make ``port`` the head's port for ever, so that it is the same after a restart."""
    config = read_head(layout)
    if config.head.node_port != port:
        head = msgspec.structs.replace(config.head, node_port=port)
        write_head(layout, msgspec.structs.replace(config, head=head))
    for node in layout.nodes():
        stored = read_node(node)
        address = node_channel(layout)
        if stored.head != address:
            write_node(node, msgspec.structs.replace(stored, head=address))


def read_node(node: NodeLayout) -> NodeConfig:
    """Return the stored configuration of a node."""
    return load_config(str(node.config)).node


def write_node(node: NodeLayout, config: NodeConfig) -> None:
    """Store the configuration of a node, and make its directory."""
    node.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(node.config, node_toml(config))


def node_channel(layout: ClusterLayout) -> str:
    """Return what the nodes dial: no other user of this machine can be at that end."""
    return f"unix:{layout.node_socket}"


def add_nodes(layout: ClusterLayout, wanted: Wanted) -> tuple[str, ...]:
    """Add nodes until there are as many as wanted; return the names of the new ones."""
    there = layout.nodes()
    count = wanted.nodes if wanted.nodes is not None else (0 if there else 1)
    template = new_node(wanted, count, read_node(there[0]) if there else None)
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
            key_file=str(layout.key),
        )
        write_node(node, config)
        names.append(node.name)
    return tuple(names)


def new_node(wanted: Wanted, count: int, like: NodeConfig | None) -> NodeConfig:
    """Return what each of ``count`` new nodes offers.

    What was not said is taken from a node that is there; without one, this machine is divided by
    the number of nodes. Several nodes do not all offer the same real GPUs: theirs are declared.
    """
    cpus, memory, gpu = 0, "", ()  # type: int, str, tuple[GpuConfig, ...]
    if like is not None:
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
    )


def differences(layout: ClusterLayout, wanted: Wanted) -> tuple[str, ...]:
    """Return, in words, what was asked for otherwise than it is stored; the stored is kept."""
    told = []
    nodes = layout.nodes()
    if wanted.nodes is not None and wanted.nodes < len(nodes):
        told.append(
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
        for name, asked, kept in pairs:
            if asked is not None and asked != kept:
                shown = format_size(int(kept or 0)) if name == "memory" else kept
                told.append(f"node {node.name} keeps its --{name} {shown}")
    return tuple(told)


def _bytes(memory: str | None) -> int | None:
    return parse_size_bytes(memory) if memory else None


def check_wanted(wanted: Wanted) -> None:
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
