"""The part of `gschedd.core.apply` for nodes."""

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from gsched.model.machine import Machine
from gsched.model.states import NodeState, PowerState
from gsched.model.window import NodeWindow
from gschedd.core.state import facts as f
from gschedd.core.state.ledger import refresh_space
from gschedd.core.state.limit_use import recount
from gschedd.core.state.records import Node, NodePower, Probation
from gschedd.core.state.state import State
from gschedd.core.state.transitions import next_node_state

#: How far job ids jump when the database is found to be an old copy: no id is given out twice.
SAFE_ID_JUMP: Final = 1000
#: Resumptions without an operator that are remembered of a node.
MAX_KEPT: Final = 16


def registered(state: State, fact: f.NodeRegistered) -> None:
    """A node is here, with what it has."""
    node = state.nodes.get(fact.node)
    changed = node is None or node.inventory != fact.inventory or node.sharing != fact.sharing
    if node is None:
        node = Node(name=fact.node, state=NodeState.UP, inventory=fact.inventory)
        state.nodes[node.name] = node
        state.unstored.removed_nodes.discard(node.name)
    else:
        node.state = next_node_state(node.state, fact, NodeState.UP)
    state.damaged_nodes.discard(fact.node)
    if changed:
        state.caches.forget_hardware()
    _identify(state, node, fact.identity, fact.machine)
    node.inventory, node.boot_id, node.incarnation = fact.inventory, fact.boot_id, fact.incarnation
    node.address, node.version, node.since_s = fact.address, fact.version, fact.at_s
    _set_problem(node, fact.problem, fact.at_s)
    node.load, node.heartbeat_s = fact.load, fact.at_s
    _clear(node)
    if node.power.state in {PowerState.POWERED_DOWN, PowerState.POWERING_UP}:
        _set_power(state, node, NodePower())
    node.probes, node.sharing = fact.probes, fact.sharing
    if node.probation.drained and node.probation.due_s:  # it may have been mended meanwhile
        _watch(state, node, structs.replace(node.probation, due_s=fact.at_s, failed=0))
    else:
        _watch(state, node, structs.replace(node.probation, due_s=0.0))
    _changed(state, node)
    if changed:
        for jobs in (state.by_node, state.targets_on):
            for job in jobs.get(node.name, {}).values():
                recount(state, job)


def problem_changed(state: State, fact: f.NodeProblemChanged) -> None:
    """A node has said that it takes no new work, or that it does again."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    _set_problem(node, fact.problem, fact.at_s)
    _changed(state, node)


def _set_problem(node: Node, problem: str, at_s: float) -> None:
    """Set why a node takes no new work, and since when."""
    if problem != node.problem:
        node.problem, node.problem_s = problem, at_s if problem else 0.0


def disconnected(state: State, fact: f.NodeDisconnected) -> None:
    """The connection to a node is gone."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, NodeState.UNREACHABLE)
    node.since_s = fact.at_s
    _changed(state, node)


def drained(state: State, fact: f.NodeDrained) -> None:
    """A node takes no new work."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    if not node.drained or node.reason != fact.reason:
        node.drained_s, node.drained_by = fact.at_s, fact.by
    node.drained, node.vacating, node.reason = True, fact.migrate, fact.reason
    before = node.probation
    if fact.automatic:
        after = structs.replace(
            before,
            drained=True,
            exhausted=fact.exhausted,
            due_s=fact.due_s,
            request=before.request + 1,  # an answer that is under way comes too late
            failed=0,
        )
    else:
        after = Probation(request=before.request + 1)
    _watch(state, node, after)
    if not state.vacating:
        state.volatile.turns.clear()
    (state.vacating.add if fact.migrate else state.vacating.discard)(node.name)
    _changed(state, node)


def resumed(state: State, fact: f.NodeResumed) -> None:
    """A node takes new work again."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    node.drained, node.vacating, node.reason = False, False, ""
    node.drained_s, node.drained_by = 0.0, ""
    _clear(node)
    before = node.probation
    resumed_s = (*before.resumed_s, fact.at_s)[-MAX_KEPT:] if fact.automatic else ()
    _watch(
        state,
        node,
        Probation(request=before.request + 1, passed_s=before.passed_s, resumed_s=resumed_s),
    )
    state.vacating.discard(node.name)
    _changed(state, node)


def _identify(state: State, node: Node, identity: str, machine: Machine) -> None:
    """Note whose name it is; empty: nobody's."""
    if state.names_of.get(node.identity) == node.name:
        del state.names_of[node.identity]
    node.identity, node.machine = identity, machine
    if identity:
        state.names_of[identity] = node.name


def window_added(state: State, fact: f.NodeWindowAdded) -> None:
    """No job is to run on a node in a window of time."""
    node = state.nodes[fact.node]
    windows = sorted((*node.windows, fact.window), key=lambda window: window.from_s)
    node.window_number = max(node.window_number, fact.window.number)
    _set_windows(state, node, fact, windows)


