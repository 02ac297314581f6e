"""What this node has: measured, unless the configuration declares it."""

import math
import os
from collections.abc import Sequence

import psutil

from gnode.core.containers import ContainerRuntime
from gnode.hw.confinement import Confinement
from gnode.hw.nvml import Nvml
from gnode.hw.processor import cpu_clock_mhz
from gsched.config.nodes import NodeConfig
from gsched.model.container import features_of
from gsched.model.resources import Gpu, Inventory
from gsched.model.units import parse_size_bytes


def take_inventory(
    config: NodeConfig,
    nvml: Nvml,
    confinement: Confinement,
    runtimes: Sequence[ContainerRuntime] = (),
) -> Inventory:
    """Return what this node offers.

    Raises:
        BadResourceError: a declared size cannot be read.
    """
    cores = usable_cores(config, confinement)
    cpus = config.cpus or max(1, math.ceil(cores))
    capacity_cores = config.cpu_capacity_cores or cores
    return Inventory(
        cpus=cpus,
        cpu_capacity_cores=0.0 if capacity_cores == cpus else capacity_cores,
        cpu_clock_mhz=config.cpu_clock_mhz or cpu_clock_mhz(),
        memory_bytes=_memory_bytes(config, confinement),
        gpus=_declared_gpus(config) if config.gpu else nvml.gpus(rate_mhz=config.gpu_rate_mhz),
        features=tuple(
            dict.fromkeys((*config.features, *features_of(tuple(each.name for each in runtimes))))
        ),
        generic=tuple(sorted((name, count) for name, count in config.resources.items() if count)),
    )


def usable_cores(config: NodeConfig, confinement: Confinement) -> float:
    """Return the cores' worth of CPU time that jobs here can really use.

    More CPUs may be offered than there are, for jobs that mostly wait: they share what there is.
    """
    cores = float(len(os.sched_getaffinity(0)))
    if confinement.cpu is not None:
        cores = min(cores, confinement.cpu.cores)
    return min(cores, config.cpus) if config.cpus else cores


def _memory_bytes(config: NodeConfig, confinement: Confinement) -> int:
    if config.memory:
        return parse_size_bytes(config.memory)
    if confinement.memory is not None:
        return confinement.memory.limit_bytes
    return int(psutil.virtual_memory().total)


def _declared_gpus(config: NodeConfig) -> tuple[Gpu, ...]:
    found: list[Gpu] = []
    for declared in config.gpu:
        memory_bytes = parse_size_bytes(declared.memory)
        for _ in range(declared.count):
            found.append(
                Gpu(
                    index=len(found),
                    type=declared.type,
                    memory_bytes=memory_bytes,
                    rate_mhz=declared.rate_mhz or config.gpu_rate_mhz,
                )
            )
    return tuple(found)
