"""The CPUs of this machine: their cores and NUMA nodes, and whether jobs can be bound to them."""

import os
from dataclasses import dataclass
from pathlib import Path

from gnode.core.cpus import Cpu, parse_cpu_list
from gnode.hw.cgroups import Roots
from gnode.hw.confinement import Confinement
from gsched.config.nodes import NodeConfig
from gsched.errors import ConfigError

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBinding:
    """How the jobs of this node are bound to CPUs.

    Attributes:
        method: ``cpuset``, ``affinity`` or ``none``.
        reason: why there is none, in words.
        cpus: that jobs are given; empty: they are not bound.
    """

    method: str
    reason: str = ""
    cpus: tuple[Cpu, ...] = ()

    @property
    def words(self) -> str:
        """Return the method, and the reason for none."""
        return f"{self.method}: {self.reason}" if self.reason else self.method


def read_cpus(allowed: frozenset[int], cpus: Path = _CPUS, nodes: Path = _NODES) -> tuple[Cpu, ...]:
    """Return these CPUs with their cores and NUMA nodes.

    What the machine does not tell (many virtual ones) is taken to be simple: each CPU is a core,
    and there is one NUMA node.
    """
    numa: dict[int, int] = {}
    for directory in nodes.glob("node[0-9]*"):
        for number in _cpu_list(directory / "cpulist"):
            numa[number] = int(directory.name.removeprefix("node"))
    return tuple(
        Cpu(
            number=number,
            core=min(_siblings(cpus / f"cpu{number}" / "topology") | {number}),
            numa=numa.get(number, 0),
        )
        for number in sorted(allowed)
    )


def find_binding(
    config: NodeConfig,
    *,
    offered: int,
    roots: Roots,
    confinement: Confinement,
    allowed: frozenset[int] | None = None,
) -> CpuBinding:
    """Return how jobs are bound: the strongest way that works, or the one that is configured.

    Jobs are not bound where the node's CPUs are no particular ones: it offers more than there are,
    or a quota of CPU time confines it, as often in a container, whose CPUs are others', too.

    Args:
        config: of the node.
        offered: CPUs that the head may give to jobs.
        roots: control groups of the node.
        confinement: what confines the node.
        allowed: CPUs that gnode may use; None: as the kernel says.

    Raises:
        ConfigError: ``cpu_binding`` is ``cpuset``, and no group can be made for that.
    """
    if config.cpu_binding == "none":
        return CpuBinding(method="none", reason='cpu_binding = "none" in [node]')
    if config.cpu_binding == "cpuset" and roots.cpuset is None:
        raise ConfigError(
            'cpu_binding = "cpuset" in [node]: gnode cannot make cpuset control groups here',
            hint='run gnode as root or with Delegate=yes, or set cpu_binding = "affinity"',
        )
    numbers = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    if offered > len(numbers):
        return CpuBinding(
            method="none",
            reason=f"the node offers {offered} CPUs, but gnode can use only {len(numbers)} of its "
            "machine",
        )
    if confinement.cpu is not None:
        return CpuBinding(
            method="none",
            reason=f"a CPU quota limits this node to {confinement.cpu.cores:.2f} cores, not to "
            "particular CPUs",
        )
    uses_groups = roots.cpuset is not None and config.cpu_binding != "affinity"
    return CpuBinding(method="cpuset" if uses_groups else "affinity", cpus=read_cpus(numbers))


def _siblings(topology: Path) -> frozenset[int]:
    """Return the CPUs of a core; empty where the kernel does not tell."""
    return _cpu_list(topology / "core_cpus_list") or _cpu_list(topology / "thread_siblings_list")


def _cpu_list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()
