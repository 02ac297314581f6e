"""What jobs count under limits: running jobs, CPUs, memory, GPUs, and GPU time."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from gsched.model.resources import WHOLE_PERCENT, Allocation, Gpu, Request, percent_held
from gschedd.plan.space import FreeNode, Spaces

Amounts = Mapping[str, int]
Nodes = Mapping[str, FreeNode] | Spaces

#: Ends the counter of GPUs of a type.
OF: Final = " of "


def most_of(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return the more of each amount."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def amounts_of(allocation: Allocation, nodes: Nodes) -> dict[str, int]:
    """Return what an allocation counts, without its time."""
    found: Counter[str] = Counter(running=1 if allocation else 0)
    for share in allocation:
        node = nodes[share.node] if share.node in nodes else None  # noqa: SIM401 # no get of Spaces
        if share.exclusive and node is not None:
            found["cpus"] += node.total_cpus
            found["memory"] += node.total_memory_bytes
            found["gpus"] += WHOLE_PERCENT * len(node.all_gpus)
            _count_types(found, ((gpu, WHOLE_PERCENT) for gpu in node.all_gpus))
            continue
        found["cpus"] += share.cpus
        found["memory"] += share.memory_bytes
        found["gpus"] += percent_held([share])
        if node is not None and (share.gpu_indices or share.gpu_shares):
            gpus = {gpu.index: gpu for gpu in node.all_gpus}
            held = (
                (gpus[each.index], each.percent) for each in share.gpus_held if each.index in gpus
            )
            _count_types(found, held)
    return {name: amount for name, amount in found.items() if amount}


def _count_types(found: Counter[str], gpus: Iterable[tuple[Gpu, int]]) -> None:
    for gpu, percent in gpus:
        if gpu.type:
            found[f"gpus{OF}{gpu.type}"] += percent


def amounts_there(
    allocation: Allocation, nodes: Nodes, walltime_s: float | None
) -> dict[str, float]:
    """Return what a job counts that starts on an allocation, with its time."""
    return _with_time(dict(amounts_of(allocation, nodes)), walltime_s)


def amounts_needed(request: Request, walltime_s: float | None) -> dict[str, float]:
    """Return the least that a job counts wherever it starts, with its time."""
    found: Counter[str] = Counter(running=1, cpus=request.cpus, memory=request.memory_bytes)
    for chunk in request.chunks:
        percent = chunk.count * chunk.gpus * WHOLE_PERCENT
        percent += 0 if chunk.gpu_share is None else chunk.count * chunk.gpu_share.percent
        found["gpus"] += percent
        if chunk.gpu_type:
            found[f"gpus{OF}{chunk.gpu_type}"] += percent
    needed: dict[str, float] = {name: amount for name, amount in found.items() if amount}
    return _with_time(needed, walltime_s)


def _with_time(amounts: Mapping[str, float], walltime_s: float | None) -> dict[str, float]:
    """Return amounts with the time of their GPUs."""
    gpus = amounts.get("gpus", 0)
    if not gpus:
        return dict(amounts)
    left_ms = math.inf if walltime_s is None else round(walltime_s * 1000)
    return {**amounts, "gpu_time": gpus * left_ms}
