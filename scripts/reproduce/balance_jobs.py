"""The clusters and job lists on which policies are compared, drawn from a seed."""

import random
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gsched.model.resources import Inventory
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.workload import TraceJob

GIB = 1024**3
#: CPU that jobs want while the list is being submitted, over what there is: so much that the total
#: completion time depends on where jobs run, not only on when the last one is submitted.
LOAD = 0.8
#: Spread of sizes within a kind: the standard deviation of their logarithm.
SIZE_SPREAD = 0.4


class JobKind(Struct, frozen=True, kw_only=True):
    """Jobs of one program.

    Attributes:
        share: how many of all jobs, 0 to 1.
        cores: that one keeps busy while it can, on average.
        memory_gib: that it uses, on average.
        run_s: run time where it gets all that, of the median size.
    """

    share: float
    cores: float
    memory_gib: float
    run_s: float


class Scenario(Struct, frozen=True, kw_only=True):
    """A cluster, and what is submitted to it.

    Attributes:
        nodes: cores and GiB of memory of each, in the order of their names.
    """

    title: str
    nodes: tuple[tuple[int, int], ...]
    kinds: Mapping[str, JobKind]
    jobs: int = 200


#: A head that also computes, a weak node, one with a strong GPU, one with a weak GPU. No job asks
#: for a GPU, so that none is modelled.
USUAL_NODES = ((12, 24), (8, 16), (16, 32), (12, 24))
UNEQUAL_NODES = ((12, 24), (4, 8), (24, 64), (8, 16))
PAPER_KINDS = {
    "h264": JobKind(share=0.5, cores=4, memory_gib=0.5, run_s=300),
    "convolution": JobKind(share=0.5, cores=1, memory_gib=2, run_s=200),
}
DIFFERENT_KINDS = {
    "h264": JobKind(share=0.3, cores=6, memory_gib=0.5, run_s=600),
    "convolution": JobKind(share=0.3, cores=1, memory_gib=3, run_s=240),
    "thumbnails": JobKind(share=0.3, cores=0.25, memory_gib=0.25, run_s=60),
    "stitching": JobKind(share=0.1, cores=2, memory_gib=6, run_s=900),
}
SCENARIOS = {
    "paper": Scenario(title="the paper's two kinds", nodes=USUAL_NODES, kinds=PAPER_KINDS),
    "kinds": Scenario(
        title="four kinds that differ much", nodes=USUAL_NODES, kinds=DIFFERENT_KINDS
    ),
    "unequal": Scenario(
        title="four kinds on nodes that differ more", nodes=UNEQUAL_NODES, kinds=DIFFERENT_KINDS
    ),
}


def cluster(scenario: Scenario) -> tuple[ClusterNode, ...]:
    """Return the nodes: one slot for each core, as sites set it under Torque."""
    return tuple(
        ClusterNode(
            name=f"node{number}",
            inventory=Inventory(cpus=cores, memory_bytes=memory_gib * GIB),
            speed=1.0,
        )
        for number, (cores, memory_gib) in enumerate(scenario.nodes, 1)
    )


def order_of(shares: Mapping[str, float], jobs: int, chance: random.Random) -> list[str]:
    """Return kinds in random order, as many of each as its share says."""
    names = [name for name, share in shares.items() for _ in range(round(share * jobs))]
    chance.shuffle(names)
    return names


def draw(scenario: Scenario, seed: int) -> list[TraceJob]:
    """Return a list of jobs in random order, of random sizes, at random moments.

    Each asks for one CPU and no memory, as is usual under Torque, and uses what its kind does.
    """
    chance = random.Random(seed)
    cores = sum(cores for cores, _ in scenario.nodes)
    kinds = scenario.kinds
    wanted_core_s = sum(kind.share * kind.cores * kind.run_s for kind in kinds.values())
    gap_s = wanted_core_s / (LOAD * cores)
    jobs: list[TraceJob] = []
    submit_s = 0.0
    shares = {name: kind.share for name, kind in kinds.items()}
    for name in order_of(shares, scenario.jobs, chance):
        kind = kinds[name]
        submit_s += chance.expovariate(1 / gap_s)
        jobs.append(
            TraceJob(
                submit_s=round(submit_s, 3),
                duration_s=round(kind.run_s * chance.lognormvariate(0, SIZE_SPREAD), 3),
                name=name,
                kind=name,
                cpus_used=round(kind.cores * chance.uniform(0.8, 1.2), 3),
                memory_used_bytes=round(kind.memory_gib * GIB * chance.uniform(0.7, 1.3)),
            )
        )
    return jobs


def described(nodes: Sequence[ClusterNode]) -> str:
    """Return nodes in a few words."""
    return ", ".join(
        f"{node.name} {node.inventory.cpus} cores {node.inventory.memory_bytes / GIB:.0f} GiB"
        for node in nodes
    )
