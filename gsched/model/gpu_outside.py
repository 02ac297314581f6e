"""Processes on a node's GPUs that belong to no job of it."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from gsched.model.numbers import Amount, Count, Number, Size

#: Processes and GPUs of one node that its reports name at most; further ones are left out.
MAX_OUTSIDE_ROWS: Final = 256
_Word = Annotated[str, Meta(max_length=256)]


class OutsideUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of no job on one GPU.

    Attributes:
        index: of the GPU on its node.
        user: who runs it; a number where the node knows no name.
        program: its name.
        memory_bytes: of the GPU; 0: the driver does not tell.
        since_s: when it was seen first, seconds since the epoch.
        ends_s: when gnode ends it, likewise; 0: it does not.
    """

    index: Number
    pid: Count
    user: _Word
    program: _Word
    memory_bytes: Size = 0
    since_s: Amount = 0.0
    ends_s: Amount = 0.0


class GpuUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is on the GPUs of a node beside its jobs.

    Attributes:
        outside: processes of no job.
        avoid: no job is started on their GPUs.
    """

    outside: tuple[OutsideUse, ...] = ()
    avoid: bool = True

    @property
    def avoided(self) -> frozenset[int]:
        """Return the GPUs on which no job is to be started, by index."""
        return frozenset(each.index for each in self.outside) if self.avoid else frozenset()
