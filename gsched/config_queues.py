"""The tables ``[[queue]]`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Struct

from gsched.model.limits import MAX_DETACH_TIMEOUT_S


class QueueConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[queue]]``: one queue.

    Attributes:
        name: what users write after ``-q``.
        policy: how its jobs are chosen: one of `gsched.config.POLICIES`; the same for all queues.
        priority: added to the priority of its jobs.
        max_walltime_s: jobs that ask for more are refused; 0: no limit.
        default_walltime_s: limit of jobs that state none; 0: ``max_walltime_s``.
        walltime_extension: by how much users can extend a running job in all, as ``4h`` or
            ``50%`` of its walltime; ``0``: not at all; empty: up to ``max_walltime_s``.
        walltime_extensions_per_user: running jobs that a user can have extended; 0: any number.
        enabled: whether it takes jobs.
        started: whether its jobs are started.
        detach_timeout_s: as in ``[head]``, for its jobs; -1: that of ``[head]``.
        max_interactive_walltime_s, max_detach_timeout_s, default_memory_per_cpu_bytes,
            default_memory_per_gpu_bytes: as in ``[limits]``, for its jobs; -1: that of
            ``[limits]``; 0: none.
    """

    name: str
    policy: str = "balance"
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    max_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    default_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    walltime_extension: str = ""
    walltime_extensions_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    enabled: bool = True
    started: bool = True
    detach_timeout_s: Annotated[float, msgspec.Meta(ge=-1, le=MAX_DETACH_TIMEOUT_S)] = -1.0
    max_interactive_walltime_s: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    max_detach_timeout_s: Annotated[float, msgspec.Meta(ge=-1, le=MAX_DETACH_TIMEOUT_S)] = -1.0
    default_memory_per_cpu_bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**50)] = -1
    default_memory_per_gpu_bytes: Annotated[int, msgspec.Meta(ge=-1, le=2**50)] = -1
