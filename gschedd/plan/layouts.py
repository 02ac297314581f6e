"""What GPUs an allocation has, of which type, and how they are laid out: the one definition of it.

GPUs that work together are as fast as the slowest of them. A node may have GPUs of several types:

* of an allocation exactly its own GPUs count, not those that others have on the node;
* before GPUs are chosen, the slowest of those that a policy may choose counts (`slowest_type`), so
  that no plan is too fast;
* for the fastest run that could be, the fastest GPU of each node (`fastest`).
"""

from collections.abc import Callable, Iterable, Sequence

from gsched.model.resources import Allocation, Gpu, Request
from gschedd.plan.training import Fabric, Layout, gpus_by_node

#: The GPUs of a node, by its name; none of a node that is not known.
GpusOf = Callable[[str], Sequence[Gpu]]


def has_alike_gpus(request: Request) -> bool:
    """Return whether GPUs can be chosen for it node by node: one chunk, with GPUs in every place.

    Only such requests are planned by policies for training jobs, or migrated by any policy. Who
    needs no GPUs, or different things in different places, is planned like any other job.
    """
    return len(request.chunks) == 1 and request.chunks[0].gpus > 0


def slowest_type(gpus: Iterable[Gpu], fabric: Fabric) -> str:
    """Return the type of the slowest GPU; ties go to the first by name; empty without any."""
    types = sorted({gpu.type for gpu in gpus}) or [""]
    return min(types, key=lambda kind: fabric.devices.get(kind, 1.0))


def fastest(gpus: Iterable[Gpu], fabric: Fabric) -> float:
    """Return how fast the fastest GPU is; there must be one."""
    return max(fabric.devices.get(gpu.type, 1.0) for gpu in gpus)


def held_gpus(allocation: Allocation, gpus_of: GpusOf) -> dict[str, tuple[Gpu, ...]]:
    """Return the GPUs of an allocation by node; nodes without any, or not known, are left out."""
    held: dict[str, tuple[Gpu, ...]] = {}
    for share in allocation:
        if share.gpu_indices and (gpus := gpus_of(share.node)):
            held[share.node] = tuple(gpu for gpu in gpus if gpu.index in share.gpu_indices)
    return held


def layout_of(allocation: Allocation, gpus_of: GpusOf, fabric: Fabric) -> Layout:
    """Return the layout of an allocation; without GPUs, its CPUs count in their place."""
    counts = gpus_by_node(allocation)
    if not counts:
        return fabric.layout({share.node: max(1, share.cpus) for share in allocation})
    if not fabric.devices:  # all types are equally fast
        return fabric.layout(counts)
    held = held_gpus(allocation, gpus_of)
    return fabric.layout(counts, {name: slowest_type(gpus, fabric) for name, gpus in held.items()})
