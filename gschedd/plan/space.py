"""Free resources of nodes, and the overlay on which a plan takes and gives without copying all."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar, cast

from msgspec import Struct, structs

from gsched.config.nodes import SharingRules
from gsched.model.resources import Generic, Gpu, GpuShare, Share
from gschedd.plan.sharing import SharedGpu, untouched


class FreeNode(Struct, frozen=True, kw_only=True):
    """What is free on one node, and what it is made of.

    Attributes:
        cpus, memory_bytes, gpus, generic: free now; of ``gpus``, all of each.
        shared: GPUs with shares on them, by index.
        sharing: by which rules jobs share its GPUs; None: they cannot.
        total_cpus, total_memory_bytes, total_gpus: of the whole node.
        features: words a request can name: the node's features, its name and its GPU types.
        owners: how many attempts own something here.
        exclusive: one of them wants to be alone.
        open: the node takes new work (up and not drained).
    """

    name: str
    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    generic: Generic
    total_cpus: int
    total_memory_bytes: int
    total_gpus: int
    total_generic: Generic
    all_gpus: tuple[Gpu, ...]
    features: frozenset[str]
    owners: int = 0
    exclusive: bool = False
    open: bool = True
    shared: tuple[SharedGpu, ...] = ()
    sharing: SharingRules | None = None


def take(space: FreeNode, share: Share) -> FreeNode:
    """Return the node's space without ``share``; the caller knows that it fits."""
    owned = set(share.gpu_indices)
    if share.gpu_shares:
        space = _shares_taken(space, share.gpu_shares)
    return structs.replace(
        space,
        cpus=space.cpus - share.cpus,
        memory_bytes=space.memory_bytes - share.memory_bytes,
        gpus=tuple(gpu for gpu in space.gpus if gpu.index not in owned) if owned else space.gpus,
        generic=_add(space.generic, share.generic, -1),
        owners=space.owners + 1,
        exclusive=space.exclusive or share.exclusive,
    )


def give(space: FreeNode, share: Share) -> FreeNode:
    """Return the node's space with ``share`` given back."""
    if share.gpu_shares:
        space = _shares_given(space, share.gpu_shares)
    gpus = space.gpus
    if share.gpu_indices:
        present = {gpu.index for gpu in gpus} | set(share.gpu_indices)
        gpus = tuple(gpu for gpu in space.all_gpus if gpu.index in present)
    return structs.replace(
        space,
        cpus=space.cpus + share.cpus,
        memory_bytes=space.memory_bytes + share.memory_bytes,
        gpus=gpus,
        generic=_add(space.generic, share.generic, 1),
        owners=space.owners - 1,
        exclusive=space.exclusive and not share.exclusive,
    )


def _shares_taken(space: FreeNode, shares: Iterable[GpuShare]) -> FreeNode:
    """Return the node's space without shares of GPUs; one that was free is shared from now on."""
    shared = {each.gpu.index: each for each in space.shared}
    whole = {gpu.index: gpu for gpu in space.all_gpus}
    assumed = space.sharing.utilisation_assumed if space.sharing is not None else 0.0
    for share in shares:
        if share.index in whole:  # a node may have lost the GPU of a job that runs
            before = shared.get(share.index) or untouched(whole[share.index])
            shared[share.index] = before.taken(share, utilisation=assumed)
    return _with_shared(space, shared)


def _shares_given(space: FreeNode, shares: Iterable[GpuShare]) -> FreeNode:
    """Return the node's space with shares given back; a GPU without any is free again."""
    shared = {each.gpu.index: each for each in space.shared}
    freed: set[int] = set()
    for share in shares:
        if share.index in shared:
            after = shared.pop(share.index).given(share)
            if after.high or after.low:
                shared[share.index] = after
            else:
                freed.add(share.index)
    present = freed | {gpu.index for gpu in space.gpus}
    gpus = tuple(gpu for gpu in space.all_gpus if gpu.index in present)
    return _with_shared(structs.replace(space, gpus=gpus), shared)


def _with_shared(space: FreeNode, shared: Mapping[int, SharedGpu]) -> FreeNode:
    return structs.replace(
        space,
        shared=tuple(shared[index] for index in sorted(shared)),
        gpus=tuple(gpu for gpu in space.gpus if gpu.index not in shared),
    )


def emptied(space: FreeNode) -> FreeNode:
    """Return the node as it is with nothing running and open: for "could it ever hold this?"."""
    return structs.replace(
        space,
        cpus=space.total_cpus,
        memory_bytes=space.total_memory_bytes,
        gpus=space.all_gpus,
        shared=(),
        generic=space.total_generic,
        owners=0,
        exclusive=False,
        open=True,
    )


