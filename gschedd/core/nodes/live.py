"""What nodes say of the present moment. No facts: it is not durable, and comes again.

A use is kept for jobs that run, of the nodes on which their attempts are, and nothing else: so it
is as much as there are parts of running attempts, whatever nodes say.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import MAX_TOKEN_ROWS, GpuSharing
from gsched.model.health import MAX_CHECKS, MAX_TEXT
from gsched.model.resources import LiveUse, Load
from gsched.protocol.node import Register
from gsched.protocol.uses import Heartbeat, Uses
from gschedd.core.state.ledger import avoided_gpus, refresh_space
from gschedd.core.state.records import Attempt, Node
from gschedd.core.state.state import State
from gschedd.core.state.transient import LiveParts

#: Characters that are kept of a node's own word on why it takes no new jobs.
MAX_PROBLEM = 200


class LiveTotal(Struct, frozen=True, kw_only=True):
    """What an attempt uses on all its nodes that have told; ``at_s``: the oldest of them."""

    use: LiveUse
    at_s: float


def note_condition(state: State, node: str, message: Register | Heartbeat) -> None:
    """Note how a node binds jobs to CPUs, keeps them from GPUs and shares these, and who is there.

    What keeps jobs from GPUs does not change while gnode runs: it is told once.
    """
    if node not in state.nodes:
        return
    state.volatile.cpu_bindings[node] = message.cpu_binding[:MAX_PROBLEM]
    if isinstance(message, Register):
        state.volatile.gpu_fences[node] = message.gpu_fence[:MAX_PROBLEM]
    state.volatile.health[node] = tuple(
        structs.replace(each, text=each.text[:MAX_TEXT]) for each in message.health[:MAX_CHECKS]
    )
    if message.config is not None:
        state.volatile.node_configs[node] = message.config.bounded
    note_sharing(state, node, message.gpu_sharing)
    note_gpu_use(state, node, message.gpu_use)


def note_uses(state: State, node: str, message: Uses, now_s: float) -> None:
    """Note what attempts on a node use at the moment, and how busy it is."""
    if node not in state.nodes:
        return
    if message.load is not None:
        state.volatile.loads[node] = (message.load, now_s)
    for job_id, number, use in message.uses:
        job = state.running.get(job_id)
        attempt = job.attempt if job is not None else None
        if attempt is None or attempt.number != number or node not in attempt.parts:
            continue
        known = state.volatile.live.get(job_id)
        if known is None or known.attempt != number:
            known = state.volatile.live[job_id] = LiveParts(number)
        known.parts[node] = (use, now_s)


def uses_of(state: State, job: int, attempt: Attempt | None) -> dict[str, tuple[LiveUse, float]]:
    """Return what an attempt uses, and since when that is known, by node."""
    known = state.volatile.live.get(job)
    if known is None or attempt is None or known.attempt != attempt.number:
        return {}
    return known.parts


def total_of(parts: Iterable[tuple[LiveUse, float]]) -> LiveTotal | None:
    """Return the sum of what an attempt uses on its nodes, None if nothing is known."""
    known = list(parts)
    if not known:
        return None
    uses = [use for use, _ in known]
    return LiveTotal(
        use=LiveUse(
            cpu_s=sum(use.cpu_s for use in uses),
            cpu_cores=sum(use.cpu_cores for use in uses),
            memory_bytes=sum(use.memory_bytes for use in uses),
            gpus=sum(use.gpus for use in uses),
            gpu_memory_bytes=sum(use.gpu_memory_bytes for use in uses),
        ),
        at_s=min(at_s for _, at_s in known),
    )


def newest_load(state: State, node: Node) -> tuple[Load | None, float | None]:
    """Return the newest load that a node has told, and when."""
    newest = state.volatile.loads.get(node.name)
    if newest is not None and (node.heartbeat_s is None or newest[1] >= node.heartbeat_s):
        return newest
    return node.load, node.heartbeat_s


def note_gpu_use(state: State, node: str, use: GpuUse | None) -> None:
    """Note who is on a node's GPUs beside its jobs: none is started there, if so wished."""
    there = state.nodes.get(node)
    if there is None:
        return
    before = avoided_gpus(state, node)
    if use is None:
        state.volatile.gpu_use.pop(node, None)
    else:
        state.volatile.gpu_use[node] = use
    if avoided_gpus(state, node) != before:
        refresh_space(state, there)
        state.dirty.nodes.add(node)
        state.dirty.any = True


def note_sharing(state: State, node: str, sharing: GpuSharing | None) -> None:
    """Note how jobs share GPUs on a node, of those that have an attempt there."""
    if node not in state.nodes:
        return
    if sharing is None:
        state.volatile.gpu_sharing.pop(node, None)
        return
    here = state.by_node.get(node, {})
    jobs = tuple(each for each in sharing.jobs[:MAX_TOKEN_ROWS] if each.job in here)
    state.volatile.gpu_sharing[node] = structs.replace(
        sharing, gpus=sharing.gpus[:MAX_TOKEN_ROWS], jobs=jobs
    )
