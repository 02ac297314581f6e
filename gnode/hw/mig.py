"""MIG instances of one GPU, made and removed by NVML.

The calls are those of the NVML API reference, "Multi Instance GPU Management". A GPU instance has a
part of the memory and of the multiprocessors; CUDA uses a compute instance in it, and each GPU
instance has one here, as large as itself.
"""

from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

#: NVML's names of profiles begin with it.
_PREFIX: Final = "MIG "


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstanceProfile:
    """What a GPU instance can be.

    Attributes:
        name: as ``3g.40gb``.
        number: by which NVML knows it.
        slices: of the multiprocessors.
        most: instances of this profile on one GPU.
    """

    name: str
    number: int
    slices: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A GPU instance as it is.

    Attributes:
        profile: of it.
        handle: NVML's.
        computes: handles of its compute instances.
        whole: it has one compute instance, as large as itself.
    """

    profile: MigInstanceProfile
    handle: object
    computes: tuple[object, ...]
    whole: bool


class MigGpu:
    """One GPU; its methods raise ``NVMLError``, whose value is the reason.

    Args:
        library: the binding of NVML.
        index: of the GPU.
    """

    def __init__(self, library: ModuleType, index: int) -> None:
        self._library = library
        self.index = index

    @property
    def _handle(self) -> Any:
        """Return its handle: a change of the mode may invalidate an earlier one."""
        return self._library.nvmlDeviceGetHandleByIndex(self.index)

    def modes(self) -> tuple[bool, bool]:
        """Return whether MIG is on now, and whether it is to be after a reset of the GPU."""
        now, pending = self._library.nvmlDeviceGetMigMode(self._handle)
        on = self._library.NVML_DEVICE_MIG_ENABLE
        return now == on, pending == on

    def set_mode(self, *, on: bool) -> int:
        """Turn MIG on or off; return NVML's result of the activation, 0 for success."""
        library = self._library
        mode = library.NVML_DEVICE_MIG_ENABLE if on else library.NVML_DEVICE_MIG_DISABLE
        return int(library.nvmlDeviceSetMigMode(self._handle, mode))

    def is_used(self) -> bool:
        """Return whether a process uses the GPU, or an instance of it."""
        library, handle = self._library, self._handle
        for ask in (
            library.nvmlDeviceGetComputeRunningProcesses,
            library.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            try:
                if ask(handle):
                    return True
            except library.NVMLError as error:
                if error.value != library.NVML_ERROR_NOT_SUPPORTED:
                    raise
        return False

    def profiles(self) -> dict[str, MigInstanceProfile]:
        """Return what instances of this GPU can be, by name; MIG has to be on."""
        library, handle = self._library, self._handle
        found: dict[str, MigInstanceProfile] = {}
        for kind in range(int(library.NVML_GPU_INSTANCE_PROFILE_COUNT)):
            try:
                info = library.nvmlDeviceGetGpuInstanceProfileInfoV(handle, kind)
            except library.NVMLError:  # this GPU has no such profile, or the driver is older
                continue
            name = _name(info.name)
            found[name] = MigInstanceProfile(
                name=name,
                number=int(info.id),
                slices=int(info.sliceCount),
                most=int(info.instanceCount),
            )
        return found

    def partitions(self) -> list[Partition]:
        """Return the GPU instances; MIG has to be on."""
        library, handle = self._library, self._handle
        found: list[Partition] = []
        for profile in self.profiles().values():
            gpu_instances = _listed(
                library.c_nvmlGpuInstance_t,
                profile.most,
                lambda array, count, number=profile.number: library.nvmlDeviceGetGpuInstances(
                    handle, number, array, count
                ),
            )
            for each in gpu_instances:
                computes = self._computes(each)
                slices = [compute.slices for compute, _ in computes]
                found.append(
                    Partition(
                        profile=profile,
                        handle=each,
                        computes=tuple(one for _, one in computes),
                        whole=slices == [self._largest(each).slices],
                    )
                )
        return found

    def _compute_profiles(self, gpu_instance: object) -> Iterator[MigInstanceProfile]:
        """Yield what compute instances of a GPU instance can be."""
        library = self._library
        for kind in range(int(library.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)):
            try:
                info = library.nvmlGpuInstanceGetComputeInstanceProfileInfoV(
                    gpu_instance, kind, library.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except library.NVMLError:  # it cannot have this one
                continue
            yield MigInstanceProfile(
                name=_name(info.name),
                number=int(info.id),
                slices=int(info.sliceCount),
                most=int(info.instanceCount),
            )

    def _computes(self, gpu_instance: object) -> list[tuple[MigInstanceProfile, object]]:
        """Return profile and handle of each compute instance."""
        library = self._library
        return [
            (profile, each)
            for profile in self._compute_profiles(gpu_instance)
            for each in _listed(
                library.c_nvmlComputeInstance_t,
                profile.most,
                lambda array, count, number=profile.number: (
                    library.nvmlGpuInstanceGetComputeInstances(gpu_instance, number, array, count)
                ),
            )
        ]

    def _largest(self, gpu_instance: object) -> MigInstanceProfile:
        """Return the compute instance that takes all of a GPU instance."""
        return max(self._compute_profiles(gpu_instance), key=lambda profile: profile.slices)

    def remove(self, partition: Partition) -> None:
        """Remove a GPU instance and its compute instances."""
        for compute in partition.computes:
            self._library.nvmlComputeInstanceDestroy(compute)
        self._library.nvmlGpuInstanceDestroy(partition.handle)

    def add(self, profile: MigInstanceProfile) -> None:
        """Make a GPU instance with one compute instance; nothing is left of it if that fails."""
        library = self._library
        made = library.nvmlDeviceCreateGpuInstance(self._handle, profile.number)
        try:
            library.nvmlGpuInstanceCreateComputeInstance(made, self._largest(made).number)
        except library.NVMLError:
            library.nvmlGpuInstanceDestroy(made)
            raise


def _name(text: str | bytes) -> str:
    return (text if isinstance(text, str) else text.decode()).removeprefix(_PREFIX)


def _listed(kind: Any, most: int, ask: Any) -> Sequence[object]:
    array, count = (kind * max(1, most))(), c_uint(max(1, most))
    ask(array, byref(count))
    return [array[place] for place in range(count.value)]
