"""Shares of GPUs as the head's replies have them."""

from msgspec import Struct

from gsched.model.states import ShareClass


class ShareRow(Struct, frozen=True, kw_only=True):
    """A part of one GPU, asked for or owned.

    Attributes:
        percent: of the GPU's time.
        memory_bytes: of its memory; 0: as much of it as of its time.
        index: of the GPU on its node; None: it is not known yet.
    """

    percent: int
    memory_bytes: int
    share_class: ShareClass
    index: int | None = None


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
