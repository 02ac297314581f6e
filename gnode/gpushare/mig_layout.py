"""MIG instances as the configuration wants them: made when nobody uses the GPU, or told why not.

All instances of a GPU are removed and made anew where they differ from the configuration: a GPU
that is not in use has none that anybody needs, and larger ones find their place only before smaller
ones.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pynvml

from gnode.hw.mig import MigGpu, MigInstanceProfile
from gnode.hw.nvml import Nvml
from gsched.config.nodes import MigConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOutcome:
    """What became of the instances of one GPU.

    Attributes:
        words: what is wrong, for people; empty: they are as wanted.
        waits: it is to be tried again once the GPU is not in use.
    """

    words: str = ""
    waits: bool = False


def wanted_of(tables: Sequence[MigConfig], count: int) -> dict[int, tuple[str, ...]]:
    """Return the instances that the configuration wants, by index of the GPU.

    Args:
        tables: ``[[gpu_share.mig]]``; one that names no GPU is for all that no other one names.
        count: of the GPUs of this node.
    """
    named = {index: table.instances for table in tables for index in table.gpus or ()}
    others = next((table.instances for table in tables if table.gpus is None), None)
    if others is not None:
        named = {**dict.fromkeys(range(count), others), **named}
    return dict(sorted(named.items()))


def lay_out(
    nvml: Nvml, wanted: Mapping[int, tuple[str, ...]], busy: Collection[int]
) -> dict[int, LayoutOutcome]:
    """Make the instances of GPUs as they are wanted; return what became of each GPU.

    Args:
        nvml: the library.
        wanted: names of profiles by index of the GPU; none: MIG is turned off.
        busy: GPUs of jobs, by index.
    """
    found: dict[int, LayoutOutcome] = {}
    for index, names in wanted.items():
        gpu = nvml.mig_gpu(index)
        if gpu is None:
            found[index] = LayoutOutcome(
                words=f"this node has no GPU {index}, which [[gpu_share.mig]] names"
            )
            continue
        try:
            found[index] = _one(gpu, names, is_busy=index in busy)
        except pynvml.NVMLError as error:
            found[index] = LayoutOutcome(
                words=f"{_reason(index, error)}{_present(gpu)}",
                waits=error.value == pynvml.NVML_ERROR_IN_USE,
            )
    return found


def _one(gpu: MigGpu, names: tuple[str, ...], *, is_busy: bool) -> LayoutOutcome:
    at = f"GPU {gpu.index}"
    try:
        is_on, is_pending = gpu.modes()
    except pynvml.NVMLError_NotSupported:
        return LayoutOutcome(words=f"{at} cannot have MIG instances" if names else "")
    present = gpu.partitions() if is_on else []
    has = sorted(each.profile.name for each in present)
    is_whole = all(each.whole for each in present)
    if is_on == is_pending == bool(names) and has == sorted(names) and is_whole:
        return LayoutOutcome()
    if is_on and (words := _unknown(gpu, names)):
        return LayoutOutcome(words=words)  # what is there stays
    if is_busy or gpu.is_used():
        who = "jobs use it" if is_busy else "a process uses it"
        return LayoutOutcome(
            words=f"{at} has {listed(has)} and is to have {listed(names)}: that waits, as {who}",
            waits=True,
        )
    for each in present:
        gpu.remove(each)
    if is_on != bool(names) or is_on != is_pending:
        result = gpu.set_mode(on=bool(names))
        if result != pynvml.NVML_SUCCESS:
            return _not_active(gpu.index, result, on=bool(names))
    words = _make(gpu, names) if names else ""
    if not words:
        log.info("%s had %s and has %s", at, listed(has), listed(names))
    return LayoutOutcome(words=words)


def _make(gpu: MigGpu, names: tuple[str, ...]) -> str:
    """Make the instances of a GPU that has none; return what is wrong, empty: nothing."""
    at, profiles = f"GPU {gpu.index}", gpu.profiles()
    if words := _unknown(gpu, names):
        return words
    for profile in sorted((profiles[name] for name in names), key=_largest_first):
        try:
            gpu.add(profile)
        except pynvml.NVMLError as error:
            words = f"{at}: {profile.name} of {listed(names)} cannot be made: {error}"
            return f"{words}{_present(gpu)}"
    return ""


def _unknown(gpu: MigGpu, names: tuple[str, ...]) -> str:
    """Return which profile a GPU does not have, empty: none; MIG has to be on."""
    profiles = gpu.profiles()
    unknown = [name for name in names if name not in profiles]
    if not unknown:
        return ""
    has = ", ".join(sorted(profiles))
    return f"GPU {gpu.index} has no MIG profile {unknown[0]}: it has {has}"


def _largest_first(profile: MigInstanceProfile) -> tuple[int, str]:
    return -profile.slices, profile.name


def _not_active(index: int, result: int, *, on: bool) -> LayoutOutcome:
    mode = "on" if on else "off"
    if result == pynvml.NVML_ERROR_IN_USE:
        words = f"MIG of GPU {index} cannot be turned {mode} while a program has the GPU open, as "
        return LayoutOutcome(words=f"{words}monitoring does: that waits", waits=True)
    if result == pynvml.NVML_ERROR_RESET_REQUIRED:
        words = f"MIG of GPU {index} is {mode} after a reset: `nvidia-smi --gpu-reset -i {index}`, "
        return LayoutOutcome(words=f"{words}or restart the machine; then restart gnode")
    return LayoutOutcome(words=_reason(index, pynvml.NVMLError(result)))


def _reason(index: int, error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_NoPermission):
        return f"gnode may not change MIG of GPU {index}: run it as root"
    return f"the MIG instances of GPU {index} cannot be changed: {error}"


def _present(gpu: MigGpu) -> str:
    try:
        now = [each.profile.name for each in gpu.partitions()] if gpu.modes()[0] else []
    except pynvml.NVMLError:
        return ""
    return f"; it has {listed(now)}"


def listed(names: Sequence[str]) -> str:
    """Return ``2 x 1g.10gb, 3g.40gb``, or ``no instances``."""
    counts = {name: names.count(name) for name in sorted(names)}
    words = (name if count == 1 else f"{count} x {name}" for name, count in counts.items())
    return ", ".join(words) or "no instances"
