"""Schema of predictions beside what was measured, as `gsched.protocol.api` is of all else.

Errors are relative, (predicted - measured) / measured: 0.5 is half too much, -0.5 half too little.
"""

from msgspec import Struct


class UseRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in use on one node, averaged over time: busy cores and GPUs, bytes."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    gpus: float = 0.0
    gpu_memory_bytes: float = 0.0


class CostRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt costs on one node; ``wall_s`` is None where no run time was predicted."""

    use: UseRow
    wall_s: float | None = None


class ErrorsRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of each quantity; None where there is nothing to compare."""

    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    wall: float | None = None


class PredictionRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt on one of its nodes that has ended by itself.

    Attributes:
        kind: by which jobs are told to be alike; for the owner and operators only.
        succeeded: it ended with exit code 0.
        basis: what the prediction stood on: ``kind``, ``program``, ``request``, ``owner``, ``all``
            or, before there was any history, ``requested`` or ``node``; empty: none was made.
        records: how many past runs it stood on.
        high: what it was thought to exceed seldom.
    """

    job: int
    attempt: int
    node: str
    name: str
    user: str
    ended_s: float
    measured: CostRow
    succeeded: bool = True
    kind: str = ""
    basis: str = ""
    records: int = 0
    predicted: CostRow | None = None
    high: CostRow | None = None
    errors: ErrorsRow = ErrorsRow()


class SpreadRow(Struct, frozen=True, kw_only=True):
    """How large errors are, without sign: the median, and what nine in ten do not exceed."""

    runs: int
    median: float
    p90: float


class SpreadsRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The spread of the errors of each quantity; None where nothing was compared."""

    cpu: SpreadRow | None = None
    memory: SpreadRow | None = None
    gpu: SpreadRow | None = None
    gpu_memory: SpreadRow | None = None
    wall: SpreadRow | None = None


class PredictionsReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/history/predictions``: newest first, and the errors of all that matched.

    Attributes:
        learns: whether this head makes predictions at all.
        total_runs: how many matched; ``more`` is true where the limit cut the list.
        errors: over the newest 100,000 of them.
    """

    server: str
    now_s: float
    learns: bool
    rows: tuple[PredictionRow, ...]
    total_runs: int
    errors: SpreadsRow
    more: bool = False


class NodePredictionRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node.

    Attributes:
        has: all that it has, in the terms of `UseRow`.
        jobs: how many run there; of ``unpredicted`` ones nothing was predicted.
        predicted: what the others were expected to use there, together.
        measured: what was in use by the last heartbeat, also by what is no job; None before one.
        errors: of the newest predictions for this node that were scored, at most 100.
    """

    name: str
    has: UseRow
    jobs: int = 0
    unpredicted: int = 0
    predicted: UseRow = UseRow()
    measured: UseRow | None = None
    heartbeat_s: float | None = None
    errors: SpreadsRow = SpreadsRow()


class NodePredictions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/nodes/predictions``: all nodes, by name."""

    server: str
    now_s: float
    learns: bool
    nodes: tuple[NodePredictionRow, ...]
