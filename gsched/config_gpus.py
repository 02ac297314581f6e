"""GPUs that the configuration file declares, ``[[node.gpu]]``; `gsched.config` has all tables."""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from gsched.errors import ConfigError

#: What ``[outside_gpu_use] action`` may say.
OUTSIDE_ACTIONS: Final = ("ignore", "warn", "avoid", "end")
#: What ``[node] gpu_fence`` may say.
GPU_FENCES: Final = ("auto", "bpf", "devices", "none")
_FILES_MAX = 16 * 1024
_RANGES = re.compile(r"\[([0-9,-]+)\]")


class GpuConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[node.gpu]]``: declared GPUs, for a machine that has none that NVML sees.

    Attributes:
        rate_mhz: multiprocessors times their highest clock, of each; 0: as ``gpu_rate_mhz`` of
            the node.
        files: device files, as ``/dev/nvidia[0-3]``, in the order of the GPUs, as many for each;
            jobs are kept from those of other GPUs.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    type: str = "declared"
    memory: str = "16gb"
    rate_mhz: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    files: tuple[str, ...] = ()


class OutsideConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[outside_gpu_use]``: processes on the GPUs of a node that belong to none of its jobs.

    Attributes:
        action: ``ignore`` them, ``warn`` (show them), ``avoid`` their GPUs, or ``end`` them.
        grace_s: for how long a process may stay that is ended; seconds.
        ignored: names of programs that may use GPUs in no job.
        unused_s: a GPU of a job is shown as unused after so long without a process on it; 0:
            never; seconds.
    """

    action: str = "avoid"
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    ignored: tuple[str, ...] = ("nvidia-cuda-mps-server",)
    unused_s: Annotated[float, msgspec.Meta(ge=0, le=604800)] = 600.0


def expanded(declared: GpuConfig) -> tuple[str, ...]:
    """Return the device files of declared GPUs: those of the first one, of the second one, ….

    Several patterns are of different files of each GPU: ``["/dev/nvidia[0-1]",
    "/dev/dri/renderD[128-129]"]``.

    Raises:
        ConfigError: a pattern cannot be read, or names not one file for each GPU.
    """
    columns = [_names(pattern) for pattern in declared.files]
    for pattern, names in zip(declared.files, columns, strict=True):
        if len(names) != declared.count:
            raise ConfigError(
                f"{pattern} names {len(names)} files for {declared.count} GPUs",
                hint="name one file for each GPU, as /dev/nvidia[0-3] for count = 4",
            )
    return tuple(name for row in zip(*columns, strict=True) for name in row)


def _names(pattern: str) -> list[str]:
    """Return what a pattern stands for: ``/dev/nvidia[0-1,4]`` is three files."""
    parts = _RANGES.split(pattern)
    bad = ConfigError(
        f"{pattern!r} cannot be read",
        hint="give absolute paths with at most one range, as /dev/nvidia[0-3]",
    )
    if not pattern.startswith("/") or len(parts) > 3 or set("".join(parts[::2])) & set("[]*?"):
        raise bad
    if len(parts) == 1:
        return [pattern]
    before, ranges, after = parts
    found: list[str] = []
    for term in ranges.split(","):
        first, dash, last = term.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise bad
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or len(found) + len(numbers) > _FILES_MAX:
            raise bad
        found += [f"{before}{number}{after}" for number in numbers]
    return found
