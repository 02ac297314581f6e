"""Nodes as the head's API shows them."""

from msgspec import Struct

from gsched.model.configuration import ConfigRow
from gsched.model.gpu_idle import IdleGpuRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.resources import Load
from gsched.model.states import NodeState
from gsched.model.window import NodeWindow


class SharedGpuRow(Struct, frozen=True, kw_only=True):
    """A GPU on which jobs have shares.

    Attributes:
        percent, memory_bytes: that the jobs have together.
        gpu_memory_bytes: of the GPU.
        jobs: that share it, by id.
    """

    index: int
    percent: int
    memory_bytes: int
    gpu_memory_bytes: int
    jobs: tuple[int, ...]


class NodeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node. ``state`` is ``up``, ``unreachable``, with ``drained`` beside it.

    Attributes:
        gpus_free: GPUs of which no job has anything.
        shared_gpus: GPUs on which jobs have shares.
        sharing: the runtime by which jobs share its GPUs; empty: they cannot.
        load_s: when ``load`` was told: with a heartbeat, or since.
        gpu_tokens: how jobs take turns on its shared GPUs, as it has told last.
        cpu_binding: how it binds jobs to CPUs, or why not; empty: it does not tell.
        gpu_fence: what keeps jobs from GPUs of others, likewise. ``gpu_use``: who else is there.
        health: the last results of its health checks.
        config: how it has read its configuration file; None: it is not connected, or does not tell.
        gpus_idle: GPUs that jobs hold and do not use.
        windows: of maintenance, in order; in one that has begun the node counts as drained.
        power: ``powering_down``, ``powered_down`` or ``powering_up``; empty: it is on.
        faults: starts in a row that failed through the node's own fault.
        automatic: gsched has drained it itself.
        probe_due_s: when it is probed next; 0: not. ``probes_failed``: in a row.
        resumptions: how often it was resumed without an operator within a day.
        problem: why the node takes no new jobs by its own word; empty: it does.
        reason: why it takes no jobs, whoever said so.
        reason_s: since when, seconds since the epoch. ``reason_by``: who has drained it.
        identity: the beginning of the identity of its gnode.
        refused: in words, another gnode that wanted its place in the last minutes.
    """

    name: str
    state: str
    cpus: int
    cpus_free: int
    memory_bytes: int
    memory_free_bytes: int
    gpus: int = 0
    gpus_free: int = 0
    shared_gpus: tuple[SharedGpuRow, ...] = ()
    sharing: str = ""
    gpu_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    generic: dict[str, int] = {}
    generic_free: dict[str, int] = {}
    drained: bool = False
    vacating: bool = False
    problem: str = ""
    reason: str = ""
    reason_s: float = 0.0
    reason_by: str = ""
    address: str = ""
    version: str = ""
    since_s: float = 0.0
    heartbeat_s: float | None = None
    load: Load | None = None
    load_s: float | None = None
    identity: str = ""
    refused: str = ""
    jobs: tuple[int, ...] = ()
    faults: int = 0
    automatic: bool = False
    probe_due_s: float = 0.0
    probes_failed: int = 0
    resumptions: int = 0
    cpu_binding: str = ""
    gpu_fence: str = ""
    gpu_tokens: GpuSharing | None = None
    gpu_use: GpuUse | None = None
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None
    gpus_idle: tuple[IdleGpuRow, ...] = ()
    windows: tuple[NodeWindow, ...] = ()
    power: str = ""

    @property
    def is_down(self) -> bool:
        """Return whether it is not connected, and not because it is powered down."""
        return self.state != NodeState.UP and not self.power


class NodeList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``GET /v1/nodes``; ``warning`` says why what is shown may not be durable yet."""

    server: str
    now_s: float
    nodes: tuple[NodeRow, ...]
    warning: str = ""
