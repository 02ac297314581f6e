"""Who owns what on which node: the free space of every node, kept in step with the jobs.

A job that moves has two places: the one that it has, until its attempt has ended, and the one that
it goes to. What it will have there is kept for it: of each node the others may use what neither
those that own something now nor those that will then need.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from gsched.model.resources import Share
from gsched.model.states import NodeState, PowerState
from gschedd.core.state.limit_use import recount
from gschedd.core.state.records import Attempt, Job, MigrationTarget, Node, RoomClaim
from gschedd.core.state.state import State
from gschedd.plan.space import FreeNode, give, kept_back, take
from gschedd.plan.validate import has_room

#: Over which the utilisation of GPUs is averaged, seconds.
UTILISATION_S: Final = 60.0


def own(state: State, job: Job, attempt: Attempt) -> None:
    """Let an attempt have its allocation."""
    state.running[job.id] = job
    if attempt.reservation:
        state.reserved_jobs.setdefault(attempt.reservation, set()).add(job.id)
    recount(state, job)
    state.note_moved(job.id)
    if attempt.master_port:
        state.ports.add(attempt.master_port)
    for name, part in attempt.parts.items():
        state.by_node.setdefault(name, {})[job.id] = job
        if name in state.spaces:
            if _needs_refresh(state, name, part.share):
                refresh_space(state, state.nodes[name])
            else:
                state.spaces[name] = take(state.spaces[name], part.share)


def disown(state: State, job: Job, attempt: Attempt) -> None:
    """Let an attempt give its allocation back."""
    del state.running[job.id]
    if attempt.reservation:
        state.reserved_jobs[attempt.reservation].discard(job.id)
    recount(state, job)
    state.volatile.live.pop(job.id, None)
    state.volatile.passages.pop(job.id, None)
    state.note_moved(job.id)
    state.ports.discard(attempt.master_port)
    for name, part in attempt.parts.items():
        del state.by_node[name][job.id]
        if name in state.spaces:
            if _needs_refresh(state, name, part.share):
                refresh_space(state, state.nodes[name])
            else:
                state.spaces[name] = give(state.spaces[name], part.share)


def _needs_refresh(state: State, node: str, share: Share) -> bool:
    """Return whether take and give do not suffice for the space of a node: refresh it then."""
    return bool(
        node in state.targets_on
        or node in state.claims_on
        or share.gpu_shares
        or (share.gpu_indices and avoided_gpus(state, node))
    )


def avoided_gpus(state: State, node: str) -> frozenset[int]:
    """Return the GPUs of a node that processes of no job use, and that are left to them."""
    use = state.volatile.gpu_use.get(node)
    return use.avoided if use is not None else frozenset()


def reserve(state: State, job: Job) -> None:
    """Keep the place that a moving job goes to."""
    state.targets[job.id] = job
    recount(state, job)
    for share in job.target.allocation:
        state.targets_on.setdefault(share.node, {})[job.id] = job
    for name in {*(share.node for share in job.target.allocation), *_nodes_of(job)}:
        if name in state.nodes:
            refresh_space(state, state.nodes[name])


def release(state: State, job: Job) -> MigrationTarget:
    """Give up the place that a moving job goes to, and return it: it moves no more."""
    move = job.target
    job.move = None  # before any space is made anew: what it has, it does not leave any more
    del state.targets[job.id]
    recount(state, job)
    for share in move.allocation:
        del state.targets_on[share.node][job.id]
        if not state.targets_on[share.node]:
            del state.targets_on[share.node]
    for name in {*(share.node for share in move.allocation), *_nodes_of(job)}:
        if name in state.nodes:
            refresh_space(state, state.nodes[name])
            state.dirty.nodes.add(name)
    state.dirty.any = True
    return move


def keep_claim(state: State, job: Job) -> None:
    """Keep the allocation that others vacate for a waiting job."""
    assert job.claim is not None, "it has one"
    state.claims[job.id] = job
    for share in job.claim.allocation:
        state.claims_on.setdefault(share.node, {})[job.id] = job
    _claim_changed(state, job, job.claim)


def end_claim(state: State, job: Job) -> None:
    """Keep it no more."""
    claim = job.claim
    assert claim is not None, "it has one"
    job.claim = None
    del state.claims[job.id]
    for share in claim.allocation:
        del state.claims_on[share.node][job.id]
        if not state.claims_on[share.node]:
            del state.claims_on[share.node]
    _claim_changed(state, job, claim)
    state.dirty.mark_nodes(share.node for share in claim.allocation)


def _claim_changed(state: State, job: Job, claim: RoomClaim) -> None:
    recount(state, job)
    for share in claim.allocation:
        if share.node in state.nodes:
            refresh_space(state, state.nodes[share.node])


def _nodes_of(job: Job) -> Iterable[str]:
    return job.attempt.parts if job.attempt is not None else ()


def crowded_out(state: State, nodes: Iterable[str]) -> list[Job]:
    """Return the moving jobs that cannot all have their places beside those that stay on nodes.

    Where several want the same, the one that was submitted first has it.
    """
    found: dict[int, Job] = {}
    for name in nodes:
        if name not in state.targets_on or name not in state.nodes:
            continue
        space = owned_space(state, state.nodes[name])
        for share in going(state, name):
            space = give(space, share)
        for number in sorted(state.targets_on[name]):
            job = state.targets_on[name][number]
            share = next(each for each in job.target.allocation if each.node == name)
            if has_room(share, space):
                space = take(space, share)
            else:
                found[number] = job
    return list(found.values())


def refresh_space(state: State, node: Node) -> None:
    """Make the node's free space anew from what it has, what is owned and what is kept there."""
    state.spaces[node.name] = kept_space(state, node.name, owned_space(state, node))


