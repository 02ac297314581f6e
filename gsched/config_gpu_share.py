"""The table ``[gpu_share]`` of the configuration file; `gsched.config` has all tables."""

from typing import Annotated, Final

import msgspec
from msgspec import Struct

#: What ``[gpu_share] runtime`` may name, beside runtimes of other packages.
SHARE_RUNTIMES: Final = ("none", "mps", "mig", "hami-core", "colocate", "interception")
#: Those of them that have not been confirmed on GPUs yet.
#: Entry points by which a site's packages add runtimes.
RUNTIME_GROUP: Final = "gsched.gpu_runtimes"
#: C compilers for the runtime ``interception``, the first that there is.
SHARE_COMPILERS: Final = ("cc", "gcc", "clang")
#: Where NVIDIA's driver puts its library, for the runtime ``interception``.
SHARE_DRIVERS: Final = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
)
#: What ``[gpu_share] fail`` may say.
SHARE_FAILURES: Final = ("closed", "open")
#: What ``[gpu_share] overlap_action`` may say.
SHARE_ACTIONS: Final = ("demote", "kill")


class MigConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[gpu_share.mig]]``: MIG instances that gnode makes (runtime ``mig``).

    Attributes:
        gpus: by index; None: all that no other table names.
        instances: names of profiles, as ``1g.10gb``; none: MIG is turned off.
    """

    instances: tuple[str, ...]
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...] | None = None


class GpuShareConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[gpu_share]``: how jobs share GPUs; keys with low and utilisation are the head's.

    Attributes:
        runtime: how this node isolates them: one of `share_runtimes`; ``none``: they share none.
        driver: path of the CUDA driver's library, ``libcuda.so.1``; empty: found.
        fail: whether launches pass (``open``) or are refused (``closed``) without token daemon.
        patience_s: how long a job waits for the token daemon before ``fail`` applies, seconds.
        drain_max_s: a job that keeps the GPU busy so long after it lost the token is overtaken.
        overlaps_max: a job that is overtaken so often in a row is demoted or killed; 0: never.
        opportunistic_percent: part of the time in which low jobs launch beside a high one that is
            never idle, percent; 0: none.
        overlap_action: which of the two: one of `SHARE_ACTIONS`.
        watchdog_s: how often NVML is compared with what jobs may use; 0: never.
        context_memory: GPU memory of a process that interception does not see, as ``1gb``.
        context_reserve: GPU memory of each process that is taken from its job's share, for what
            interception does not see; ``0``: none.
        mps_pipe_dir: directory of the pipes of the MPS control daemon (runtime ``mps``).
        hami_library: path of ``libvgpu.so`` (runtime ``hami-core``).
        hami_sm_limit: whether that library also limits the use of multiprocessors.
        mig: MIG instances that gnode makes; none: it takes those that are there.
        options: of a runtime of another package, which reads and checks them.
        low_max: jobs of the class ``low`` on one GPU.
        low_max_printed: as the listing of the published algorithm compares, one more.
        utilisation_max: a GPU with a higher utilisation in the last minute gets no further job of
            the class ``low``; a fraction.
        utilisation_assumed: added to it for each job that has come since it was measured.
    """

    runtime: str = "none"
    driver: str = ""
    fail: str = "open"
    patience_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    drain_max_s: Annotated[float, msgspec.Meta(ge=0.01, le=3600)] = 0.5
    overlaps_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 3
    opportunistic_percent: Annotated[float, msgspec.Meta(ge=0, le=50)] = 2.0
    overlap_action: str = "demote"
    watchdog_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    context_memory: str = "1gb"
    context_reserve: str = "0"
    mps_pipe_dir: str = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
    hami_library: str = ""
    hami_sm_limit: bool = False
    mig: tuple[MigConfig, ...] = ()
    options: dict[str, str | int | float | bool] = {}
    low_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    low_max_printed: bool = False
    utilisation_max: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8
    utilisation_assumed: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3


def share_runtimes() -> tuple[str, ...]:
    """Return what ``[gpu_share] runtime`` may name here, with the runtimes of other packages."""
    from importlib.metadata import entry_points  # late: it looks at all installed packages

    others = {entry.name for entry in entry_points(group=RUNTIME_GROUP)}
    return (*SHARE_RUNTIMES, *sorted(others.difference(SHARE_RUNTIMES)))
