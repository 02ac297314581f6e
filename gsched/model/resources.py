"""Requests, capacities and allocations: what a job requests, what a node has, what was given."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct

from gsched.model.gpu_idle import IdleGpu
from gsched.model.numbers import Amount, Count, Number, Size
from gsched.model.states import Placement, ShareClass

#: Shorter runs are not compared with the CPUs that they had, seconds: the CPU time of a run has the
#: start of its processes, a millisecond, which is before the moment from which its time counts.
MEASURED_LEAST_S: Final = 1.0
#: A whole GPU.
WHOLE_PERCENT: Final = 100

Percent = Annotated[int, Meta(ge=1, le=WHOLE_PERCENT)]
Generic = tuple[tuple[str, Number], ...]  # consumable resources by name, sorted, no zero counts


class GpuShareRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What is asked of one GPU by a job that shares it.

    Attributes:
        percent: of the GPU's time, 1 to 100.
        memory_bytes: of the GPU's memory; 0: as much of it as of its time.
        share_class: against the other jobs on the GPU.
    """

    percent: Percent
    memory_bytes: Size = 0
    share_class: ShareClass = ShareClass.LOW


class GpuShare(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt owns of one GPU.

    Attributes:
        index: of the GPU on its node.
        percent: of the GPU's time; a whole GPU is 100.
        memory_bytes: of the GPU's memory; 0 where the whole GPU is owned.
        share_class: against the other jobs on the GPU.
    """

    index: Number
    percent: Percent = WHOLE_PERCENT
    memory_bytes: Size = 0
    share_class: ShareClass = ShareClass.HIGH


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What is asked of one place, ``count`` times.

    Attributes:
        gpus: whole GPUs.
        ranks: MPI processes, as lines of the node file (``mpiprocs``); 0: as many as CPUs.
        threads: of each of them (``ompthreads``); 0: as many as CPUs.
        gpu_share: of one GPU more, which other jobs may use as well; None: nothing.
    """

    count: Number = 1
    cpus: Number = 1
    gpus: Number = 0
    gpu_type: str = ""
    memory_bytes: Size = 0
    features: tuple[str, ...] = ()
    generic: Generic = ()
    gpu_share: GpuShareRequest | None = None
    ranks: Number = 0
    threads: Number = 0


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What a job requests, all of it at once.

    Attributes:
        chunks: the places asked for; the total number of places is the sum of their counts.
        placement: whether places may share nodes.
        exclusive: nobody else may be on the nodes.
        places_max: up to so many places are taken, if that is more than what is requested: a
            training that runs on 1 to 8 GPUs asks for one chunk of one GPU, 1 to 8 times.
    """

    chunks: tuple[Chunk, ...] = (Chunk(),)
    placement: Placement = Placement.SCATTER
    exclusive: bool = False
    places_max: Number = 0

    @property
    def places(self) -> int:
        """Return the number of places (Torque's nodect)."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def cpus(self) -> int:
        """Return the CPUs of all places together."""
        return sum(chunk.count * chunk.cpus for chunk in self.chunks)

    @property
    def gpus(self) -> int:
        """Return the whole GPUs of all places together."""
        return sum(chunk.count * chunk.gpus for chunk in self.chunks)

    @property
    def gpu_share(self) -> GpuShareRequest | None:
        """Return the share of a GPU that is requested; None: there is none."""
        for chunk in self.chunks:  # a plain loop, as each job is looked at several times
            if chunk.gpu_share:
                return chunk.gpu_share
        return None

    @property
    def takes_gpus(self) -> bool:
        """Return whether GPUs are requested, or a share of one."""
        return self.gpus > 0 or self.gpu_share is not None

    @property
    def memory_bytes(self) -> int:
        """Return the memory of all places together, bytes; 0 if none was requested."""
        return sum(chunk.count * chunk.memory_bytes for chunk in self.chunks)


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node.

    Attributes:
        uuid: empty for a declared (pretended) one.
        rate_mhz: what it can do: its multiprocessors times their highest clock; 0: unknown.
        share_bytes_max: memory of the largest share of it, as of its MIG instances; None: all.
    """

    index: Count
    type: str = ""
    memory_bytes: Count = 0
    uuid: str = ""
    rate_mhz: Amount = 0.0
    share_bytes_max: Count | None = None


class Inventory(Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """What a node has.

    Attributes:
        cpus: how many jobs can be given.
        cpu_capacity_cores: cores' worth of CPU time that they really have, where that is not
            ``cpus``: a node may be confined, or offer more CPUs than there are; 0: ``cpus``.
        cpu_clock_mhz: the highest clock of its cores, on average; 0: unknown.
    """

    cpus: Count
    memory_bytes: Count
    cpu_capacity_cores: Amount = 0.0
    cpu_clock_mhz: Amount = 0.0
    gpus: tuple[Gpu, ...] = ()
    features: tuple[str, ...] = ()
    generic: Generic = ()

    @property
    def cores(self) -> float:
        """Return the cores' worth of CPU time that jobs really find here."""
        return self.cpu_capacity_cores if self.cpu_capacity_cores > 0 else self.cpus


class Share(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt owns on one node.

    Attributes:
        node: the node's name.
        slots: how many places of the request lie here (lines in PBS_NODEFILE are ``cpus``).
        gpu_indices: the whole GPUs, by index, ascending.
        gpu_shares: GPUs that other attempts may use as well, and how much of each is owned.
    """

    node: str
    cpus: Number
    slots: Number = 1
    gpu_indices: tuple[Number, ...] = ()
    memory_bytes: Size = 0
    generic: Generic = ()
    exclusive: bool = False
    gpu_shares: tuple[GpuShare, ...] = ()

    @property
    def gpus_held(self) -> Iterator[GpuShare]:
        """Yield what is owned of each GPU, whole ones first: all counting of GPUs begins here."""
        yield from (GpuShare(index=index) for index in self.gpu_indices)
        yield from self.gpu_shares


Allocation = tuple[Share, ...]  # node rank order: the first is where a plain script runs


def crowded_gpu(held: Iterable[GpuShare], gpus: Iterable["Gpu"]) -> int | None:
    """Return a GPU of one node that is given to more than can have it; None: there is none.

    That is more than 100 % of its time, more than its memory, or to two jobs of the class ``high``.

    Args:
        held: all that is owned of the node's GPUs.
        gpus: of the node; the memory of one that is not among them is not known.
    """
    sizes = {gpu.index: gpu.memory_bytes for gpu in gpus}
    percent: Counter[int] = Counter()
    memory_bytes: Counter[int] = Counter()
    high: Counter[int] = Counter()
    for share in held:
        index = share.index
        percent[index] += share.percent
        memory_bytes[index] += share.memory_bytes
        high[index] += share.share_class is ShareClass.HIGH
        too_large = index in sizes and memory_bytes[index] > sizes[index]
        if percent[index] > WHOLE_PERCENT or high[index] > 1 or too_large:
            return index
    return None


def percent_held(shares: Iterable[Share]) -> int:
    """Return what is owned of GPUs together, in percent of one: 250 are two and a half."""
    return sum(held.percent for share in shares for held in share.gpus_held)


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used on one node, or over all its nodes when added up.

    CPU time is exact (wait4 of every reaped process, or the last sample); memory and GPU are from
    samples and 0 where none was taken.

    Attributes:
        cpu_peak_cores: busy cores between the two samples where they were most; the mean of the
            whole run where that is more, or was too short to be sampled.
        gpu_idle_s: for how long its GPUs were idle, added up, seconds.
    """

    wall_s: Amount = 0.0
    cpu_s: Amount = 0.0
    cpu_peak_cores: Amount = 0.0
    memory_peak_bytes: Count = 0
    memory_mean_bytes: Count = 0
    gpu_util_mean_percent: Amount = 0.0
    gpu_memory_peak_bytes: Count = 0
    gpu_memory_mean_bytes: Count = 0
    read_bytes: Count = 0
    write_bytes: Count = 0
    samples: Count = 0
    gpu_idle_s: Amount = 0.0


class LiveUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt uses on one node at the moment, or over all its nodes when added up.

    Attributes:
        cpu_s: CPU time since its start.
        cpu_cores: busy between the last two samples.
        memory_bytes: in use at the last sample.
        gpus: busy GPUs: the sum of the utilisations of its own, and its own part of a shared one.
        gpu_memory_bytes: in use at the last sample.
        gpus_idle: GPUs that it does not use; None: that is not known yet.
        terminal_idle_s: while there are any, for how long nothing was typed at its terminals; None:
            it has none.
    """

    cpu_s: Amount = 0.0
    cpu_cores: Amount = 0.0
    memory_bytes: Count = 0
    gpus: Amount = 0.0
    gpu_memory_bytes: Count = 0
    gpus_idle: tuple[IdleGpu, ...] | None = None
    terminal_idle_s: Amount | None = None


class Load(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy a node is, from its heartbeat.

    Attributes:
        load1: the machine's load average, also where the node is confined to a part of it.
        cpu_percent: of what the node really has (`Inventory.cpu_capacity_cores`), 0 to 100.
        memory_used_bytes: of the memory it has: its control group's, where that limits it.
        gpu_util_percent: of each GPU by index, when it was sampled last.
        gpu_minute_percent: of each GPU by index, mean of the last minute; empty: not measured.
    """

    load1: Amount = 0.0
    cpu_percent: Amount = 0.0
    memory_used_bytes: Count = 0
    gpu_util_percent: tuple[Amount, ...] = ()
    gpu_memory_used_bytes: tuple[Count, ...] = ()
    gpu_minute_percent: tuple[Amount, ...] = ()