def kept_space(state: State, node: str, space: FreeNode) -> FreeNode:
    """Return what others may use of what nobody owns on a node now, ``space``.

    What is prepared there uses its memory already, whoever leaves later.
    """
    to_come: list[Share] = []
    for job in state.targets_on.get(node, {}).values():
        for share in job.target.allocation:
            if share.node != node:
                continue
            if job.target.prepare:
                used_bytes, share = share.memory_bytes, structs.replace(share, memory_bytes=0)  # noqa: PLW2901 # the rest of it
                space = structs.replace(space, memory_bytes=space.memory_bytes - used_bytes)
            to_come.append(share)
    to_come += claimed(state, node)
    return kept_back(space, leaving(state, node), to_come) if to_come else space


def claimed(state: State, node: str) -> list[Share]:
    """Return what is kept on a node for waiting jobs."""
    return [
        share
        for job in state.claims_on.get(node, {}).values()
        if job.claim is not None
        for share in job.claim.allocation
        if share.node == node
    ]


def owned_space(state: State, node: Node) -> FreeNode:
    """Return what nobody owns on a node now."""
    inventory = node.inventory
    space = FreeNode(
        name=node.name,
        cpus=inventory.cpus,
        memory_bytes=inventory.memory_bytes,
        gpus=inventory.gpus,
        generic=inventory.generic,
        total_cpus=inventory.cpus,
        total_memory_bytes=inventory.memory_bytes,
        total_gpus=len(inventory.gpus),
        total_generic=inventory.generic,
        all_gpus=inventory.gpus,
        features=frozenset(
            {*inventory.features, node.name, *(gpu.type for gpu in inventory.gpus if gpu.type)}
        ),
        open=(
            (node.state is NodeState.UP or node.power.state is not PowerState.ON)
            and not node.drained
            and not node.problem
        ),
        sharing=state.sharing if node.sharing else None,
    )
    for job in state.by_node.get(node.name, {}).values():
        space = take(space, job.current_attempt.parts[node.name].share)
    if avoided := avoided_gpus(state, node.name):
        space = structs.replace(
            space,
            gpus=tuple(gpu for gpu in space.gpus if gpu.index not in avoided),
            shared=tuple(each for each in space.shared if each.gpu.index not in avoided),
        )
    return _with_utilisation(state, node, space) if space.shared else space


def _with_utilisation(state: State, node: Node, space: FreeNode) -> FreeNode:
    """Return a node's space with the utilisation of its shared GPUs: reported, and assumed.

    A job that has come within the minute before the report, or since, is in it in part at most.
    """
    reported_s = node.heartbeat_s if node.heartbeat_s is not None else 0.0
    reported = node.load.gpu_minute_percent if node.load is not None else ()
    young: Counter[int] = Counter()
    for job in state.by_node.get(node.name, {}).values():
        if job.current_attempt.assigned_s > reported_s - UTILISATION_S:
            young.update(
                share.index for share in job.current_attempt.parts[node.name].share.gpu_shares
            )
    shared = []
    for each in space.shared:
        index = each.gpu.index
        measured = reported[index] / 100 if index < len(reported) else 0.0
        assumed = young[index] * state.sharing.utilisation_assumed
        shared.append(structs.replace(each, utilisation=measured + assumed))
    return structs.replace(space, shared=tuple(shared))


def coming(state: State, node: str) -> list[Share]:
    """Return what moving jobs, and those for which others give way, will own on a node."""
    return claimed(state, node) + [
        share
        for job in state.targets_on.get(node, {}).values()
        if job.move is not None
        for share in job.move.allocation
        if share.node == node
    ]


def leaving(state: State, node: str) -> list[Share]:
    """Return what jobs still own on a node that move, or give way to a waiting job."""
    return [
        job.attempt.parts[node].share
        for job in state.by_node.get(node, {}).values()
        if job.attempt is not None and (job.move is not None or gives_way(job))
    ]


def gives_way(job: Job) -> bool:
    """Return whether the attempt of a job is being stopped for a waiting job."""
    attempt, preempted = job.attempt, job.preempted
    if attempt is None or preempted is None or attempt.stop is None:
        return False
    return preempted.attempt == attempt.number and preempted.job_for > 0


def going(state: State, node: str) -> list[Share]:
    """Return what is owned on a node by those that will be gone: they move, or are being stopped.

    What moves is to leave for those that come there, so it is theirs already; what is being stopped
    leaves for anybody.
    """
    return [
        job.attempt.parts[node].share
        for job in state.by_node.get(node, {}).values()
        if job.attempt is not None and (job.move is not None or job.attempt.stop is not None)
    ]
