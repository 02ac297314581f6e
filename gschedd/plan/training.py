"""What policies know of training jobs: their speed on a layout, and their deadlines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct, field

from gsched.config.policies import FabricConfig
from gsched.model.resources import Allocation, Request
from gsched.model.training import Scaling
from gsched.model.units import parse_bandwidth_bytes_s

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Inside a node and between nodes where nothing is configured or measured, bytes a second: those
#: of the experiments in Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.
INSIDE_BYTES_S: Final = 10e9
BETWEEN_BYTES_S: Final = 6e9


class Layout(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Where a training's GPUs are, as far as its speed depends on it.

    Attributes:
        counts: GPUs on each of its nodes, the most first.
        device: how fast its slowest GPU is; 1 is the GPU on which times were measured.
        bandwidth_bytes_s: of the slowest connection among its GPUs.
    """

    counts: tuple[int, ...]
    device: float = 1.0
    bandwidth_bytes_s: float = INSIDE_BYTES_S

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        counts = self.counts
        return counts[0] if len(counts) == 1 else sum(counts)  # asked for all the time


class Speed(Protocol):
    """How fast one training runs.

    Equal and hashable where two tell the same, so that training jobs that are alike are planned
    once.
    """

    def rate(self, layout: Layout) -> float:
        """Return the work done in a second, in the training's own unit; 0 where it cannot run."""


class UnknownSpeed(Struct, frozen=True, kw_only=True, cache_hash=True, tag="unknown"):
    """Speed of a training of which nothing is known; planned by its goodput alone."""

    def rate(self, layout: Layout) -> float:
        """Return 0: no run time can be told."""
        del layout
        return 0.0


class Fabric(Struct, frozen=True, kw_only=True):
    """How nodes are connected, and how fast their GPUs are; names that are missing are usual.

    Attributes:
        inside_bytes_s, between_bytes_s: bandwidth in each node and between each pair of nodes.
        inside: of nodes that differ, by name.
        between: of pairs that differ, by both names in order.
        devices: speed of GPUs by type; 1 where the type is missing.
    """

    inside_bytes_s: float = INSIDE_BYTES_S
    between_bytes_s: float = BETWEEN_BYTES_S
    inside: Mapping[str, float] = field(default_factory=dict)
    between: Mapping[tuple[str, str], float] = field(default_factory=dict)
    devices: Mapping[str, float] = field(default_factory=dict)

    def layout(self, counts: Mapping[str, int], types: Mapping[str, str] | None = None) -> Layout:
        """Return the layout of so many GPUs on each node.

        Args:
            counts: GPUs by node; at least one node.
            types: type of each node's GPUs, by node.
        """
        names = sorted(counts)
        if len(names) == 1:
            bandwidth_bytes_s = self.inside.get(names[0], self.inside_bytes_s)
        elif not self.between:
            bandwidth_bytes_s = self.between_bytes_s
        else:
            bandwidth_bytes_s = min(
                self.between.get((first, second), self.between_bytes_s)
                for number, first in enumerate(names)
                for second in names[number + 1 :]
            )
        return Layout(
            counts=tuple(sorted(counts.values(), reverse=True)),
            device=min(self.devices.get((types or {}).get(name, ""), 1.0) for name in names),
            bandwidth_bytes_s=bandwidth_bytes_s,
        )


def fabric_of(config: FabricConfig) -> Fabric:
    """Return how nodes are connected, as a configuration that was checked states it."""
    return Fabric(
        inside_bytes_s=parse_bandwidth_bytes_s(config.inside),
        between_bytes_s=parse_bandwidth_bytes_s(config.between),
        inside={node: parse_bandwidth_bytes_s(text) for node, text in config.inside_of.items()},
        between={
            (min(link.nodes), max(link.nodes)): parse_bandwidth_bytes_s(link.bandwidth)
            for link in config.link
        },
        devices=config.gpu_speeds,
    )


def gpus_by_node(allocation: Allocation) -> dict[str, int]:
    """Return how many GPUs an allocation has on each node; nodes without any are left out."""
    return {share.node: len(share.gpu_indices) for share in allocation if share.gpu_indices}


def gpu_count(allocation: Allocation) -> int:
    """Return the number of GPUs of an allocation."""
    return sum(len(share.gpu_indices) for share in allocation)


class Size(Struct, frozen=True, kw_only=True):
    """How much work a training is, in the unit of its speed.

    Attributes:
        with_start: the work was told from whole runs, so that the time which a training takes until
            its first step is in it; else it is the steps alone.
    """

    speed: Speed
    work: float
    with_start: bool = False


