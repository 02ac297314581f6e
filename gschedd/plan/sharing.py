"""Which GPU a job shares with others, and what is left of each.

A GPU with a share on it is not free for jobs that need whole GPUs; with the last share it becomes
so again. Its shares are the reservation, so nothing else has to be started, kept or ended for it.

Source: Wang et al., "GPU sharing method for deep learning clusters with priorities", Computer
Science 2023, 50(6): 86-91, Algorithm 1. The paper draws among the GPUs that are left with a
probability that falls with the number of jobs of the class ``low`` and with the memory in use;
here the best one is chosen, ties by device, so that equal snapshots give equal plans.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, structs

from gsched.config.nodes import SharingRules
from gsched.model.resources import WHOLE_PERCENT, Gpu, GpuShare, GpuShareRequest
from gsched.model.states import ShareClass

#: While a head has no other rules.
DEFAULT_RULES: Final = SharingRules()


class SharedGpu(Struct, frozen=True, kw_only=True):
    """A GPU on which jobs have shares.

    Attributes:
        percent, memory_bytes: that nobody has yet.
        high, low: number of jobs by class.
        utilisation: of the last minute, a fraction; with what is assumed of jobs that came since.
    """

    gpu: Gpu
    percent: int
    memory_bytes: int
    high: int = 0
    low: int = 0
    utilisation: float = 0.0

    def holds(self, share: GpuShare) -> bool:
        """Return whether a share may still be given of it, as far as nothing is given twice."""
        most = self.gpu.share_bytes_max
        return (
            share.percent <= self.percent
            and share.memory_bytes <= self.memory_bytes
            and (most is None or share.memory_bytes <= most)
            and not (self.high and share.share_class is ShareClass.HIGH)
        )

    def taken(self, share: GpuShare, *, utilisation: float = 0.0) -> "SharedGpu":
        """Return what is left of it, and how busy it is assumed to be, after a share."""
        high = share.share_class is ShareClass.HIGH
        return structs.replace(
            self,
            percent=self.percent - share.percent,
            memory_bytes=self.memory_bytes - share.memory_bytes,
            high=self.high + high,
            low=self.low + (not high),
            utilisation=self.utilisation + utilisation,
        )

    def given(self, share: GpuShare) -> "SharedGpu":
        """Return it with a share given back."""
        high = share.share_class is ShareClass.HIGH
        return structs.replace(
            self,
            percent=self.percent + share.percent,
            memory_bytes=self.memory_bytes + share.memory_bytes,
            high=self.high - high,
            low=self.low - (not high),
        )


def untouched(gpu: Gpu) -> SharedGpu:
    """Return a GPU that is about to be shared."""
    return SharedGpu(gpu=gpu, percent=WHOLE_PERCENT, memory_bytes=gpu.memory_bytes)


def share_of_gpu(wanted: GpuShareRequest, gpu: Gpu) -> GpuShare:
    """Return what a request is on a GPU: without memory, as much of it as of its time."""
    memory_bytes = wanted.memory_bytes or gpu.memory_bytes * wanted.percent // WHOLE_PERCENT
    return GpuShare(
        index=gpu.index,
        percent=wanted.percent,
        memory_bytes=memory_bytes,
        share_class=wanted.share_class,
    )


class Device(Struct, frozen=True, kw_only=True):
    """A GPU that is shared already, and its node."""

    node: str
    shared: SharedGpu


def admitted(
    wanted: GpuShareRequest, devices: Iterable[Device], rules: SharingRules
) -> Iterator[Device]:
    """Yield the shared GPUs that a job may join: the filter of Algorithm 1."""
    low = wanted.share_class is ShareClass.LOW
    for device in devices:
        shared = device.shared
        if not shared.holds(share_of_gpu(wanted, shared.gpu)):
            continue
        if low and shared.utilisation > rules.utilisation_max:
            continue
        if low and shared.low >= rules.low_max + rules.low_max_printed:
            continue
        yield device


#: The device that comes first is chosen; the last two items make all keys different.
DeviceKey = tuple[bool, int, int, int, str, int]


def preference(wanted: GpuShareRequest, device: Device) -> DeviceKey:
    """Return by what admitted GPUs are ranked, best first: the worst fit of Algorithm 1.

    A job of the class ``low`` prefers GPUs without one of the class ``high``. Then, for both
    classes: the fewest jobs of the class ``low``, the most memory left, the most time left.
    """
    shared = device.shared
    return (
        wanted.share_class is ShareClass.LOW and shared.high > 0,
        shared.low,
        -shared.memory_bytes,
        -shared.percent,
        device.node,
        shared.gpu.index,
    )


def choose(
    wanted: GpuShareRequest, devices: Iterable[Device], rules: SharingRules
) -> Device | None:
    """Return the shared GPU that a job joins by Algorithm 1; None: it needs another GPU."""
    return min(
        admitted(wanted, devices, rules), key=lambda each: preference(wanted, each), default=None
    )
