"""THE feasibility function: whether and where a request fits. Policies and validation both use it.

Placement is best fit: the node that keeps the least behind takes the chunk, so that whole nodes
stay free for whole-node jobs, and jobs without GPUs stay off GPU nodes while others can take them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gsched.model.resources import Allocation, Chunk, Gpu, Request, Share
from gsched.model.states import Placement
from gsched.model.units import format_size
from gschedd.plan.space import NodeSpace, Spaces


class NoFit(Struct, frozen=True, kw_only=True):
    """A request does not fit; ``text`` says why in words, naming the term and the best node."""

    text: str


def shortage(chunk: Chunk, space: NodeSpace, *, exclusive: bool = False) -> str:
    """Return why one place of ``chunk`` does not fit on a node, or the empty string if it does."""
    if not space.open:
        return "closed"
    if space.exclusive or (exclusive and space.owners):
        return "exclusive"
    if space.cpus < chunk.cpus:
        return "cpus"
    if space.memory_bytes < chunk.memory_bytes:
        return "memory"
    if chunk.gpus and len(_usable_gpus(chunk, space)) < chunk.gpus:
        return "gpus"
    if chunk.features and not space.features.issuperset(chunk.features):
        return "features"
    if chunk.generic:
        free = dict(space.generic)
        for name, count in chunk.generic:
            if free.get(name, 0) < count:
                return name
    return ""


def _usable_gpus(chunk: Chunk, space: NodeSpace) -> tuple[Gpu, ...]:
    if not chunk.gpu_type:
        return space.gpus
    return tuple(gpu for gpu in space.gpus if gpu.type == chunk.gpu_type)


def place(request: Request, spaces: Spaces) -> Allocation | NoFit:
    """Return an allocation for the whole request, or why there is none.

    The order of the shares is that of the places in the request: rank order. Ties between nodes go
    to the lower name, so equal spaces always give equal allocations.
    """
    if len(spaces) == 0:
        return NoFit(text="no node has registered yet")
    if request.placement is Placement.PACK:
        return _place_packed(request, spaces)
    if len(request.chunks) == 1 and request.chunks[0].count == 1:
        return _place_one(request, spaces)
    if request.placement is Placement.FREE:
        return _place_free(request, spaces)
    return _place_scattered(request, spaces)


def _place_one(request: Request, spaces: Spaces) -> Allocation | NoFit:
    chunk = request.chunks[0]
    node = _best(chunk, spaces, exclusive=request.exclusive)
    if node is None:
        return NoFit(text=explain(request, spaces))
    return (_share(chunk, node, exclusive=request.exclusive),)


def _best(chunk: Chunk, spaces: Iterable[NodeSpace], *, exclusive: bool) -> NodeSpace | None:
    best: NodeSpace | None = None
    best_score: tuple[bool, int, int, int, str] | None = None
    for space in spaces:
        if shortage(chunk, space, exclusive=exclusive):
            continue
        score = _leftover(chunk, space)
        if best_score is None or score < best_score:
            best, best_score = space, score
    return best


def _leftover(chunk: Chunk, space: NodeSpace) -> tuple[bool, int, int, int, str]:
    return (
        not chunk.gpus and space.total_gpus > 0,
        len(space.gpus) - chunk.gpus,
        space.cpus - chunk.cpus,
        space.memory_bytes - chunk.memory_bytes,
        space.name,
    )


def _share(chunk: Chunk, space: NodeSpace, *, exclusive: bool) -> Share:
    indices = tuple(sorted(gpu.index for gpu in _usable_gpus(chunk, space)))[: chunk.gpus]
    return Share(
        node=space.name,
        cpus=chunk.cpus,
        gpu_indices=indices,
        memory_bytes=chunk.memory_bytes,
        generic=chunk.generic,
        exclusive=exclusive,
    )


def _places(request: Request) -> list[Chunk]:
    return [chunk for chunk in request.chunks for _ in range(chunk.count)]


def _demanding_first(places: Sequence[Chunk]) -> list[int]:
    return sorted(
        range(len(places)),
        key=lambda i: (
            -len(places[i].features),
            -bool(places[i].gpu_type),
            -places[i].gpus,
            -places[i].cpus,
            -places[i].memory_bytes,
            i,
        ),
    )


def _place_packed(request: Request, spaces: Spaces) -> Allocation | NoFit:
    places = _places(request)
    generic: Counter[str] = Counter()
    for chunk in places:
        generic.update(dict(chunk.generic))
    whole = Chunk(
        cpus=request.cpus,
        gpus=request.gpus,
        gpu_type=max(chunk.gpu_type for chunk in places),
        memory_bytes=request.memory_bytes,
        features=tuple(sorted({feature for chunk in places for feature in chunk.features})),
        generic=tuple(sorted(generic.items())),
    )
    node = _best(whole, spaces, exclusive=request.exclusive)
    if node is None:
        return NoFit(text=explain(Request(chunks=(whole,), exclusive=request.exclusive), spaces))
    share = _share(whole, node, exclusive=request.exclusive)
    return (_with_slots(share, len(places)),)


def _with_slots(share: Share, slots: int) -> Share:
    return Share(
        node=share.node,
        cpus=share.cpus,
        slots=slots,
        gpu_indices=share.gpu_indices,
        memory_bytes=share.memory_bytes,
        generic=share.generic,
        exclusive=share.exclusive,
    )


def _place_free(request: Request, spaces: Spaces) -> Allocation | NoFit:
    places = _places(request)
    work = spaces.copy()
    by_node: dict[str, list[Share]] = {}
    for index in _demanding_first(places):
        used = [work[name] for name in by_node]
        node = _best(places[index], used, exclusive=False) or _best(
            places[index], work, exclusive=request.exclusive
        )
        if node is None:
            return NoFit(text=explain(request, spaces))
        share = _share(places[index], node, exclusive=request.exclusive)
        by_node.setdefault(node.name, []).append(share)
        # exclusiveness is against others: the next place of this job may join
        work.take([_share(places[index], node, exclusive=False)])
    return tuple(_merged(shares) for shares in by_node.values())


def _merged(shares: list[Share]) -> Share:
    generic: Counter[str] = Counter()
    for share in shares:
        generic.update(dict(share.generic))
    return Share(
        node=shares[0].node,
        cpus=sum(share.cpus for share in shares),
        slots=len(shares),
        gpu_indices=tuple(sorted(i for share in shares for i in share.gpu_indices)),
        memory_bytes=sum(share.memory_bytes for share in shares),
        generic=tuple(sorted(generic.items())),
        exclusive=shares[0].exclusive,
    )


def _place_scattered(request: Request, spaces: Spaces) -> Allocation | NoFit:
    places = _places(request)
    if len(places) > len(spaces):
        return NoFit(text=explain(request, spaces))
    chosen = _greedy(request, places, spaces)
    if chosen is None and len(request.chunks) > 1:
        chosen = _matching(request, places, spaces)
    if chosen is None:
        return NoFit(text=explain(request, spaces))
    return tuple(
        _share(chunk, spaces[node], exclusive=request.exclusive)
        for chunk, node in zip(places, chosen, strict=True)
    )


def _greedy(request: Request, places: list[Chunk], spaces: Spaces) -> list[str] | None:
    """Place chunk by chunk, most demanding first; all places of one chunk in one ranking."""
    chosen: dict[int, str] = {}
    used: set[str] = set()
    ranked: dict[Chunk, list[str]] = {}
    for index in _demanding_first(places):
        chunk = places[index]
        if chunk not in ranked:
            fitting = [s for s in spaces if not shortage(chunk, s, exclusive=request.exclusive)]
            fitting.sort(key=lambda space, chunk=chunk: _leftover(chunk, space), reverse=True)  # type: ignore[misc] # mypy cannot type a default in a lambda
            ranked[chunk] = [space.name for space in fitting]
        names = ranked[chunk]
        while names and names[-1] in used:
            names.pop()
        if not names:
            return None
        chosen[index] = names.pop()
        used.add(chosen[index])
    return [chosen[index] for index in range(len(places))]


def _matching(request: Request, places: list[Chunk], spaces: Spaces) -> list[str] | None:
    """Return a perfect matching of places to nodes by augmenting paths, or None if there is none.

    Greedy can fail where chunks differ: a small one took the only node that a large one could use.
    """
    options = {
        chunk: [s.name for s in spaces if not shortage(chunk, s, exclusive=request.exclusive)]
        for chunk in dict.fromkeys(places)
    }
    holder: dict[str, int] = {}
    for start in range(len(places)):
        if not _augment(start, places, options, holder):
            return None
    by_place = {place_index: node for node, place_index in holder.items()}
    return [by_place[index] for index in range(len(places))]


def _augment(
    start: int, places: list[Chunk], options: dict[Chunk, list[str]], holder: dict[str, int]
) -> bool:
    parent: dict[str, int] = {}
    frontier = [start]
    while frontier:
        index = frontier.pop()
        for node in options[places[index]]:
            if node in parent:
                continue
            parent[node] = index
            if node not in holder:
                _flip(node, parent, holder, start)
                return True
            frontier.append(holder[node])
    return False


def _flip(node: str, parent: dict[str, int], holder: dict[str, int], start: int) -> None:
    while True:
        index = parent[node]
        previous = next((name for name, place in holder.items() if place == index), None)
        holder[node] = index
        if index == start:
            return
        assert previous is not None, "an inner place of an augmenting path has a node"
        node = previous


def covers(request: Request, allocation: Allocation, spaces: Spaces) -> str:
    """Return why ``allocation`` may not be given for ``request`` on ``spaces``, or "" if it may.

    This is the check of a plan made elsewhere: nothing in it is believed.
    """
    if len({share.node for share in allocation}) != len(allocation):
        return "a node stands twice in the allocation"
    if sum(share.cpus for share in allocation) != request.cpus:
        return f"{sum(share.cpus for share in allocation)} CPUs for {request.cpus} asked"
    if sum(len(share.gpu_indices) for share in allocation) != request.gpus:
        return "not the number of GPUs asked for"
    if sum(share.slots for share in allocation) != request.places:
        return "not the number of places asked for"
    for share in allocation:
        if share.node not in spaces:
            return f"node {share.node} is not known"
        reason = share_shortage(share, spaces[share.node])
        if reason:
            return f"{share.node}: {reason}"
    return ""


def share_shortage(share: Share, space: NodeSpace) -> str:
    """Return what of a share is not free on its node, or the empty string."""
    chunk = Chunk(cpus=share.cpus, memory_bytes=share.memory_bytes, generic=share.generic)
    reason = shortage(chunk, space, exclusive=share.exclusive)
    if reason:
        return f"{reason} not free"
    free = {gpu.index for gpu in space.gpus}
    missing = [index for index in share.gpu_indices if index not in free]
    return f"GPU {missing[0]} not free" if missing else ""


def explain(request: Request, spaces: Spaces) -> str:
    """Return in words why the request does not fit: the term that fails, and the best node."""
    for chunk in request.chunks:
        text = _explain_chunk(chunk, request, spaces)
        if text:
            return text
    return f"needs {request.places} nodes at once, and its places do not fit side by side"


def _explain_chunk(chunk: Chunk, request: Request, spaces: Spaces) -> str:
    needed = chunk.count if request.placement is Placement.SCATTER else 1
    fitting, reasons = 0, Counter[str]()
    for space in spaces:
        reason = shortage(chunk, space, exclusive=request.exclusive)
        reasons[reason] += 1
        fitting += not reason
    if fitting >= needed:
        return ""
    del reasons[""]
    what = describe_chunk(chunk)
    if not reasons:
        return f"needs {needed} nodes with {what}, there are {len(spaces)}"
    others = ", ".join(
        f"{count} {_REASON_WORDS.get(reason, f'without enough {reason}')}"
        for reason, count in reasons.most_common(3)
    )
    best = best_node(chunk, spaces)
    most = f"; most free: {best}" if best else ""
    head = f"needs {what}" if needed == 1 else f"needs {needed} nodes with {what}"
    return f"{head}: {fitting} of {len(spaces)} nodes can take it now ({others}){most}"


_REASON_WORDS = {
    "closed": "drained or unreachable",
    "exclusive": "in use while it wants a node alone, or taken alone",
    "cpus": "without enough free CPUs",
    "memory": "without enough free memory",
    "gpus": "without enough free GPUs",
    "features": "without the named feature or host",
}


def describe_chunk(chunk: Chunk) -> str:
    """Return ``2 CPUs, 1 GPU (a100), 4gb memory``."""
    words = [f"{chunk.cpus} CPU" + "s" * (chunk.cpus != 1)]
    if chunk.gpus:
        kind = f" ({chunk.gpu_type})" if chunk.gpu_type else ""
        words.append(f"{chunk.gpus} GPU" + "s" * (chunk.gpus != 1) + kind)
    if chunk.memory_bytes:
        words.append(f"{format_size(chunk.memory_bytes)} memory")
    words.extend(f"{count} {name}" for name, count in chunk.generic)
    words.extend(chunk.features)
    return ", ".join(words)


def best_node(chunk: Chunk, spaces: Iterable[NodeSpace]) -> str:
    """Return the node that comes closest to ``chunk``, in words: ``n1 with 3 CPUs, 2 GPUs``."""
    candidates = [space for space in spaces if space.open]
    if not candidates:
        return ""
    best = max(
        candidates,
        key=lambda s: (min(len(_usable_gpus(chunk, s)), chunk.gpus), s.cpus, s.memory_bytes),
    )
    whole = Chunk(
        cpus=best.cpus,
        gpus=len(_usable_gpus(chunk, best)) if chunk.gpus else 0,
        memory_bytes=best.memory_bytes if chunk.memory_bytes else 0,
        generic=tuple((name, dict(best.generic).get(name, 0)) for name, _ in chunk.generic),
    )
    return f"{best.name} with {describe_chunk(whole)}"
