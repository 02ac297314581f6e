"""The GPUs that adaptive jobs may have, and the configurations of them that exist.

A configuration is a number of GPUs of one type: 1, 2, 4 and so on on one node, or whole nodes. So N
nodes of R GPUs have N + log2 R configurations. A node whose GPUs are no power of two counts as
virtual nodes that are: seven GPUs are four, two and one. With powers of two any choice of
configurations can be placed without splitting one, as in a buddy system, if for each power s those
of s GPUs and more use no more than the virtual nodes of s GPUs and more have; each s where this is
less than all GPUs is a resource of its own.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023. There all nodes of a type are alike and free.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from gsched.model.resources import Allocation
from gschedd.allocation.adaptive.problem import Flags, Floats, Ints
from gschedd.plan.space import FreeNode


class Pool(Struct, frozen=True, kw_only=True):
    """How many GPUs of each type each node has for adaptive jobs.

    Attributes:
        counts: GPUs by node, by type; types and nodes in order, nodes without any are left out.
    """

    counts: Mapping[str, Mapping[str, int]]

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types of which there are GPUs, in order."""
        return tuple(self.counts)


def pool_of(
    nodes: Mapping[str, FreeNode],
    held: Iterable[Allocation] = (),
    reserved: Mapping[str, int] | None = None,
) -> Pool:
    """Return the GPUs that are free on open nodes, or held by jobs that may be moved.

    Args:
        nodes: what is free now.
        held: allocations of jobs that may be moved.
        reserved: GPUs of each type that are left to other jobs: those of the nodes with the
            highest names.
    """
    indices = {
        name: {gpu.index for gpu in space.gpus} for name, space in nodes.items() if space.open
    }
    for allocation in held:
        for share in allocation:
            if share.node in indices:
                indices[share.node].update(share.gpu_indices)
    counts: dict[str, dict[str, int]] = {}
    for name in sorted(indices):
        if not indices[name]:
            continue
        for gpu in nodes[name].all_gpus:
            if gpu.index in indices[name]:
                of_type = counts.setdefault(gpu.type, {})
                of_type[name] = of_type.get(name, 0) + 1
    for gpu_type, count in (reserved or {}).items():
        _hold_back(counts.get(gpu_type, {}), count)
    return Pool(counts={name: counts[name] for name in sorted(counts) if counts[name]})


def _hold_back(counts: dict[str, int], reserved: int) -> None:
    for name in sorted(counts, reverse=True):
        held = min(counts[name], reserved)
        reserved -= held
        counts[name] -= held
        if not counts[name]:
            del counts[name]


class Configurations(Struct, frozen=True, kw_only=True, eq=False):
    """All configurations, those of one type together, in ascending order of their GPUs.

    Attributes:
        types: GPU types, in order.
        starts: where the configurations of each type begin, and where the last ones end; shape
            ``(T + 1,)``.
        nodes, gpus: of each configuration, shape ``(C,)``.
        granules: GPUs that it takes on each of its nodes, on the last one fewer if they are no
            multiple; shape ``(C,)``.
        regular: those that any job may have; others are there for single jobs; shape ``(C,)``.
        usage: what it uses of each resource, shape ``(R, C)``.
        capacity: of each resource, shape ``(R,)``.
        resources: names of the resources.
        index: of each configuration, by type, nodes and GPUs.
    """

    types: tuple[str, ...]
    starts: Ints
    nodes: Ints
    gpus: Ints
    granules: Ints
    regular: Flags
    usage: Floats
    capacity: Floats
    resources: tuple[str, ...]
    index: Mapping[tuple[str, int, int], int]

    def type_of(self, configuration: int) -> str:
        """Return the GPU type of a configuration."""
        return self.types[int(np.searchsorted(self.starts, configuration, side="right")) - 1]

    def find(self, gpu_type: str, nodes: int, gpus: int) -> int:
        """Return the configuration of so many GPUs on so many nodes, or -1."""
        return self.index.get((gpu_type, nodes, gpus), -1)


class Extra(Struct, frozen=True, kw_only=True):
    """A configuration beside the regular ones.

    Attributes:
        counts: GPUs on each node, the most first; empty: as few nodes as they need.
    """

    gpu_type: str
    gpus: int
    counts: tuple[int, ...] = ()


