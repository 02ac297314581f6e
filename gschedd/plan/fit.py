"""THE feasibility function: whether and where a request fits. Policies and validation both use it.

Placement is best fit unless a policy ranks nodes otherwise: the node that keeps the least behind
takes the chunk, so that whole nodes stay free for whole-node jobs, and jobs without GPUs stay off
GPU nodes while others can take them. Whether a request fits never depends on the ranking, but for
large requests of different chunks, where the search is bounded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct, structs

from gsched.model.resources import Allocation, Chunk, Request, Share
from gsched.model.states import Placement
from gschedd.plan.ranked import OrderedRank
from gschedd.plan.rests import with_rests
from gschedd.plan.room import (
    Rank,
    best_space,
    least_left,
    leftover,
    merged,
    opened_gpu,
    room,
    share_of,
    shared_devices,
    shortage,
)
from gschedd.plan.sharing import choose
from gschedd.plan.space import FreeNode, Spaces, take
from gschedd.plan.words import Lack

#: Of so many nodes with room or fewer, a policy ranks each; else it looks for the best of them in
#: an order of its own, in which many that have none may come before those.
FEW: Final = 8
#: Steps of the search for a free placement of different chunks: some milliseconds at most.
MAX_SEARCH_STEPS: Final = 5_000
#: Nodes that it looks at in all, and places that it holds at once: it calls itself for each.
MAX_SEARCH_LOOKS: Final = 20_000
MAX_SEARCH_DEPTH: Final = 300


class NoFit(Struct, frozen=True, kw_only=True):
    """A request does not fit; ``text`` says why in words, naming the term and the best node."""

    reason: Lack | str

    @property
    def text(self) -> str:
        """Return the words."""
        return str(self.reason)


def place(request: Request, spaces: Spaces, rank: Rank = leftover) -> Allocation | NoFit:
    """Return an allocation for the whole request, or why there is none.

    Args:
        request: what is requested.
        spaces: free resources; not changed.
        rank: which nodes to prefer.

    The order of the shares is that of the places in the request: rank order. Ties between nodes go
    to the lower name, so equal spaces always give equal allocations.
    """
    if len(spaces) == 0:
        return NoFit(reason="no node has registered yet")
    if request.gpu_share is not None:
        return _place_share(request, spaces, rank)
    if request.placement is Placement.PACK:
        return _place_packed(request, spaces, rank)
    if len(request.chunks) == 1 and request.chunks[0].count == 1:
        return _place_one(request, spaces, rank)
    if request.placement is Placement.FREE:
        return _place_free(request, spaces, rank)
    return _place_scattered(request, spaces, rank)


def may_help(request: Request, space: FreeNode) -> bool:
    """Return whether a request that did not fit may do so since this node has got more room.

    False is sure: then it goes on not fitting. True is only a hint.
    """
    chunks = (sum_of(request),) if request.placement is Placement.PACK else request.chunks
    for chunk in chunks:  # noqa: SIM110 - asked of every waiting request, again and again
        if not shortage(chunk, space, exclusive=request.exclusive):
            return True
    return False


def _best(chunk: Chunk, spaces: Spaces, rank: Rank, *, exclusive: bool) -> FreeNode | None:
    """Return the best of all nodes that can take a place of a chunk, or None."""
    if rank is leftover:
        return next(least_left(chunk, spaces, exclusive=exclusive), None)
    if isinstance(rank, OrderedRank):
        few = list(islice(least_left(chunk, spaces, exclusive=exclusive), FEW + 1))
        if len(few) > FEW:
            return rank.best(chunk, spaces, exclusive=exclusive)
        if len(few) <= 1:
            return few[0] if few else None
        return min(few, key=lambda space: rank(chunk, space))
    return best_space(chunk, spaces, exclusive=exclusive, rank=rank)


def _fitting(chunk: Chunk, spaces: Spaces, rank: Rank, *, exclusive: bool) -> Iterator[FreeNode]:
    """Yield the nodes that can take a place of a chunk, best first; no more than are requested."""
    by_room = least_left(chunk, spaces, exclusive=exclusive)
    if rank is leftover:
        return by_room
    if isinstance(rank, OrderedRank):
        few = list(islice(by_room, FEW + 1))
        if len(few) > FEW:
            return rank.fitting(chunk, spaces, exclusive=exclusive)
        few.sort(key=lambda space: rank(chunk, space))
        return iter(few)
    found = [space for space in spaces if not shortage(chunk, space, exclusive=exclusive)]
    found.sort(key=lambda space: rank(chunk, space))
    return iter(found)


def _place_one(request: Request, spaces: Spaces, rank: Rank) -> Allocation | NoFit:
    chunk = request.chunks[0]
    node = _best(chunk, spaces, rank, exclusive=request.exclusive)
    if node is None:
        return NoFit(reason=Lack(request, spaces))
    return (share_of(chunk, node, exclusive=request.exclusive),)


def _place_share(request: Request, spaces: Spaces, rank: Rank) -> Allocation | NoFit:
    """Place a job that shares a GPU: on one that is shared already, else on a free one.

    Algorithm 1 chooses among all GPUs that are shared on nodes with room for the rest. A free GPU
    is that of the node which the policy prefers for a job with a whole one.
    """
    chunk, wanted = request.chunks[0], request.chunks[0].gpu_share
    if wanted is None or request.places != 1:
        return NoFit(reason="a share of a GPU is for one chunk only")
    able = [s for s in spaces if s.shared and not shortage(chunk, s, exclusive=request.exclusive)]
    rules = next((space.sharing for space in able if space.sharing is not None), None)
    if rules is not None:
        devices = (device for space in able for device in shared_devices(chunk, space))
        joined = choose(wanted, devices, rules)
        if joined is not None:
            return (share_of(chunk, spaces[joined.node], exclusive=request.exclusive),)
    whole = structs.replace(chunk, gpus=1, gpu_share=None)
    for space in _fitting(whole, spaces, rank, exclusive=request.exclusive):
        if opened_gpu(chunk, space) is not None:
            return (share_of(chunk, space, exclusive=request.exclusive),)
    return NoFit(reason=Lack(request, spaces))


def _demanding_first(chunks: Sequence[Chunk]) -> list[int]:
    """Return in which order to place chunks.

    Those that name a GPU type come first, so that what takes any GPU does not take theirs.
    """
    return sorted(
        range(len(chunks)),
        key=lambda i: (
            -bool(chunks[i].gpu_type),
            -len(chunks[i].features),
            -chunks[i].gpus,
            -chunks[i].cpus,
            -chunks[i].memory_bytes,
            i,
        ),
    )


def _place_packed(request: Request, spaces: Spaces, rank: Rank) -> Allocation | NoFit:
    whole = sum_of(request)
    for space in _fitting(whole, spaces, rank, exclusive=request.exclusive):
        shares = _fill(request, space)
        if shares:
            return (merged(shares, exclusive=request.exclusive),)
    one = Request(chunks=(whole,), exclusive=request.exclusive)
    return NoFit(reason=Lack(one, spaces, requested=request))


def sum_of(request: Request) -> Chunk:
    """Return all places of a request as one; with a GPU type if all that have GPUs name that."""
    generic: Counter[str] = Counter()
    for chunk in request.chunks:
        generic.update({name: chunk.count * count for name, count in chunk.generic})
    types = {chunk.gpu_type for chunk in request.chunks if chunk.gpus}
    return Chunk(
        cpus=request.cpus,
        gpus=request.gpus,
        gpu_type=types.pop() if len(types) == 1 else "",
        memory_bytes=request.memory_bytes,
        features=tuple(sorted({word for chunk in request.chunks for word in chunk.features})),
        generic=tuple(sorted(generic.items())),
        gpu_share=request.gpu_share,
    )


def _fill(request: Request, space: FreeNode) -> list[Share]:
    """Return shares for all places on one node, or none if they do not all fit."""
    shares: list[Share] = []
    for index in _demanding_first(request.chunks):
        chunk = request.chunks[index]
        if shortage(chunk, space) or room(chunk, space) < chunk.count:
            return []
        shares.append(share_of(chunk, space, exclusive=False, copies=chunk.count))
        space = take(space, shares[-1])
    return shares


def _place_free(request: Request, spaces: Spaces, rank: Rank) -> Allocation | NoFit:
    by_node = _pour(request, spaces, rank)
    if by_node is None and len(request.chunks) > 1:
        by_node = _Search(request, spaces).run()
    if by_node is None:
        return NoFit(reason=Lack(request, spaces))
    return tuple(merged(shares, exclusive=request.exclusive) for shares in by_node.values())


def _pour(request: Request, spaces: Spaces, rank: Rank) -> dict[str, list[Share]] | None:
    """Fill node after node, most demanding chunks first; nodes that are used already come first.

    For one chunk that always finds what there is; for several it may miss it.
    """
    work = spaces.copy()
    by_node: dict[str, list[Share]] = {}
    for index in _demanding_first(request.chunks):
        chunk = request.chunks[index]
        left = chunk.count
        while left:
            used = [work[name] for name in by_node]
            # exclusiveness is against others: a further place of this job may join
            node = best_space(chunk, used, exclusive=False, rank=rank) or _best(
                chunk, work, rank, exclusive=request.exclusive
            )
            if node is None:
                return None
            copies = min(left, room(chunk, node))
            share = share_of(chunk, node, exclusive=False, copies=copies)
            by_node.setdefault(node.name, []).append(share)
            work.take([share])
            left -= copies
    return by_node


class _Search:
    """Depth-first search for a free placement of different chunks; lives only inside `place`.

    That is bin packing, so it is bounded: small requests are decided exactly, and a large one of
    different chunks, for which `_pour` found nothing, may wait although it could just be squeezed
    in.
    """

    def __init__(self, request: Request, spaces: Spaces) -> None:
        self.chunks = [request.chunks[index] for index in _demanding_first(request.chunks)]
        self.nodes = [
            space
            for space in sorted(spaces, key=lambda space: space.name)
            if any(not shortage(c, space, exclusive=request.exclusive) for c in self.chunks)
        ]
        self.shares: list[list[Share]] = [[] for _ in self.nodes]
        self.steps = 0
        self.looks = 0

    def run(self) -> dict[str, list[Share]] | None:
        """Return shares by node, or None if none were found."""
        if len(self.chunks) > MAX_SEARCH_DEPTH or not self._put(
            0, self.chunks[0].count, 0, depth=1
        ):
            return None
        pairs = zip(self.nodes, self.shares, strict=True)
        return {space.name: shares for space, shares in pairs if shares}

    def _put(self, index: int, left: int, first: int, *, depth: int) -> bool:
        """Place what is left of a chunk on the nodes from ``first`` on, then the other chunks."""
        if not left:
            index, first = index + 1, 0
            if index == len(self.chunks):
                return True
            left = self.chunks[index].count
        if depth > MAX_SEARCH_DEPTH:
            return False
        chunk = self.chunks[index]
        for number in range(first, len(self.nodes)):
            self.looks += 1
            if self.looks > MAX_SEARCH_LOOKS:
                return False
            space = self.nodes[number]
            copies = 0 if shortage(chunk, space) else min(left, room(chunk, space))
            while copies and self.steps < MAX_SEARCH_STEPS:
                self.steps += 1
                share = share_of(chunk, space, exclusive=False, copies=copies)
                self.nodes[number] = take(space, share)
                self.shares[number].append(share)
                if self._put(index, left - copies, number + 1, depth=depth + 1):
                    return True
                self.shares[number].pop()
                self.nodes[number] = space
                copies -= 1
        return False


def _place_scattered(request: Request, spaces: Spaces, rank: Rank) -> Allocation | NoFit:
    places = [chunk for chunk in request.chunks for _ in range(chunk.count)]
    if len(places) > len(spaces):
        return NoFit(reason=Lack(request, spaces))
    chosen = _greedy(request, places, spaces, rank)
    if chosen is None and len(request.chunks) > 1:
        chosen = _matching(request, places, spaces, rank)
    if chosen is None:
        return NoFit(reason=Lack(request, spaces))
    return tuple(
        share_of(chunk, spaces[node], exclusive=request.exclusive)
        for chunk, node in with_rests(zip(places, chosen, strict=True))
    )


def _greedy(request: Request, places: list[Chunk], spaces: Spaces, rank: Rank) -> list[str] | None:
    """Place chunk by chunk, most demanding first; all places of one chunk in one ranking."""
    chosen: dict[int, str] = {}
    used: set[str] = set()
    ranked: dict[Chunk, list[str]] = {}
    for index in _demanding_first(places):
        chunk = places[index]
        if chunk not in ranked:
            enough = islice(_fitting(chunk, spaces, rank, exclusive=request.exclusive), len(places))
            ranked[chunk] = [space.name for space in enough][::-1]
        names = ranked[chunk]
        while names and names[-1] in used:
            names.pop()
        if not names:
            return None
        chosen[index] = names.pop()
        used.add(chosen[index])
    return [chosen[index] for index in range(len(places))]


def _matching(
    request: Request, places: list[Chunk], spaces: Spaces, rank: Rank
) -> list[str] | None:
    """Return a perfect matching of places to nodes by augmenting paths, or None if there is none.

    Greedy can fail where chunks differ: a small one took the only node that a large one could use.
    """
    options = {
        chunk: [s.name for s in _fitting(chunk, spaces, rank, exclusive=request.exclusive)]
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
