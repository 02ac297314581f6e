"""What this machine has: measured, unless the configuration declares it."""

import os

import psutil

from gnode.hw.nvml import Nvml
from gsched.config import NodeConfig
from gsched.model.resources import Gpu, Inventory
from gsched.model.units import parse_size_bytes


def take_inventory(config: NodeConfig, nvml: Nvml) -> Inventory:
    """Return what this node offers.

    Raises:
        BadResourceError: a declared size cannot be read.
    """
    return Inventory(
        cpus=config.cpus or len(os.sched_getaffinity(0)),
        memory_bytes=(
            parse_size_bytes(config.memory) if config.memory else psutil.virtual_memory().total
        ),
        gpus=_declared_gpus(config) if config.gpu else nvml.gpus(),
        features=config.features,
        generic=tuple(sorted((name, count) for name, count in config.resources.items() if count)),
    )


def _declared_gpus(config: NodeConfig) -> tuple[Gpu, ...]:
    found: list[Gpu] = []
    for declared in config.gpu:
        memory_bytes = parse_size_bytes(declared.memory)
        for _ in range(declared.count):
            found.append(Gpu(index=len(found), type=declared.type, memory_bytes=memory_bytes))
    return tuple(found)
