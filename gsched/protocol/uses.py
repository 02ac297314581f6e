"""What running attempts use at the moment, as nodes tell it and as users see it."""

from msgspec import Struct

from gsched.model.configuration import ConfigRow
from gsched.model.gpu_outside import GpuUse
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.health import HealthResult
from gsched.model.numbers import Count
from gsched.model.resources import LiveUse, Load, Usage


class Heartbeat(Struct, frozen=True, kw_only=True, tag="heartbeat", omit_defaults=True):
    """How busy the node is, and what each running attempt has used so far.

    Attributes:
        usage: job, attempt and its use.
        problem, cpu_binding: as in `gsched.protocol.node.Register`; a change is told at once.
        gpu_sharing: likewise; a change of its words or of demoted jobs is told at once.
        config: likewise; told at once after a reload.
        health: likewise; that a check fails, or passes again, is told at once.
        gpu_use: likewise; that a process has come or gone is told at once.
    """

    load: Load
    usage: tuple[tuple[Count, Count, Usage], ...]
    problem: str = ""
    cpu_binding: str = ""
    gpu_sharing: GpuSharing | None = None
    gpu_use: GpuUse | None = None
    health: tuple[HealthResult, ...] = ()
    config: ConfigRow | None = None


class Uses(Struct, frozen=True, kw_only=True, tag="uses", omit_defaults=True):
    """What running attempts use at the moment, where that has changed; not kept by the head.

    Sent only to heads that have said in `gsched.protocol.node.Welcome` that they take it.

    Attributes:
        uses: job, attempt and its use.
        load: how busy the node is; None: as told before.
    """

    uses: tuple[tuple[Count, Count, LiveUse], ...] = ()
    load: Load | None = None


class LiveRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running job uses at the moment, on all its nodes together.

    Attributes:
        at_s: when its nodes have told it; of several the oldest, seconds since the epoch.
        cpu_cores: busy.
        gpus: busy GPUs: the sum of the utilisations, of a shared one the job's own part.
        gpus_held: whole GPUs that it has, and shared ones.
        gpus_idle: so many of them are idle, as far as that is known.
        idle_since_s: since when the first of them is, seconds since the epoch; 0: none is.
    """

    at_s: float
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    gpus: float = 0.0
    gpus_held: int = 0
    gpus_idle: int = 0
    idle_since_s: float = 0.0
    gpu_memory_bytes: int = 0

    @property
    def gpu_percent(self) -> float:
        """Return the mean utilisation of its GPUs, percent."""
        return 100.0 * self.gpus / self.gpus_held if self.gpus_held else 0.0
