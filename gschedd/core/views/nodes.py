"""The line of a node as users see it."""

from gsched.model.outputs import FILES_FEATURE
from gsched.model.states import NodeState, PowerState
from gsched.protocol import node_rows
from gschedd.core.nodes.admission import SHOWN, refused_words
from gschedd.core.nodes.live import newest_load
from gschedd.core.nodes.probation import recent_resumptions
from gschedd.core.nodes.windows import window_words
from gschedd.core.state.records import Node
from gschedd.core.state.state import State
from gschedd.core.views.details import idle_gpus, shared_gpus


def node_row(node: Node, state: State, now_s: float) -> node_rows.NodeRow:
    """Return the line of a node."""
    inventory = node.inventory
    space = state.spaces[node.name]
    load, load_s = newest_load(state, node)
    return node_rows.NodeRow(
        name=node.name,
        state=node.state.value,
        cpus=inventory.cpus,
        cpus_free=max(0, space.cpus),
        memory_bytes=inventory.memory_bytes,
        memory_free_bytes=max(0, space.memory_bytes),
        gpus=len(inventory.gpus),
        gpus_free=len(space.gpus),
        shared_gpus=shared_gpus(state, space),
        sharing=node.sharing,
        cpu_binding=state.volatile.cpu_bindings.get(node.name, ""),
        gpu_fence=state.volatile.gpu_fences.get(node.name, ""),
        health=state.volatile.health.get(node.name, ()),
        config=state.volatile.node_configs.get(node.name),
        gpu_use=state.volatile.gpu_use.get(node.name),
        gpus_idle=tuple(idle_gpus(state, node.name)),
        gpu_tokens=state.volatile.gpu_sharing.get(node.name),
        gpu_types=tuple(sorted({gpu.type for gpu in inventory.gpus if gpu.type})),
        features=tuple(each for each in inventory.features if each != FILES_FEATURE),
        generic=dict(inventory.generic),
        generic_free=dict(space.generic),
        drained=node.drained or any(window.begun for window in node.windows),
        vacating=node.vacating,
        problem=node.problem,
        windows=node.windows,
        power="" if node.power.state is PowerState.ON else node.power.state.value,
        reason=_node_reason(node),
        reason_s=_reason_s(node),
        reason_by=node.drained_by,
        address=node.address,
        version=node.version,
        since_s=node.since_s,
        heartbeat_s=node.heartbeat_s,
        load=load,
        load_s=load_s,
        identity=node.identity[:SHOWN],
        refused=refused_words(state, node.name, now_s),
        jobs=tuple(sorted(state.by_node.get(node.name, {}))),
        faults=node.faults,
        automatic=node.probation.drained,
        probe_due_s=node.probation.due_s if node.probation.drained else 0.0,
        probes_failed=node.probation.failed,
        resumptions=recent_resumptions(node.probation, now_s),
    )


def _node_reason(node: Node) -> str:
    """Return why a node accepts no jobs, or will not soon."""
    gone = "not connected" if node.state is not NodeState.UP else node.problem
    gone = node.power.reason or gone
    return "; ".join(filter(None, (node.reason or gone, window_words(node))))


def _reason_s(node: Node) -> float:
    """Return since when a node accepts no jobs, seconds since the epoch; 0: it does, or unknown."""
    begun = (window.from_s for window in node.windows if window.begun)
    if node.drained_s:
        return node.drained_s
    if node.state is not NodeState.UP:
        return node.since_s
    return min(begun, default=node.problem_s)
