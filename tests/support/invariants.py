"""What must hold of all facts together, and what of a state must survive a restart."""

from collections.abc import Sequence

from msgspec import structs

from gschedd.core.apply.jobs import apply
from gschedd.core.state.facts import AnyFact
from gschedd.core.state.state import State
from gschedd.plan.space import FreeNode
from tests.fault_world.checks import History
from tests.support.billed import wrong_bills


def check_history(facts: Sequence[AnyFact]) -> None:
    """Check that each fact may follow those before it; whoever is named may do what was done."""
    history = History({getattr(fact, "by", "") for fact in facts})
    for fact in facts:
        history.add(fact)


def check_bills(state: State, facts: Sequence[AnyFact]) -> None:
    """Check that ended attempts are billed, and that those that have started accrue."""
    assert wrong_bills(state.usage.rows.values(), facts) == []
    started = {job for job, each in state.running.items() if each.current_attempt.started_s}
    assert state.usage.running.keys() == started


def content(state: State) -> dict[str, object]:
    """Return all of a state that must survive a restart, as comparable values."""
    return {
        "jobs": dict(state.jobs),
        "nodes": {
            name: structs.replace(node, load=None, heartbeat_s=None)  # not durable
            for name, node in state.nodes.items()
        },
        "spaces": {name: _without_load(space) for name, space in state.spaces.items()},
        "counts": state.counts,
        "groups": {job_class: group.lanes for job_class, group in state.groups.items()},
        "apart": sorted(state.apart),
        "delayed": state.delayed,
        "claims": {node: sorted(jobs) for node, jobs in state.claims_on.items()},
        "running": sorted(state.running),
        "by_node": {name: sorted(jobs) for name, jobs in state.by_node.items() if jobs},
        "ports": state.ports,
        "on_probation": state.on_probation,
        "users": state.jobs_by_user,
        "jobs of users": {user: sorted(jobs) for user, jobs in state.jobs_of.items()},
        "arguments": state.argument_bytes_by_user,
        "reruns": state.reruns,
        "dependants": state.dependants,
        "arrays": {
            number: (sorted(index.made), index.waiting) for number, index in state.arrays.items()
        },
        "keys": state.keys.every(),
        "next_job": state.next_job,
        "usage": state.usage.rows,
        "accruing": state.usage.running,
    }


def _without_load(space: FreeNode) -> FreeNode:
    """Return a node's space without how busy its GPUs are, which is not durable."""
    shared = tuple(structs.replace(each, utilisation=0.0) for each in space.shared)
    return structs.replace(space, shared=shared)


def replayed(facts: list[AnyFact], like: State) -> State:
    """Return a fresh state to which all facts were applied, and nothing else."""
    state = State(like.queue_priorities)
    for fact in facts:
        apply(state, fact)
    return state
