"""The tables ``[limits]`` and ``[staging]`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Struct

from gsched.model.limits import MAX_DETACH_TIMEOUT_S


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limits]``: what users may take and keep, and what their jobs get that state nothing.

    Attributes:
        default_memory_per_cpu_bytes: limit of jobs without ``-l mem``, for each CPU; 0: none.
        default_memory_per_gpu_bytes: likewise of chunks with GPUs, for each GPU; 0: as for CPUs.
        max_interactive_walltime_s: limit of interactive jobs, which is also the walltime of those
            that state none; 0: that of their queue.
        max_detach_timeout_s: the longest detach timeout; 0: jobs may have none at all.
        snapshot_bytes: of all files of a snapshot together, and of its archive.
        snapshot_files: their number.
        snapshots_total_bytes: of all archives on the head; 0: a tenth of its file system.
        snapshots_per_user_bytes: of those of one user; 0: a quarter of ``snapshots_total_bytes``.
        snapshots_total: number of all archives on the head.
        snapshots_per_user: of those of one user.
        texts_per_user_bytes: of scripts, environments and lines of arrays that jobs of a user have,
            also finished ones; 0: no limit.
    """

    default_memory_per_cpu_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    default_memory_per_gpu_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    max_interactive_walltime_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    max_detach_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DETACH_TIMEOUT_S)] = 0.0
    snapshot_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**33)] = 268_435_456
    snapshot_files: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20_000
    snapshots_total_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    snapshots_per_user_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0
    snapshots_total: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20_000
    snapshots_per_user: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1000
    texts_per_user_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 4_294_967_296


class StagingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[staging]``: how a node copies files for ``-W stagein=`` and ``stageout=``.

    Attributes:
        usecp: pairs of ``HOST:PREFIX`` and the directory of the node that is the same as PREFIX on
            HOST, which may have wildcards; files below it are copied with cp.
        copy: the command for all other files, as words; source and target follow.
        timeout_s: of all copies of a job before its start together, and of all after its end.
    """

    usecp: tuple[tuple[str, str], ...] = ()
    copy: tuple[str, ...] = ("scp", "-Brp")
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 600.0
