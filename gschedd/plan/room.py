"""What one node has room for: the one notion of "it fits there", and what it would take."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gsched.model.resources import Chunk, Gpu, GpuShare, Share
from gschedd.plan.sharing import Device, choose, share_of_gpu, untouched
from gschedd.plan.space import FreeNode, Spaces

RankKey = tuple[float | str, ...]
#: By what nodes are ranked for a chunk, best first. The last item is the node's name, so that no
#: two nodes rank alike; all keys of one rank are comparable.
Rank = Callable[[Chunk, FreeNode], RankKey]


def shortage(chunk: Chunk, space: FreeNode, *, exclusive: bool = False) -> str:
    """Return why one place of ``chunk`` does not fit on a node, or the empty string if it does."""
    if not space.open:
        return "closed"
    if space.exclusive or (exclusive and space.owners):
        return "exclusive"
    if space.cpus < chunk.cpus:
        return "cpus"
    if space.memory_bytes < chunk.memory_bytes:
        return "memory"
    if chunk.gpus and len(usable_gpus(chunk, space)) < chunk.gpus:
        return "gpus"
    if chunk.features and not space.features.issuperset(chunk.features):
        return "features"
    if chunk.generic or chunk.gpu_share:
        return _special_shortage(chunk, space)
    return ""


def _special_shortage(chunk: Chunk, space: FreeNode) -> str:
    """Return what few chunks ask for and a node lacks, or the empty string."""
    if chunk.gpu_share is not None and (lack := _share_lack(chunk, space)):
        return lack
    if chunk.generic:
        free = dict(space.generic)
        for name, count in chunk.generic:
            if free.get(name, 0) < count:
                return name
    return ""


def usable_gpus(chunk: Chunk, space: FreeNode) -> tuple[Gpu, ...]:
    """Return the free GPUs of a node that the chunk may have."""
    if not chunk.gpu_type:
        return space.gpus
    return tuple(gpu for gpu in space.gpus if gpu.type == chunk.gpu_type)


def _share_lack(chunk: Chunk, space: FreeNode) -> str:
    """Return why a node has no GPU that the job can share, or the empty string if it has one."""
    if space.sharing is None:
        return "sharing"
    if joined_gpu(chunk, space) or opened_gpu(chunk, space):
        return ""
    requested = chunk.gpu_share
    has_room = requested is not None and any(
        device.shared.holds(share_of_gpu(requested, device.shared.gpu))
        for device in shared_devices(chunk, space)
    )
    return "gpu_low" if has_room else "gpu_share"


def shared_devices(chunk: Chunk, space: FreeNode) -> Iterator[Device]:
    """Yield the GPUs of a node that are shared already and have the type that a chunk wants."""
    for each in space.shared:
        if not chunk.gpu_type or each.gpu.type == chunk.gpu_type:
            yield Device(node=space.name, shared=each)


def joined_gpu(chunk: Chunk, space: FreeNode) -> Gpu | None:
    """Return which shared GPU of a node the chunk's job joins, by Algorithm 1; None: none."""
    if chunk.gpu_share is None or space.sharing is None or not space.shared:
        return None
    found = choose(chunk.gpu_share, shared_devices(chunk, space), space.sharing)
    return found.shared.gpu if found is not None else None


def opened_gpu(chunk: Chunk, space: FreeNode) -> Gpu | None:
    """Return which free GPU of a node is shared from now on, if the chunk's job gets a new one."""
    requested = chunk.gpu_share
    if requested is None or space.sharing is None:
        return None
    large = (
        gpu
        for gpu in usable_gpus(chunk, space)
        if gpu.memory_bytes and untouched(gpu).holds(share_of_gpu(requested, gpu))
    )
    return min(large, key=lambda gpu: gpu.index, default=None)


