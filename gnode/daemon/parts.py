"""Who a node daemon is."""

from dataclasses import dataclass

from gnode.daemon.launching import LaunchRules
from gnode.daemon.neighbours import PREFIX
from gnode.daemon.sharing import Sharing
from gsched.model.machine import Machine
from gsched.model.resources import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonIdentity:
    """Who this node is.

    Attributes:
        head: the head's node channel, ``host:port`` or ``unix:/path``.
        trusted: uids whose head is obeyed on a Unix socket.
        identity: of this node, beside its name, for ever.
        machine: on which it runs.
        address: where other nodes reach this one; empty: the connection's own.
        elastic_socket: on which training jobs talk to this gnode.
        incarnation: of this start of gnode.
        rules: whose jobs run here.
        sharing: how they share its GPUs.
        gpu_fence: what keeps jobs from the GPUs of others, in words.
        cpus: to which its jobs are bound; empty: they are not.
        command_socket: on which users of this host run commands; empty: there is none.
        serves_always: also where the head is on this machine.
        neighbours: how names of sockets begin on which nodes of this machine find each other.
    """

    node: str
    head: str
    trusted: frozenset[int]
    key: bytes
    identity: str
    machine: Machine
    address: str
    boot_id: str
    incarnation: str
    version: str
    inventory: Inventory
    elastic_socket: str
    rules: LaunchRules
    sharing: Sharing
    gpu_fence: str = ""
    cpus: tuple[int, ...] = ()
    command_socket: str = ""
    serves_always: bool = False
    neighbours: str = PREFIX
