"""Who a node daemon is."""

import socket
import uuid
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gnode.daemon.certificates import Certificates
from gnode.daemon.heads import Heads
from gnode.daemon.identity import own_identity
from gnode.daemon.launching import LaunchRules
from gnode.daemon.neighbours import PREFIX
from gnode.daemon.peer import socket_path, trusted_uids
from gnode.daemon.sharing import Sharing
from gnode.hw.machine import own_names, read_machine
from gsched.clock import SystemClock
from gsched.config.environment import (
    HEAD_ACCOUNT,
    environment,
)
from gsched.config.tables import Config
from gsched.errors import ConfigError
from gsched.model.machine import NODE_NAME_RULE, Machine, is_node_name
from gsched.model.resources import Inventory
from gsched.pki.files import files_of
from gsched.protocol.joining import MemberRole
from gsched.version import VERSION

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIdentity:
    """Who this host is, whatever its role.

    Attributes:
        heads: where the heads' node channels are.
        certificates: for a head that is reached by TCP.
        trusted: uids whose head is obeyed on a Unix socket.
        identity: of this node, beside its name, for ever.
        machine: on which it runs.
        address: where other nodes reach this one; empty: the connection's own.
        incarnation: of this start of gnode.
        command_socket: on which users of this host run commands; empty: there is none.
        serves_always: also where the head is on this machine.
    """

    node: str
    heads: Heads
    trusted: frozenset[int]
    certificates: Certificates
    identity: str
    machine: Machine
    address: str
    boot_id: str
    incarnation: str
    version: str
    command_socket: str = ""
    serves_always: bool = False

    def fields(self) -> dict[str, Any]:
        """Return all of them, for the identity of a node daemon."""
        return {each.name: getattr(self, each.name) for each in fields(HostIdentity)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonIdentity(HostIdentity):
    """Who this node is.

    Attributes:
        elastic_socket: on which training jobs talk to this gnode.
        rules: whose jobs run here.
        sharing: how they share its GPUs.
        gpu_fence: what keeps jobs from the GPUs of others, in words.
        cpus: to which its jobs are bound; empty: they are not.
        neighbours: how names of sockets begin on which nodes of this machine find each other.
        native_supervisor: whether plain jobs, which can be here, are run by a library.
    """

    inventory: Inventory
    elastic_socket: str
    rules: LaunchRules
    sharing: Sharing
    gpu_fence: str = ""
    cpus: tuple[int, ...] = ()
    neighbours: str = PREFIX
    native_supervisor: bool = False


def host_identity(config: Config, state_dir: str, role: MemberRole = "node") -> HostIdentity:
    """Return who this host is.

    Raises:
        GschedError: its name, key, identity or head cannot be used.
    """
    node, name = config.node, node_name(config)
    files = files_of(state_dir, config.tls)
    heads = Heads(node.head, Path(state_dir, "heads"))
    if not heads.socket:
        files.check()
    return HostIdentity(
        node=name,
        identity=own_identity(state_dir),
        machine=read_machine(),
        heads=heads,
        trusted=trusted_uids(node.head_user, default=HEAD_ACCOUNT),
        certificates=Certificates(files, node=name, role=role, clock=SystemClock()),
        address=node.address,
        boot_id=read_boot_id(),
        incarnation=str(uuid.uuid4()),
        version=VERSION,
        command_socket=command_socket(config),
        serves_always=bool(node.command_socket),
    )


def command_socket(config: Config) -> str:
    """Return the path of the commands' socket on this host: where commands look for the head's."""
    path = config.node.command_socket or config.head.socket
    return "" if path == "none" else path


def socket_of_jobs(config: Config) -> str:
    """Return `Site.command_socket`: this node's own socket, unless only the head's is here."""
    hosts = {each.rpartition(":")[0].strip(" []").lower() for each in config.node.head.split(",")}
    is_here = bool(socket_path(config.node.head)) or hosts & {"localhost", *own_names()}
    return "" if is_here and not config.node.command_socket else command_socket(config)


def node_name(config: Config) -> str:
    """Return this node's name.

    Raises:
        ConfigError: this machine's name cannot be a node's.
    """
    name = config.node.name or socket.gethostname()
    if not is_node_name(name):
        raise ConfigError(
            f"the name of this machine {name!r} is not a valid node name: {NODE_NAME_RULE}",
            hint="set name in [node]",
        )
    return name


def read_boot_id() -> str:
    """Return what names this start of the machine; tests can pretend another one."""
    pretended = environment("GSCHED_TEST_BOOT_ID")
    return pretended or Path(BOOT_ID_FILE).read_text(encoding="ascii").strip()
