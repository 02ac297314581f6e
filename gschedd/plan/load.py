"""How fast and how busy nodes are, what a job will cost, and what is asked to tell it."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct


class Kind(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What a job has in common with others before it; 0 where nothing was requested.

    Attributes:
        key: names the kind: jobs of one key are expected to cost the same.
        program: a wider family: the same program in another script.
        owner_uid: whose job it is.
        cpus, gpus, memory_bytes: asked for on one node.
        walltime_s: the limit asked for, seconds.
    """

    key: str
    program: str = ""
    owner_uid: int = -1
    cpus: int = 0
    gpus: int = 0
    memory_bytes: int = 0
    walltime_s: float = 0.0


class NodeRates(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What a node can do.

    Attributes:
        cores: cores' worth of CPU time; a confined node may have half of one.
        core_rate: of one core, in any unit that is the same for all nodes (its clock, say).
        gpu_rate: of one GPU, likewise (multiprocessors x clock).
        gpu_memory_bytes: of all GPUs together.
    """

    cores: float
    memory_bytes: int
    core_rate: float = 1.0
    gpus: int = 0
    gpu_rate: float = 1.0
    gpu_memory_bytes: int = 0

    @property
    def cpu_rate(self) -> float:
        """Return the rate of all cores together."""
        return self.cores * self.core_rate

    @property
    def all_gpus_rate(self) -> float:
        """Return the rate of all GPUs together."""
        return self.gpus * self.gpu_rate


class Use(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in use on one node, averaged over time.

    Attributes:
        cpu_cores: busy cores.
        gpus: busy GPUs: two that work half of the time are one.
    """

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    gpus: float = 0.0
    gpu_memory_bytes: float = 0.0

    def plus(self, other: "Use") -> "Use":
        """Return both together."""
        return Use(
            cpu_cores=self.cpu_cores + other.cpu_cores,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpus=self.gpus + other.gpus,
            gpu_memory_bytes=self.gpu_memory_bytes + other.gpu_memory_bytes,
        )

    def times(self, factor: float) -> "Use":
        """Return a multiple of it."""
        return Use(
            cpu_cores=self.cpu_cores * factor,
            memory_bytes=self.memory_bytes * factor,
            gpus=self.gpus * factor,
            gpu_memory_bytes=self.gpu_memory_bytes * factor,
        )


class NodeLoad(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as its last report has it.

    Attributes:
        running: attempts that own something there.
        reported_s: when the report was made, seconds since the epoch.
    """

    name: str
    rates: NodeRates
    used: Use = Use()
    running: int = 0
    reported_s: float = 0.0


class Basis(StrEnum):
    """What a prediction stands on, the nearest first."""

    KIND = "kind"
    PROGRAM = "program"
    REQUEST = "request"  # the owner's jobs that requested the same
    OWNER = "owner"
    ALL = "all"
    REQUESTED = "requested"  # nothing was ever recorded: what it requests
    NODE = "node"  # nothing was ever recorded: the load of the node, divided by its jobs


class Prediction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one job will cost on one node.

    Attributes:
        use: the expected use.
        high: a use that is seldom exceeded.
        wall_s, wall_high_s: run time, the same two; None where nothing is known.
        records: how many past runs it stands on.
    """

    use: Use
    high: Use
    basis: Basis
    wall_s: float | None = None
    wall_high_s: float | None = None
    records: int = 0

    @property
    def run_time(self) -> "PredictedTime":
        """Return what it says of the run time."""
        return PredictedTime(basis=self.basis, wall_high_s=self.wall_high_s, records=self.records)


class PredictedTime(Struct, frozen=True, kw_only=True):
    """What a `Prediction` says of the run time alone."""

    basis: Basis
    wall_high_s: float | None = None
    records: int = 0


#: Run times of past runs, seconds, the oldest first, and what each counts: at most 1.
PastRuns = tuple[tuple[float, float], ...]


class Predictor(Protocol):
    """Says beforehand what a job will cost. Equal histories give equal predictions."""

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:
        """Return what a job of a kind will cost on a node; never fails for want of history."""

    def run_time(self, kind: Kind, node: NodeLoad, now_s: float) -> PredictedTime:
        """Return what `predict` says of the run time: plans go by that alone."""
        return self.predict(kind, node, now_s).run_time

    def spread(self, kind: Kind) -> float | None:  # noqa: ARG002 -- nothing is known of any kind
        """Return by how much run times of a kind are missed; None where that is not known.

        It is the standard deviation of the logarithm.
        """
        return None

    def runs(self, kind: Kind, node: NodeLoad) -> PastRuns:  # noqa: ARG002 -- as above
        """Return the latest runs of the very kind as they would have been on a node, if known."""
        return ()


@runtime_checkable
class Learning(Protocol):
    """A predictor that goes on learning, and can return what it knows at one moment."""

    def detach(self, kinds: Collection[Kind], before: Predictor | None = None) -> Predictor:
        """Return what predicts the same of some kinds now, and learns nothing more.

        Args:
            before: what came of other kinds a moment ago; it is part of what is returned.
        """


class PredictionTable(Struct, frozen=True, kw_only=True):
    """A predictor that was asked already: of some kinds, on the nodes that had reported.

    Attributes:
        predictions: by kind and name of the node.
    """

    predictions: Mapping[Kind, Mapping[str, Prediction]]

    def predict(self, kind: Kind, node: NodeLoad, now_s: float) -> Prediction:  # noqa: ARG002 -- they are of one moment
        """Return what was said.

        Raises:
            KeyError: it has none of this kind on this node.
        """
        return self.predictions[kind][node.name]

    def run_time(self, kind: Kind, node: NodeLoad, now_s: float) -> PredictedTime:
        """Return what was said of the run time; raises as `predict` does."""
        return self.predict(kind, node, now_s).run_time

    def spread(self, kind: Kind) -> float | None:  # noqa: ARG002 -- it was not asked for it
        """Return that it is not known."""
        return None

    def runs(self, kind: Kind, node: NodeLoad) -> PastRuns:  # noqa: ARG002 -- as above
        """Return none: they were not asked for."""
        return ()


def predict_all(
    predictor: Predictor, kinds: Collection[Kind], loads: Mapping[str, NodeLoad], now_s: float
) -> PredictionTable:
    """Ask a predictor about each kind on each node."""
    return PredictionTable(
        predictions={
            kind: {name: predictor.predict(kind, load, now_s) for name, load in loads.items()}
            for kind in kinds
        }
    )
