"""UseSamples of the use of nodes, GPUs and jobs, which the head gives to its monitor."""

from msgspec import Struct

from gsched.model.resources import LiveUse, Load


class GpuUseSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU.

    Attributes:
        jobs: that have it, or shares of it, by number.
        idle: a job has it and does not use it; ``unused``: none of its processes is on it, too.
        outside: processes of no job are on it.
    """

    index: int
    type: str = ""
    memory_bytes: int = 0
    jobs: tuple[int, ...] = ()
    idle: bool = False
    unused: bool = False
    outside: bool = False


class NodeUseSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node; ``load`` is None until it has reported one, and its GPUs' use is there."""

    name: str
    state: str
    drained: bool = False
    cpus: int = 0
    cpus_free: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    gpus: tuple[GpuUseSample, ...] = ()
    load: Load | None = None
    load_s: float | None = None
    power: str = ""


class JobUseSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One running job; ``use`` is None until its nodes have reported one."""

    id: int
    user: str
    queue: str
    cpus: int
    gpus: int = 0
    use: LiveUse | None = None


class UseSamples(Struct, frozen=True, kw_only=True):
    """``GET /v1/samples``: all nodes and running jobs at a moment, for the head's own account."""

    now_s: float
    nodes: tuple[NodeUseSample, ...]
    jobs: tuple[JobUseSample, ...]
