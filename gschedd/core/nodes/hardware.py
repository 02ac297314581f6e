"""GPUs that a node has lost, or numbers in another order, since it registered last.

GPUs are assigned by their index. Only GPUs that a driver has told of, with a UUID, are compared;
what a configuration declares is as its administrator says.
"""

from gsched.model.resources import Inventory, percent_held
from gschedd.core.state.records import Node
from gschedd.core.state.state import State


def gpus_changed(state: State, node: Node, now: Inventory) -> str:
    """Return why the node must not take work before somebody has looked; empty: no reason.

    Args:
        node: as it was until now.
        now: what it has now.
    """
    before = {gpu.uuid: gpu.index for gpu in node.inventory.gpus if gpu.uuid}
    present = {gpu.uuid: gpu.index for gpu in now.gpus if gpu.uuid}
    lost = [gpu for gpu in node.inventory.gpus if gpu.uuid and gpu.uuid not in present]
    if lost:
        named = ", ".join(" ".join(filter(None, (str(gpu.index), gpu.type))) for gpu in lost)
        some = f"GPU {named} is" if len(lost) == 1 else f"GPUs {named} are"
        return (
            f"{some} missing: {lost[0].uuid} was there at the last registration; "
            "check the GPUs, then resume the node"
        )
    moved = [uuid for uuid, index in before.items() if present[uuid] != index]
    if moved and _gpus_are_owned(state, node):
        return (
            "the driver numbers the GPUs in another order than when the running jobs got theirs; "
            "resume the node when these jobs have ended"
        )
    return ""


def _gpus_are_owned(state: State, node: Node) -> bool:
    jobs = state.by_node.get(node.name, {}).values()
    return any(
        percent_held([share])
        for job in jobs
        if job.attempt is not None
        for share in job.attempt.allocation
        if share.node == node.name
    )