def common(first: FreeNode, second: FreeNode) -> FreeNode:
    """Return what is free in both: now, and when a reservation begins."""
    indices = {gpu.index for gpu in second.gpus}
    other = dict(second.generic)
    return structs.replace(
        first,
        cpus=min(first.cpus, second.cpus),
        memory_bytes=min(first.memory_bytes, second.memory_bytes),
        gpus=tuple(gpu for gpu in first.gpus if gpu.index in indices),
        shared=_common_shared(first, second) if first.shared or second.shared else (),
        generic=tuple((name, min(count, other.get(name, 0))) for name, count in first.generic),
        owners=max(first.owners, second.owners),
        exclusive=first.exclusive or second.exclusive,
    )


def _common_shared(first: FreeNode, second: FreeNode) -> tuple[SharedGpu, ...]:
    """Return what is left in both of GPUs that are shared in one of them at least."""
    found: list[SharedGpu] = []
    for gpu in first.all_gpus:
        here, there = _left_of(first, gpu), _left_of(second, gpu)
        if here is None or there is None or not (here.high + here.low + there.high + there.low):
            continue
        found.append(
            structs.replace(
                here,
                percent=min(here.percent, there.percent),
                memory_bytes=min(here.memory_bytes, there.memory_bytes),
                high=max(here.high, there.high),
                low=max(here.low, there.low),
                utilisation=max(here.utilisation, there.utilisation),
            )
        )
    return tuple(found)


def _left_of(space: FreeNode, gpu: Gpu) -> SharedGpu | None:
    """Return what is left of a GPU for shares; None where a job has all of it."""
    for each in space.shared:
        if each.gpu.index == gpu.index:
            return each
    return untouched(gpu) if gpu in space.gpus else None


def kept_back(space: FreeNode, leaving: Iterable[Share], coming: Sequence[Share]) -> FreeNode:
    """Return what others may use of a node where some leave and some come.

    Args:
        space: what nobody owns there now.
        leaving: what those that leave still own: it will be free when those come.
        coming: what those that come will own.
    """
    more = _sum(coming)
    more.subtract(_sum(leaving))
    kept = {index for share in coming for index in share.gpu_indices}
    return structs.replace(
        space,
        cpus=max(0, space.cpus - max(0, more["cpus"])),
        memory_bytes=max(0, space.memory_bytes - max(0, more["memory"])),
        gpus=tuple(gpu for gpu in space.gpus if gpu.index not in kept),
        shared=tuple(each for each in space.shared if each.gpu.index not in kept),
        generic=tuple(
            (name, max(0, count - max(0, more[f"generic {name}"]))) for name, count in space.generic
        ),
        owners=space.owners + len(coming),
        exclusive=space.exclusive or any(share.exclusive for share in coming),
    )


def _sum(shares: Iterable[Share]) -> Counter[str]:
    total: Counter[str] = Counter()
    for share in shares:
        total["cpus"] += share.cpus
        total["memory"] += share.memory_bytes
        for name, count in share.generic:
            total[f"generic {name}"] += count
    return total


def _add(generic: Generic, change: Generic, sign: int) -> Generic:
    if not change:
        return generic
    counts = dict(generic)
    for name, count in change:
        counts[name] = counts.get(name, 0) + sign * count
    return tuple(sorted(counts.items()))


#: Of so many nodes one is moved in their order at most; of more of them it is made anew.
MOVES_MAX: Final = 4

#: What nodes are sorted by: whether it has GPUs at all, free GPUs, CPUs and memory, name. For any
#: chunk that is the order of how much would stay behind, the least first.
RoomKey = tuple[bool, int, int, int, str]


def room_key(space: FreeNode) -> RoomKey:
    """Return where a node stands among others."""
    return (space.total_gpus > 0, len(space.gpus), space.cpus, space.memory_bytes, space.name)


class NodeIndex:
    """What a policy has worked out about each node, kept from one plan to the next.

    It must follow from the snapshot alone, so that a plan is the same with and without it.

    Attributes:
        stale: nodes of which something has changed since; whoever refreshes the index empties it.
    """

    def __init__(self) -> None:
        self.stale: set[str] = set()


IndexT = TypeVar("IndexT", bound=NodeIndex)


