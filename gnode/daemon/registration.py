"""What a gnode says of itself when it registers with the head."""

from typing import Any

from gnode.core.effects import SendRegister
from gnode.daemon.parts import DaemonIdentity, HostIdentity
from gsched.model.outputs import FILES_FEATURE
from gsched.model.resources import Inventory, Load
from gsched.protocol.node import Register


def registration(own: HostIdentity, address: str, **of_node: Any) -> Register:
    """Return the registration of a host: of a login host, or with what a node adds.

    Args:
        own: who it is.
        address: of its end of the connection.
        of_node: further fields of `Register`.
    """
    fields: dict[str, Any] = {
        "inventory": Inventory(cpus=0, memory_bytes=0, features=(FILES_FEATURE,)),
        "attempts": (),
        "load": Load(),
        **of_node,
    }
    return Register(
        identity=own.identity,
        machine=own.machine,
        boot_id=own.boot_id,
        incarnation=own.incarnation,
        address=own.address or address,
        gnode_version=own.version,
        packs=True,
        **fields,
    )


def node_registration(
    own: DaemonIdentity,
    effect: SendRegister,
    address: str,
    *,
    inventory: Inventory,
    load: Load,
    sharing: str,
) -> Register:
    """Return the registration of a node.

    Args:
        own: who it is.
        effect: what its agent says.
        address: of its end of the connection.
        inventory: what it offers.
        load: how busy it is.
        sharing: the runtime by which jobs share GPUs.
    """
    mark = effect.mark
    return registration(
        own,
        address,
        inventory=inventory,
        attempts=effect.attempts,
        load=load,
        highest_epoch=mark.epoch,
        highest_job=mark.highest_job,
        epoch_id=mark.epoch_id,
        seq=mark.seq,
        next_job=mark.next_job,
        probes=effect.probes,
        problem=effect.problem,
        health=effect.health,
        config=effect.config,
        sharing=sharing,
        cpu_binding=effect.cpu_binding,
        gpu_fence=own.gpu_fence,
        gpu_sharing=effect.gpu_sharing,
        gpu_use=effect.gpu_use,
    )
