"""The logarithms that gsched's own predictor works with: costs differ by factors, not by sums."""

import math
from enum import IntEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from gschedd.models.records import Record
from gschedd.plan.load import Kind, NodeRates, Use


class Q(IntEnum):
    """The predicted quantities, as places in tuples."""

    CPU = 0
    MEMORY = 1
    GPU = 2
    GPU_MEMORY = 3
    WALL = 4


#: The same as plain numbers, for what runs for every job: a member of an enumeration is slow to
#: hash, and slow as a place.
PLACES: Final = tuple(map(int, Q))
CPU, MEMORY, GPU, GPU_MEMORY, WALL = PLACES

#: What is less than this counts as none: busy cores, bytes, busy GPUs, bytes, seconds.
FLOORS: Final = (0.01, 1024.0**2, 0.01, 1024.0**2, 0.1)
LOG_FLOORS: Final = tuple(math.log(floor) for floor in FLOORS)

Logs = tuple[float, ...]  # one for each of Q
#: Kinds of which it is kept what follows from them: the same few are requested again and again.
MAX_KEPT: Final = 4_096


class Sample(Struct, frozen=True, kw_only=True):
    """One run in logarithms.

    Attributes:
        logs: the measured quantities.
        requested: by the user, where that is stated and comparable, else None.
        speed: of the node's processor that the job is bound to.
        whole: the job did all its work.
    """

    logs: Logs
    requested: tuple[float | None, ...]
    node: str
    speed: float
    on_gpu: bool
    started_s: float
    ended_s: float
    whole: bool


def sample_of(record: Record, requested: tuple[float | None, ...]) -> Sample:
    """Return the logarithms of a run, with those of what was requested."""
    used = record.used
    values = (used.cpu_cores, used.memory_bytes, used.gpus, used.gpu_memory_bytes, record.wall_s)
    on_gpu = is_on_gpu(record.kind)
    return Sample(
        logs=tuple(math.log(max(v, least)) for v, least in zip(values, FLOORS, strict=True)),
        requested=requested,
        node=record.node,
        speed=speed_of(record.rates, on_gpu=on_gpu),
        on_gpu=on_gpu,
        started_s=record.ended_s - record.wall_s,
        ended_s=record.ended_s,
        whole=record.succeeded,
    )


def is_on_gpu(kind: Kind) -> bool:
    """Return whether a job is bound to its GPUs rather than to its cores."""
    return kind.gpus > 0


def speed_of(rates: NodeRates, *, on_gpu: bool) -> float:
    """Return the logarithm of the rate of one core, or of one GPU."""
    rate = rates.gpu_rate if on_gpu and rates.gpus else rates.core_rate
    return math.log(max(rate, 1e-9))


@lru_cache(MAX_KEPT)
def requested_of(kind: Kind) -> tuple[float | None, ...]:
    """Return the logarithms of what was requested, by quantity."""
    stated = (kind.cpus, kind.memory_bytes, kind.gpus, 0, kind.walltime_s)
    return tuple(math.log(value) if value > 0 else None for value in stated)


def use_of(logs: Logs, rates: NodeRates) -> Use:
    """Return the quantities of which these are the logarithms, as far as the node has them."""
    cpu, memory, gpu, gpu_memory, _ = logs
    least_cpu, least_memory, least_gpu, least_gpu_memory, _ = LOG_FLOORS
    has_gpus = rates.gpus > 0
    return Use(
        cpu_cores=min(math.exp(cpu), rates.cores) if cpu > least_cpu else 0.0,
        memory_bytes=math.exp(memory) if memory > least_memory else 0.0,
        gpus=min(math.exp(gpu), rates.gpus) if gpu > least_gpu else 0.0,
        gpu_memory_bytes=(
            math.exp(gpu_memory) if has_gpus and gpu_memory > least_gpu_memory else 0.0
        ),
    )
