"""What is remembered of an attempt on one of its nodes."""

from msgspec import Struct, structs

from gsched.model.resources import Share, Usage
from gschedd.plan.load import Kind, NodeRates, Use


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt on one node, when it was over.

    Attributes:
        rates: of the node, as they were then.
        wall_s: run time.
        used: mean use over the run.
        cpu_peak_cores: the most between two samples, at least the mean.
        memory_peak_bytes: the most in one sample; 0 where unknown.
        gpu_memory_peak_bytes: likewise.
        read_bytes, write_bytes: of the whole run.
        succeeded: it ended by itself with exit code 0, so its run time is that of the whole work.
    """

    kind: Kind
    node: str
    rates: NodeRates
    wall_s: float
    used: Use
    ended_s: float
    cpu_peak_cores: float = 0.0
    memory_peak_bytes: int = 0
    gpu_memory_peak_bytes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    succeeded: bool = True

    @property
    def cpu_s(self) -> float:
        """Return the CPU time in core-seconds."""
        return self.used.cpu_cores * self.wall_s


def record_of(
    kind: Kind, share: Share, rates: NodeRates, usage: Usage, *, ended_s: float, succeeded: bool
) -> Record | None:
    """Return the record of a part that has ended, or None if it ran too short to say anything."""
    if usage.wall_s <= 0:
        return None
    if not share.gpu_indices:
        # A part of a GPU is what the others on it have left: it says nothing of what a job of this
        # kind would do with a whole one.
        usage = structs.replace(usage, gpu_memory_mean_bytes=0, gpu_memory_peak_bytes=0)
    return Record(
        kind=kind,
        node=share.node,
        rates=rates,
        wall_s=usage.wall_s,
        used=Use(
            cpu_cores=usage.cpu_s / usage.wall_s,
            memory_bytes=usage.memory_mean_bytes or usage.memory_peak_bytes,
            gpus=usage.gpu_util_mean_percent / 100 * len(share.gpu_indices),
            gpu_memory_bytes=usage.gpu_memory_mean_bytes or usage.gpu_memory_peak_bytes,
        ),
        ended_s=ended_s,
        cpu_peak_cores=max(usage.cpu_peak_cores, usage.cpu_s / usage.wall_s),
        memory_peak_bytes=usage.memory_peak_bytes,
        gpu_memory_peak_bytes=usage.gpu_memory_peak_bytes,
        read_bytes=usage.read_bytes,
        write_bytes=usage.write_bytes,
        succeeded=succeeded,
    )
