"""Access of attempts to the GPUs of a node: visible devices, and device files they may open.

``CUDA_VISIBLE_DEVICES`` tells a program which GPUs to use; a control group keeps it from all
others. Everything that runs for an attempt is in its group: ranks, shells, steps, containers,
staging.
"""

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from gnode.core.task import AttemptKey
from gnode.task import GpuFence
from gsched.model.resources import GpuShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The capability files of one MIG instance of the GPU with this index."""

    gpu: int
    files: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class GpuFiles:
    """Character devices of a node's GPUs, as ``MAJOR:MINOR``.

    Attributes:
        of_gpu: by index of the GPU: what opens it, all of it or any part.
        of_instance: by UUID of a MIG instance.
        others: of GPUs that this node does not offer: no job may open them.
    """

    of_gpu: Mapping[int, frozenset[str]] = field(default_factory=dict)
    of_instance: Mapping[str, Instance] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    @cached_property
    def all(self) -> frozenset[str]:
        """Every device that some job may not open."""
        instances = (each.files for each in self.of_instance.values())
        return self.others.union(*self.of_gpu.values(), *instances)

    def of(self, whole: Iterable[int], shared: Iterable[int], visible: str) -> frozenset[str]:
        """Return what opens the GPUs of an attempt.

        Args:
            whole: indices of the GPUs that it has for itself, with all MIG instances of them.
            shared: indices of the GPUs that it shares.
            visible: its CUDA_VISIBLE_DEVICES; of a shared GPU it opens the instance named there.
        """
        owned, parts = frozenset(whole), frozenset(shared)
        found = [self.of_gpu.get(index, frozenset()) for index in owned | parts]
        for uuid, instance in self.of_instance.items():
            if instance.gpu in owned or (instance.gpu in parts and uuid == visible):
                found.append(instance.files)
        return frozenset().union(*found) - self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccess:
    """How jobs reach the GPUs of this node, and what keeps them from those of others.

    Attributes:
        names: of each GPU for CUDA_VISIBLE_DEVICES, by index; one without a name has its index.
        version: of the control groups: 1 (devices controller), 2 (BPF); 0: jobs are not kept.
        root: directory below which attempts get their groups.
        files: what is to be kept from jobs.
        words: how, or why not; empty: there are no GPUs here.
    """

    names: tuple[str, ...] = ()
    version: int = 0
    root: str = ""
    files: GpuFiles = field(default_factory=GpuFiles)
    words: str = ""

    def visible(self, held: Iterable[GpuShare]) -> str:
        """Return CUDA_VISIBLE_DEVICES: CUDA numbers only the GPUs that a process can open."""
        indices = [each.index for each in held]
        if not indices:
            return ""
        named = {index: name for index, name in enumerate(self.names) if name}
        return ",".join(named.get(index, str(index)) for index in indices)

    def fence(
        self,
        key: AttemptKey,
        whole: Iterable[int] = (),
        shares: Iterable[GpuShare] = (),
        visible: str = "",
    ) -> GpuFence | None:
        """Return the fence of an attempt; None: nothing is kept from jobs here.

        Args:
            key: of the attempt.
            whole: indices of the GPUs that it has for itself.
            shares: parts of GPUs that it has.
            visible: the MIG instance that it has of a shared GPU.
        """
        every = self.files.all
        if not self.version or not every:
            return None
        allowed = self.files.of(whole, (each.index for each in shares), visible)
        return GpuFence(
            version=self.version,
            path=posixpath.join(self.root, key.name),
            denied=ranges(every - allowed),
            allowed=ranges(allowed),
        )


def ranges(devices: Iterable[str]) -> tuple[str, ...]:
    """Return devices in short: ``195:0``, ``195:1`` and ``195:3`` are ``195:0-1`` and ``195:3``."""
    found: list[tuple[int, int, int]] = []
    for major, minor in sorted(tuple(map(int, each.split(":"))) for each in devices):
        if found and (found[-1][0], found[-1][2] + 1) == (major, minor):
            found[-1] = (major, found[-1][1], minor)
        else:
            found.append((major, minor, minor))
    return tuple(
        f"{major}:{first}" if first == last else f"{major}:{first}-{last}"
        for major, first, last in found
    )


#: Of a node that keeps jobs from no GPU.
OPEN_ACCESS: Final = GpuAccess()