def window_begun(state: State, fact: f.NodeWindowBegun) -> None:
    """The time of a window has come."""
    node = state.nodes[fact.node]
    windows = [
        structs.replace(each, begun=True) if each.number == fact.number else each
        for each in node.windows
    ]
    _set_windows(state, node, fact, windows)


def window_ended(state: State, fact: f.NodeWindowEnded) -> None:
    """A window is over, or was cancelled."""
    node = state.nodes[fact.node]
    left = [each for each in node.windows if each.number != fact.number]
    _set_windows(state, node, fact, left)


def _set_windows(state: State, node: Node, fact: f.NodeFact, windows: Iterable[NodeWindow]) -> None:
    node.state = next_node_state(node.state, fact, node.state)
    node.windows = tuple(windows)
    state.windowed.put(node.name, node.windows, node.window_number)
    _changed(state, node)


def power_changed(state: State, fact: f.NodePowerChanged) -> None:
    """A node is to be powered down or up, is off, or counts as on."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    _set_power(
        state,
        node,
        NodePower(state=fact.power, due_s=fact.due_s, reason=fact.reason)
        if fact.power is not PowerState.ON
        else NodePower(),
    )
    _changed(state, node)


def _set_power(state: State, node: Node, power: NodePower) -> None:
    node.power = power
    (state.powered.discard if power.state is PowerState.ON else state.powered.add)(node.name)


def _clear(node: Node) -> None:
    """Forget what a node was suspected of."""
    node.faults, node.fault_uids, node.fault_s, node.fault_message = 0, (), 0.0, ""


def removed(state: State, fact: f.NodeRemoved) -> None:
    """A node is forgotten."""
    node = state.nodes[fact.node]
    next_node_state(node.state, fact, node.state)
    del state.nodes[fact.node]
    if fact.node in state.spaces:
        del state.spaces[fact.node]
    state.by_node.pop(fact.node, None)
    state.targets_on.pop(fact.node, None)
    state.vacating.discard(fact.node)
    state.dirty.nodes.discard(fact.node)
    state.on_probation.discard(fact.node)
    state.windowed.put(fact.node, ())
    _identify(state, node, "", node.machine)
    state.powered.discard(fact.node)
    state.volatile.rivals.pop(fact.node, None)
    state.volatile.cpu_bindings.pop(fact.node, None)
    state.volatile.gpu_fences.pop(fact.node, None)
    state.volatile.loads.pop(fact.node, None)
    state.volatile.gpu_sharing.pop(fact.node, None)
    state.volatile.gpu_use.pop(fact.node, None)
    state.volatile.health.pop(fact.node, None)
    state.volatile.node_configs.pop(fact.node, None)
    state.unstored.nodes.pop(fact.node, None)
    state.unstored.removed_nodes.add(fact.node)
    state.caches.forget_hardware()
    state.volatile.reservations_changed |= bool(state.reservations)
    state.dirty.mark_all()


def replaced(state: State, fact: f.NodeReplaced) -> None:
    """A node is another installation or machine from now on; nothing of the old one is proof."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    _identify(state, node, fact.identity, fact.machine)
    node.boot_id = node.incarnation = ""
    state.volatile.rivals.pop(fact.node, None)
    state.unstored.nodes[node.name] = node


def faulted(state: State, fact: f.NodeFaulted) -> None:
    """A node could not start an attempt, or did again."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    node.faults, node.fault_uids = fact.faults, fact.uids
    node.fault_s, node.fault_message = fact.at_s, fact.message
    state.unstored.nodes[node.name] = node


def probe_requested(state: State, fact: f.NodeProbeRequested) -> None:
    """A node is to find out whether it can start jobs."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    before = node.probation
    _watch(state, node, structs.replace(before, request=fact.request, due_s=fact.due_s))
    state.unstored.nodes[node.name] = node


def probed(state: State, fact: f.NodeProbed) -> None:
    """A node has found out whether it can start jobs."""
    node = state.nodes[fact.node]
    node.state = next_node_state(node.state, fact, node.state)
    before = node.probation
    if fact.passed:
        after = structs.replace(before, due_s=fact.due_s, failed=0, passed_s=fact.at_s)
    else:
        after = structs.replace(before, due_s=fact.due_s, failed=before.failed + 1)
    _watch(state, node, after)
    state.unstored.nodes[node.name] = node


def _watch(state: State, node: Node, probation: Probation) -> None:
    """Note how far a node is trusted now."""
    node.probation = probation
    (state.on_probation.add if probation.due_s else state.on_probation.discard)(node.name)


def _changed(state: State, node: Node) -> None:
    """Note that a node can take other work than before."""
    state.volatile.reservations_changed |= bool(state.reservations)
    refresh_space(state, node)
    state.dirty.mark_all()
    state.unstored.nodes[node.name] = node