def configurations_of(pool: Pool, extras: Iterable[Extra] = ()) -> Configurations:
    """Return the configurations that exist in a pool, and some that single jobs need."""
    types = pool.types
    wanted: dict[str, dict[tuple[int, int], Extra]] = {name: {} for name in types}
    for extra in extras:
        if extra.gpu_type in wanted:
            wanted[extra.gpu_type][extra.gpus, len(extra.counts)] = extra
    parts = [_OfType(name, pool.counts[name], wanted[name].values()) for name in types]
    width = sum(len(part.rows) for part in parts)
    usage = np.zeros((sum(len(part.sizes) for part in parts), width))
    at, row = 0, 0
    for part in parts:
        usage[row : row + len(part.sizes), at : at + len(part.rows)] = part.usage()
        at, row = at + len(part.rows), row + len(part.sizes)
    rows = [row for part in parts for row in part.rows]
    return Configurations(
        types=types,
        starts=np.cumsum([0, *(len(part.rows) for part in parts)]),
        nodes=np.array([row.nodes for row in rows], dtype=np.int64),
        gpus=np.array([row.gpus for row in rows], dtype=np.int64),
        granules=np.array([row.granule for row in rows], dtype=np.int64),
        regular=np.array([not row.counts for row in rows], dtype=bool),
        usage=usage,
        capacity=np.array([part.capacity(size) for part in parts for size in part.sizes], float),
        resources=tuple(
            f"GPUs of type {part.name or 'unknown'}" + (f", {size} at once" if size > 1 else "")
            for part in parts
            for size in part.sizes
        ),
        index={
            key: number
            for number, key in enumerate(
                (part.name, row.nodes, row.gpus) for part in parts for row in part.rows
            )
        },
    )


class _Row(Struct, frozen=True, kw_only=True):
    """A configuration: so many GPUs on each of so many nodes, or what an extra one has on each."""

    granule: int
    nodes: int = 1
    counts: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(self.counts) if self.counts else self.granule * self.nodes

    def used(self, size: int) -> int:
        """Return how many of its GPUs are in virtual nodes of so many and more."""
        if self.counts:
            return sum(count // size for count in self.counts) * size
        return self.granule // size * size * self.nodes


class _OfType:
    """The configurations of one type, and the resources that they use.

    Attributes:
        sizes: s of each resource: it counts GPUs in virtual nodes of s GPUs and more.
    """

    def __init__(self, name: str, counts: Mapping[str, int], extras: Iterable[Extra]) -> None:
        self.name = name
        self._counts = np.array(list(counts.values()))
        largest = int(self._counts.max())
        powers = [1 << exponent for exponent in range(largest.bit_length())]
        # several nodes: those of the size of which there are most GPUs in all
        self.whole = max(powers, key=lambda size: (size * int((self._counts >= size).sum()), size))
        rows = [_Row(granule=size) for size in powers]
        most = int((self._counts >= self.whole).sum())
        rows += [_Row(granule=self.whole, nodes=nodes) for nodes in range(2, most + 1)]
        known = {(row.gpus, row.nodes) for row in rows}
        for extra in extras:
            split = extra.counts or self._split(extra.gpus, largest)
            if split and (extra.gpus, len(split)) not in known:
                known.add((extra.gpus, len(split)))
                rows.append(_Row(granule=split[0], nodes=len(split), counts=split))
        self.rows = sorted(rows, key=lambda row: (row.gpus, row.nodes))
        self.sizes = [1]
        for size in powers[1:]:
            if self.capacity(size) < self.capacity(self.sizes[-1]):
                self.sizes.append(size)

    def _split(self, gpus: int, largest: int) -> tuple[int, ...]:
        """Return so many GPUs on one node, or on whole ones and the rest on another; () if none."""
        if gpus <= largest:
            return (gpus,)
        if gpus > self._counts.sum():
            return ()
        nodes, rest = divmod(gpus, self.whole)
        return (self.whole,) * nodes + ((rest,) if rest else ())

    def capacity(self, size: int) -> int:
        """Return how many GPUs there are in virtual nodes of so many GPUs and more."""
        return int((self._counts // size).sum()) * size

    def usage(self) -> Floats:
        """Return what each configuration uses of each resource, shape ``(sizes, rows)``."""
        used: Floats = np.array(
            [[row.used(size) for row in self.rows] for size in self.sizes], float
        )
        return used