class Goodputs(NamedTuple):
    """The best of one training on each of some configurations; all arrays have their length.

    Attributes:
        goodput: samples per second, times the statistical efficiency; 0 where it cannot run.
        batch_per_gpu, accumulation: with which it is reached (counts), see `Batching`.
    """

    goodput: "NDArray[np.float64]"
    batch_per_gpu: "NDArray[np.int64]"
    accumulation: "NDArray[np.int64]"


class Goodput(Protocol):
    """The goodput of one adaptive training; can be pickled.

    Equal and hashable where two tell the same.
    """

    def best(
        self, gpu_type: str, nodes: "NDArray[np.int64]", gpus: "NDArray[np.int64]"
    ) -> Goodputs:
        """Return the best goodput and batching on each configuration.

        Args:
            gpu_type: of all its GPUs.
            nodes: nodes of each configuration, shape (configurations,).
            gpus: GPUs of each configuration in all, same shape.
        """

    def types(self) -> frozenset[str]:
        """Return the GPU types of which something is known."""


class AdaptiveProfile(Struct, frozen=True, kw_only=True):
    """What is known of an adaptive training at the moment of the snapshot.

    Attributes:
        goodput: on each configuration.
        scaling: what follows the allocation.
        age_s: since it was submitted, seconds.
        restarts: how often it was restarted or migrated.
        restart_s: expected time without progress of a further restart, seconds.
        gpus_min, gpus_max: that it may be given.
        left: of its work, as it reports that, in the unit of its goodput times seconds; None: it
            has not said how much there is, nor has another one of its kind.
        gpus_reached: the most on which it has run; 0: it has not run.
        gpu_types: on which it runs; empty: any.
        replica_gpus: GPUs of one replica by type; one where the type is missing.
        preemptible: it may be migrated while it runs.
    """

    goodput: Goodput
    scaling: Scaling
    age_s: float
    restarts: int
    restart_s: float
    gpus_min: int
    gpus_max: int
    left: float | None = None
    gpus_reached: int = 0
    gpu_types: frozenset[str] = frozenset()
    replica_gpus: Mapping[str, int] = field(default_factory=dict)
    preemptible: bool = True


class TrainingProfile(Struct, frozen=True, kw_only=True):
    """What is known of a training, waiting or running, at the moment of the snapshot.

    Attributes:
        arrived_s: when it was submitted, seconds since the epoch.
        deadline_s: by when it must be done, seconds since the epoch; None: there is no deadline.
        work: what is left of it, in the unit of its speed.
        total_work: what there was at the beginning.
        speed: how fast it runs where.
        gpus: numbers of GPUs that it may be given, ascending.
        startup_s: until its first step, seconds: of one that waits counted from its start, of one
            that runs from now.
        whole_startup_s: from its start to its first step, also of one that runs.
        movable: it can migrate: stop at a checkpoint and resume on other nodes or on another
            number of GPUs.
        movable_later: it cannot migrate now, but it can once its start, or a pause after a failed
            migration, is over.
        move_s: from the order to stop to its first further step, seconds: the cost of a move.
        guaranteed: whether it was guaranteed that the deadline will be met; None: nothing was said.
        request: what it requests: one chunk, of which every place has a GPU or more. A move of what
            runs is an allocation for it (see `gschedd.plan.elastic`); None: it cannot be moved.
        adaptive: what more is known where its batch and GPUs may be chosen; None: they may not.
    """

    job: int
    arrived_s: float
    deadline_s: float | None
    work: float
    total_work: float
    speed: Speed
    gpus: tuple[int, ...]
    startup_s: float = 0.0
    whole_startup_s: float = 0.0
    movable: bool = False
    movable_later: bool = False
    move_s: float = 0.0
    guaranteed: bool | None = None
    request: Request | None = None
    adaptive: AdaptiveProfile | None = None

    def run_time_s(self, layout: Layout) -> float:
        """Return how long the rest of it takes on a layout, seconds; infinite where it cannot.

        That is from its start, or from now on if it runs there.
        """
        return self.startup_s + self.work_time_s(layout)

    def work_time_s(self, layout: Layout) -> float:
        """Return how long it does steps on a layout, seconds; infinite where it cannot."""
        rate = self.speed.rate(layout)
        return self.work / rate if rate > 0 else float("inf")
