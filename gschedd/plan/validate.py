"""The head disposes: each start of a plan is checked against the state as it is by now."""

from collections import Counter
from collections.abc import Callable

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Request, Share
from gschedd.plan.fit import NoFit, place, sum_of
from gschedd.plan.room import shortage
from gschedd.plan.snapshot import Plan, Shape, Start
from gschedd.plan.space import NodeSpace, Spaces


class Refusal(Struct, frozen=True, kw_only=True):
    """A start that was not accepted, and why."""

    start: Start
    reason: str


class Validated(Struct, frozen=True, kw_only=True):
    """What of a plan may be carried out."""

    accepted: tuple[Start, ...]
    refused: tuple[Refusal, ...]


def validate(plan: Plan, spaces: Spaces, waiting_shape: Callable[[int], Shape | None]) -> Validated:
    """Accept what is still possible, item by item, in the plan's order.

    Args:
        plan: a proposal, possibly stale or wrong.
        spaces: free resources now; not changed.
        waiting_shape: the shape of a job that may start now, else None.
    """
    work = spaces.copy()
    accepted: list[Start] = []
    refused: list[Refusal] = []
    seen: set[int] = set()
    for start in plan.starts:
        reason = _objection(start, work, waiting_shape(start.job), seen)
        if reason:
            refused.append(Refusal(start=start, reason=reason))
            continue
        work.take(start.allocation)
        seen.add(start.job)
        accepted.append(start)
    return Validated(accepted=tuple(accepted), refused=tuple(refused))


def _objection(start: Start, work: Spaces, shape: Shape | None, seen: set[int]) -> str:
    if start.job in seen:
        return f"job {start.job} is started twice in one plan"
    if shape is None:
        return f"job {start.job} is not waiting to start"
    reason = covers(shape.request, start.allocation, work)
    return f"job {start.job}: {reason}" if reason else ""


def covers(request: Request, allocation: Allocation, spaces: Spaces) -> str:
    """Return why ``allocation`` may not be given for ``request`` on ``spaces``, or "" if it may.

    This is the check of a plan made elsewhere: nothing in it is believed. What it gives must be
    free, must add up to exactly what was asked for, and the request must fit into it.
    """
    if len({share.node for share in allocation}) != len(allocation):
        return "a node stands twice in the allocation"
    if any(share.exclusive != request.exclusive for share in allocation):
        return "exclusive is not what was asked for"
    for what, given, asked in _totals(request, allocation):
        if given != asked:
            return f"{given} {what} for {asked} asked"
    for share in allocation:
        if share.node not in spaces:
            return f"node {share.node} is not known"
        reason = _share_shortage(share, spaces[share.node])
        if reason:
            return f"{share.node}: {reason}"
    given_spaces = Spaces({share.node: _only(share, spaces[share.node]) for share in allocation})
    if isinstance(place(request, given_spaces), NoFit):
        return "its places do not fit into what is given on each node"
    return ""


def _totals(request: Request, allocation: Allocation) -> list[tuple[str, object, object]]:
    """Return (what, given, asked) of everything that is counted."""
    generic: Counter[str] = Counter()
    for share in allocation:
        generic.update(dict(share.generic))
    return [
        ("CPUs", sum(share.cpus for share in allocation), request.cpus),
        ("GPUs", sum(len(share.gpu_indices) for share in allocation), request.gpus),
        ("bytes", sum(share.memory_bytes for share in allocation), request.memory_bytes),
        ("places", sum(share.slots for share in allocation), request.places),
        ("counted resources", dict(generic), dict(sum_of(request).generic)),
    ]


def _only(share: Share, space: NodeSpace) -> NodeSpace:
    """Return the node as if a share were all that is free on it."""
    owned = set(share.gpu_indices)
    return structs.replace(
        space,
        cpus=share.cpus,
        memory_bytes=share.memory_bytes,
        gpus=tuple(gpu for gpu in space.gpus if gpu.index in owned),
        generic=share.generic,
    )


def _share_shortage(share: Share, space: NodeSpace) -> str:
    """Return what of a share is not free on its node, or the empty string."""
    if share.slots < 1 or min(share.cpus, share.memory_bytes) < 0:
        return "less than nothing is given"
    if any(count < 0 for _, count in share.generic):
        return "less than nothing is given"
    if len(set(share.gpu_indices)) != len(share.gpu_indices):
        return "a GPU is given twice"
    chunk = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
    reason = shortage(chunk, space, exclusive=share.exclusive)
    if reason:
        return f"{reason} not free"
    free = {gpu.index for gpu in space.gpus}
    missing = [index for index in share.gpu_indices if index not in free]
    return f"GPU {missing[0]} not free" if missing else ""