class SortedSpaces(dict[str, FreeNode]):
    """Free space by node, and the keys of all nodes in order, kept up with every change.

    Attributes:
        order: see `RoomKey`; only to be read.
    """

    __slots__ = ("_indices", "order")

    def __init__(self) -> None:
        super().__init__()
        self.order: list[RoomKey] = []
        self._indices: dict[Hashable, NodeIndex] = {}

    def __setitem__(self, name: str, space: FreeNode) -> None:
        before = self.get(name)
        super().__setitem__(name, space)
        _reorder(self.order, before, space)
        self.touch(name)

    def __delitem__(self, name: str) -> None:
        del self.order[bisect_left(self.order, room_key(self[name]))]
        super().__delitem__(name)
        self._indices.clear()  # each is made anew, without it

    def touch(self, name: str) -> None:
        """Note that something else has changed that a snapshot says of a node: its load, say."""
        for index in self._indices.values():
            index.stale.add(name)

    def index(self, key: Hashable, make: Callable[[], IndexT]) -> IndexT:
        """Return the index of that key; one that is made anew has all nodes to look at.

        A key always goes with the same kind of index.
        """
        found = self._indices.get(key)
        if found is None:
            found = self._indices[key] = make()
            found.stale.update(self)
        return cast("IndexT", found)


def index_of(nodes: Mapping[str, FreeNode], key: Hashable, make: Callable[[], IndexT]) -> IndexT:
    """Return the index that is kept with these nodes, or a new one where none can be kept."""
    if isinstance(nodes, SortedSpaces):
        return nodes.index(key, make)
    index = make()
    index.stale.update(nodes)
    return index


def _reorder(order: list[RoomKey], before: FreeNode | None, after: FreeNode) -> None:
    """Move a node in the order."""
    if before is not None:
        del order[bisect_left(order, room_key(before))]
    insort(order, room_key(after))


class Spaces:
    """All nodes' free space: a shared base that is never changed, and what a plan changed."""

    __slots__ = ("_base", "_changed", "_order")

    def __init__(
        self, base: Mapping[str, FreeNode], changed: Mapping[str, FreeNode] | None = None
    ) -> None:
        self._base = base
        self._changed = dict(changed or {})
        self._order: list[RoomKey] | None = None

    @property
    def order(self) -> Sequence[RoomKey]:
        """Return the keys of all nodes in order; only to be read, before the next change."""
        if self._order is not None:
            return self._order
        if isinstance(self._base, SortedSpaces) and len(self._changed) * MOVES_MAX <= len(self):
            if not self._changed:
                return self._base.order
            self._order = self._base.order.copy()
            for name, space in self._changed.items():
                _reorder(self._order, self._base[name], space)
        else:
            self._order = sorted(map(room_key, self))
        return self._order

    def _set(self, name: str, space: FreeNode) -> None:
        if self._order is not None:
            _reorder(self._order, self[name], space)
        self._changed[name] = space

    def __getitem__(self, node: str) -> FreeNode:
        return self._changed.get(node) or self._base[node]

    def gpus_of(self, node: str) -> tuple[Gpu, ...]:
        """Return all GPUs of a node; none of one that is not known."""
        return self[node].all_gpus if node in self else ()

    def __contains__(self, node: str) -> bool:
        return node in self._base

    def __iter__(self) -> Iterator[FreeNode]:
        if not self._changed:
            return iter(self._base.values())
        return (self._changed.get(name, space) for name, space in self._base.items())

    def __len__(self) -> int:
        return len(self._base)

    @property
    def changed(self) -> Mapping[str, FreeNode]:
        """Return the nodes on which something was taken or given; only to be read."""
        return MappingProxyType(self._changed)

    def copy(self) -> "Spaces":
        """Return another overlay with the same content."""
        return Spaces(self._base, self._changed)

    def take(self, allocation: Iterable[Share]) -> None:
        """Take an allocation that fits."""
        for share in allocation:
            self._set(share.node, take(self[share.node], share))

    def put(self, space: FreeNode) -> None:
        """Let a node be as it is given."""
        self._set(space.name, space)

    def give(self, allocation: Iterable[Share]) -> None:
        """Give an allocation back; nodes that are gone are passed over."""
        for share in allocation:
            if share.node in self._base:
                self._set(share.node, give(self[share.node], share))

    def common_with(self, others: Mapping[str, FreeNode]) -> "Spaces":
        """Return what is free here, and on some nodes no more than what is free in ``others``."""
        less = {name: common(self[name], space) for name, space in others.items()}
        return Spaces(self._base, {**self._changed, **less})
