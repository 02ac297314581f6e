"""The head disposes: each start of a plan is checked against the state as it is by now."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from gsched.model.ids import short_job_id
from gsched.model.resources import Allocation, Chunk, GpuShareRequest, Request, Share
from gschedd.plan.amounts import amounts_there
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place, sum_of
from gschedd.plan.limits import AtLimit, LimitRoom
from gschedd.plan.room import shortage
from gschedd.plan.sharing import SharedGpu, share_of_gpu, untouched
from gschedd.plan.snapshot import JobClass, Move, Plan, Start
from gschedd.plan.space import FreeNode, Spaces, kept_back
from gschedd.plan.training import gpu_count


class RefusedStart(Struct, frozen=True, kw_only=True):
    """A start that was not accepted, and why."""

    start: Start
    reason: str


class Validated(Struct, frozen=True, kw_only=True):
    """What of a plan may be carried out; ``objection`` is why none of its moves may."""

    accepted: tuple[Start, ...]
    refused: tuple[RefusedStart, ...]
    moves: tuple[Move, ...] = ()
    objection: str = ""


class Movable(Struct, frozen=True, kw_only=True):
    """A job that runs, and may be moved."""

    request: Request
    allocation: Allocation


def validate(
    plan: Plan,
    spaces: Spaces,
    waiting_class: Callable[[int], JobClass | None],
    movable: Callable[[int], Movable | None] = lambda _: None,
    window: Callable[[Start, Spaces], str] = lambda _start, _free: "",
    limits: LimitRoom | None = None,
) -> Validated:
    """Accept what is still possible: starts item by item, in the plan's order; moves all or none.

    Args:
        plan: a proposal, possibly stale or wrong.
        spaces: free resources now; not changed.
        waiting_class: the class of a job that may start now, else None.
        movable: what runs and may be moved, by its job, else None.
        window: why a start on what is free would run into a window, or does not keep to its
            reservation, else the empty string.
        limits: what they leave; None: there are none.
    """
    work = spaces.copy()
    objection = _move_all(plan.moves, work, movable)
    room = None if limits is None else limits.copy()
    if room is not None and not objection:
        objection = _moved_within(room, plan.moves, spaces)
    if objection:
        work = spaces.copy()
        room = None if limits is None else limits.copy()
    accepted: list[Start] = []
    refused: list[RefusedStart] = []
    seen: set[int] = set()
    for start in plan.starts:
        job_class = waiting_class(start.job)
        reason = _objection(start, work, job_class, seen) or window(start, work)
        if room is not None and job_class is not None and not reason:
            reason = start_within(room, job_class, start.allocation, spaces) or ""
        if reason:
            refused.append(RefusedStart(start=start, reason=reason))
            continue
        work.take(start.allocation)
        seen.add(start.job)
        accepted.append(start)
    return Validated(
        accepted=tuple(accepted),
        refused=tuple(refused),
        moves=() if objection else plan.moves,
        objection=objection,
    )


def start_within(
    room: LimitRoom, job_class: JobClass, allocation: Allocation, nodes: Spaces
) -> AtLimit | None:
    """Take what a start counts under limits, or return the limit that it would break."""
    counted = amounts_there(allocation, nodes, job_class.walltime_s)
    limit = room.lack(job_class.party, counted)
    if limit is None:
        room.take(job_class.party, counted)
    return limit


def _moved_within(room: LimitRoom, moves: Sequence[Move], nodes: Spaces) -> str:
    """Take what moving jobs will count, or return the limit that they would break."""
    for move in moves:
        limit = room.grown(move.job, move.allocation, nodes)
        if limit is not None:
            return f"job {short_job_id(move.job)}: {limit}"
        room.move(move.job, move.allocation, nodes)
    return ""


def _move_all(moves: Sequence[Move], work: Spaces, movable: Callable[[int], Movable | None]) -> str:
    """Take what moving jobs will have and what they have now; return why they may not, or "".

    What they leave may be what others of them take, and is for nobody else before they have left:
    so what is kept from others is the more of what is owned now and what will be.
    """
    if not moves:
        return ""
    leaving: dict[int, Movable] = {}
    for move in moves:
        job = movable(move.job)
        if job is None or move.job in leaving:
            return f"job {short_job_id(move.job)} cannot be moved"
        leaving[move.job] = job
    reason = _crowded(moves, leaving, work)
    if reason:
        return reason
    given: dict[str, list[Share]] = {}
    coming: dict[str, list[Share]] = {}
    for move in moves:
        for share in leaving[move.job].allocation:
            given.setdefault(share.node, []).append(share)
        for share in move.allocation:
            coming.setdefault(share.node, []).append(share)
    for node, shares in coming.items():
        work.put(kept_back(work[node], given.get(node, ()), shares))
    return ""


def _crowded(moves: Sequence[Move], leaving: Mapping[int, Movable], work: Spaces) -> str:
    """Return why not all have room when all have left, or the empty string."""
    after = work.copy()
    for job in leaving.values():
        after.give(job.allocation)
    for move in moves:
        if not move.allocation:
            continue
        reason = covers(leaving[move.job].request, move.allocation, after)
        if reason:
            return f"job {short_job_id(move.job)}: {reason}"
        after.take(move.allocation)
    return ""


def _objection(start: Start, work: Spaces, job_class: JobClass | None, seen: set[int]) -> str:
    if start.job in seen:
        return f"job {short_job_id(start.job)} is started twice in one plan"
    if job_class is None:
        return f"job {short_job_id(start.job)} is not waiting to start"
    reason = covers(job_class.request, start.allocation, work)
    return f"job {short_job_id(start.job)}: {reason}" if reason else ""


def covers(request: Request, allocation: Allocation, spaces: Spaces) -> str:
    """Return why ``allocation`` may not be given for ``request`` on ``spaces``, or "" if it may.

    This is the check of a plan made elsewhere: nothing in it is believed. What it gives must be
    free, must add up to exactly what was requested, and the request must fit into it.
    """
    places = sum(share.slots for share in allocation)
    if is_elastic(request) and request.places <= places <= request.places_max:
        request = at_count(request, places)
    if _is_just_it(request, allocation):  # nearly always, and then no sums are needed
        return _one_place_shortage(request.chunks[0], allocation[0], spaces)
    reason = _misstated(request, allocation)
    if reason:
        return reason
    for share in allocation:
        if share.node not in spaces:
            return f"node {share.node} is not known"
        if not _is_share_requested(request.gpu_share, share, spaces[share.node]):
            return "its share of a GPU differs from the request"
        reason = _share_shortage(share, spaces[share.node])
        if reason:
            return f"{share.node}: {reason}"
    given_spaces = Spaces(
        {share.node: limited_to(share, spaces[share.node]) for share in allocation}
    )
    if isinstance(place(request, given_spaces), NoFit):
        return "its chunks do not fit into its allocation on each node"
    return ""


def _misstated(request: Request, allocation: Allocation) -> str:
    """Return in what an allocation is not what was requested, or the empty string."""
    if len({share.node for share in allocation}) != len(allocation):
        return "a node stands twice in the allocation"
    if any(share.exclusive != request.exclusive for share in allocation):
        return "exclusive use differs from the request"
    for what, given, requested in _totals(request, allocation):
        if given != requested:
            return f"{given} {what} for {requested} requested"
    return ""


def _is_share_requested(requested: GpuShareRequest | None, share: Share, space: FreeNode) -> bool:
    """Return whether what is given of shared GPUs on a node is just what was requested."""
    if requested is None:
        return not share.gpu_shares
    gpus = {gpu.index: gpu for gpu in space.all_gpus}
    return len(share.gpu_shares) == 1 and all(
        each.index in gpus and each == share_of_gpu(requested, gpus[each.index])
        for each in share.gpu_shares
    )


def _one_place_shortage(chunk: Chunk, share: Share, spaces: Spaces) -> str:
    """Return why a share may not be given for one place that requests just that much."""
    if share.node not in spaces:
        return f"node {share.node} is not known"
    space = spaces[share.node]
    reason = _share_shortage(share, space)
    if reason:
        return f"{share.node}: {reason}"
    if not chunk.features and not chunk.gpu_type:
        return ""
    given = limited_to(share, space)
    return shortage(chunk, given) and "its chunks do not fit into its allocation on each node"


def _is_just_it(request: Request, allocation: Allocation) -> bool:
    """Return whether one place was requested, and just that is given."""
    if len(allocation) != 1 or len(request.chunks) != 1:
        return False
    share, chunk = allocation[0], request.chunks[0]
    return (
        share.slots == chunk.count == 1
        and share.cpus == chunk.cpus
        and len(share.gpu_indices) == chunk.gpus
        and share.memory_bytes == chunk.memory_bytes
        and share.generic == chunk.generic
        and share.exclusive == request.exclusive
        and not (share.gpu_shares or chunk.gpu_share)
    )


def _totals(request: Request, allocation: Allocation) -> list[tuple[str, object, object]]:
    """Return (what, given, asked) of everything that is counted."""
    generic: Counter[str] = Counter()
    for share in allocation:
        generic.update(dict(share.generic))
    return [
        ("CPUs", sum(share.cpus for share in allocation), request.cpus),
        ("GPUs", gpu_count(allocation), request.gpus),
        ("bytes", sum(share.memory_bytes for share in allocation), request.memory_bytes),
        ("places", sum(share.slots for share in allocation), request.places),
        ("consumable resources", dict(generic), dict(sum_of(request).generic)),
    ]


def limited_to(share: Share, space: FreeNode) -> FreeNode:
    """Return the node as if a share were all that is free on it."""
    owned = set(share.gpu_indices)
    return structs.replace(
        space,
        cpus=share.cpus,
        memory_bytes=share.memory_bytes,
        gpus=tuple(gpu for gpu in space.gpus if gpu.index in owned),
        shared=_only_shared(share, space) if share.gpu_shares else (),
        generic=share.generic,
    )


def _only_shared(share: Share, space: FreeNode) -> tuple[SharedGpu, ...]:
    """Return the GPUs of which a share has a part as if that part were all that is left."""
    gpus = {gpu.index: gpu for gpu in space.all_gpus}
    return tuple(
        structs.replace(
            untouched(gpus[each.index]), percent=each.percent, memory_bytes=each.memory_bytes
        )
        for each in share.gpu_shares
    )


def has_room(share: Share, space: FreeNode) -> bool:
    """Return whether all of a share is free on its node."""
    return not _share_shortage(share, space)


def _share_shortage(share: Share, space: FreeNode) -> str:
    """Return what of a share is not free on its node, or the empty string."""
    if share.slots < 1 or min(share.cpus, share.memory_bytes) < 0:
        return "less than nothing is given"
    if share.generic and any(count < 0 for _, count in share.generic):
        return "less than nothing is given"
    owned = share.gpu_indices
    if owned and len(set(owned)) != len(owned):
        return "a GPU is given twice"
    chunk = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
    reason = shortage(chunk, space, exclusive=share.exclusive)
    if reason:
        return f"{reason} not free"
    if share.gpu_shares and (reason := _gpu_shares_shortage(share, space)):
        return reason
    if not owned:
        return ""
    free = {gpu.index for gpu in space.gpus}
    missing = [index for index in owned if index not in free]
    return f"GPU {missing[0]} not free" if missing else ""


def _gpu_shares_shortage(share: Share, space: FreeNode) -> str:
    """Return which of a share's parts of GPUs is not free on its node, or the empty string.

    How busy a GPU is does not count here: that changes between a plan and its check.
    """
    if space.sharing is None:
        return "its GPUs cannot be shared"
    left = {gpu.index: untouched(gpu) for gpu in space.gpus if gpu.index not in share.gpu_indices}
    left.update((each.gpu.index, each) for each in space.shared)
    for each in share.gpu_shares:
        shared = left.get(each.index)
        if shared is None or not shared.holds(each):
            return f"{each.percent} % of GPU {each.index} not free"
        left[each.index] = shared.taken(each)
    return ""
