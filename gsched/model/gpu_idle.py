"""GPUs of running jobs that are not used."""

from msgspec import Struct

from gsched.model.numbers import Amount, Count, Number


class IdleGpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU of an attempt, whole or shared, that the attempt has not used for a while.

    Attributes:
        index: of the GPU on its node.
        idle_s: for how long, by the clock of the node.
        held: a process of the job is on it.
    """

    index: Number
    idle_s: Amount
    held: bool = False


class IdleGpuRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An idle GPU of a node as commands show it; ``since_s``: seconds since the epoch."""

    index: Number
    job: Count
    since_s: Amount
    held: bool = False