def _gpu_shares(chunk: Chunk, space: FreeNode) -> tuple[GpuShare, ...]:
    requested = chunk.gpu_share
    gpu = joined_gpu(chunk, space) or opened_gpu(chunk, space)
    return () if requested is None or gpu is None else (share_of_gpu(requested, gpu),)


def best_space(
    chunk: Chunk, spaces: Iterable[FreeNode], *, exclusive: bool, rank: Rank
) -> FreeNode | None:
    """Return the node that can take a place of the chunk and ranks lowest, or None."""
    best: FreeNode | None = None
    best_score: RankKey | None = None
    for space in spaces:
        if shortage(chunk, space, exclusive=exclusive):
            continue
        score = rank(chunk, space)
        if best_score is None or score < best_score:
            best, best_score = space, score
    return best


def least_left(chunk: Chunk, spaces: Spaces, *, exclusive: bool) -> Iterator[FreeNode]:
    """Yield the nodes that can take a place of the chunk, best first by `leftover`.

    Among nodes with as many free GPUs those with too few CPUs stand first and are passed over at
    once, so that mostly a handful of nodes is looked at.
    """
    order = spaces.order
    has_gpus, gpus = bool(chunk.gpus), chunk.gpus
    index = bisect_left(order, (has_gpus, gpus, chunk.cpus, chunk.memory_bytes))
    while index < len(order):
        key = order[index]
        if key[:2] != (has_gpus, gpus):  # the next larger number of free GPUs
            has_gpus, gpus = key[0], key[1]
            index = bisect_left(order, (has_gpus, gpus, chunk.cpus, chunk.memory_bytes), index)
            continue
        space = spaces[key[4]]
        if not shortage(chunk, space, exclusive=exclusive):
            yield space
        index += 1


def leftover(chunk: Chunk, space: FreeNode) -> RankKey:
    """Return by what nodes are ranked for a chunk, best first: what would stay behind, and name."""
    return (
        not chunk.gpus and space.total_gpus > 0,
        len(space.gpus) - chunk.gpus,
        space.cpus - chunk.cpus,
        space.memory_bytes - chunk.memory_bytes,
        space.name,
    )


def share_of(chunk: Chunk, space: FreeNode, *, exclusive: bool, copies: int = 1) -> Share:
    """Return the share of ``copies`` places of a chunk on a node that has room for them."""
    indices = tuple(sorted(gpu.index for gpu in usable_gpus(chunk, space)))
    return Share(
        node=space.name,
        cpus=copies * chunk.cpus,
        slots=copies,
        gpu_indices=indices[: copies * chunk.gpus],
        memory_bytes=copies * chunk.memory_bytes,
        generic=tuple((name, copies * count) for name, count in chunk.generic),
        exclusive=exclusive,
        gpu_shares=_gpu_shares(chunk, space) if chunk.gpu_share is not None else (),
    )


def room(chunk: Chunk, space: FreeNode) -> int:
    """Return how many places of a chunk a node has room for that has room for one."""
    free = dict(space.generic)
    pairs = [
        (space.cpus, chunk.cpus),
        (space.memory_bytes, chunk.memory_bytes),
        (len(usable_gpus(chunk, space)), chunk.gpus),
        *((free[name], count) for name, count in chunk.generic),
    ]
    return min(have // need for have, need in pairs if need)


def merged(shares: Sequence[Share], *, exclusive: bool) -> Share:
    """Return several shares of one attempt on one node as one."""
    generic: Counter[str] = Counter()
    for share in shares:
        generic.update(dict(share.generic))
    return Share(
        node=shares[0].node,
        cpus=sum(share.cpus for share in shares),
        slots=sum(share.slots for share in shares),
        gpu_indices=tuple(sorted(i for share in shares for i in share.gpu_indices)),
        memory_bytes=sum(share.memory_bytes for share in shares),
        generic=tuple(sorted(generic.items())),
        exclusive=exclusive,
        gpu_shares=tuple(part for share in shares for part in share.gpu_shares),
    )
