"""Sharing by Multi-Instance GPU (MIG): hardware slices, which the site or its configuration makes.

Without ``[[gpu_share.mig]]`` gsched takes the instances that are there, and changes nothing.
"""

import threading
from collections.abc import Collection, Iterable, Mapping

import pynvml

from gnode.gpushare.errors import GpuFullError, ShareRefusedError
from gnode.gpushare.mig_layout import lay_out, listed, wanted_of
from gnode.gpushare.obstacles import compute_mode_problem, mps_problem, without_mps
from gnode.gpushare.runtime import Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask
from gsched.model.units import format_size

NONE = (
    "no GPU of this node has MIG instances: name them in [[gpu_share.mig]], create them with "
    "`nvidia-smi mig`, or choose another runtime in [gpu_share]"
)


class MigRuntime(Runtime):
    """The smallest free instance of the GPU with enough memory; one task on each.

    The table of taken instances is gnode's memory: after a restart gnode admits the tasks that
    still run again, each with its former instance where it can tell it.

    Args:
        site: of the runtime.
    """

    containers = True

    def __init__(self, site: RuntimeSite) -> None:
        self._site = site
        self._taken: dict[tuple[str, int], str] = {}
        self._wanted = wanted_of(site.config.mig, len(site.nvml.gpus()) if site.config.mig else 0)
        self._problems: list[str] = []
        self._waits = False
        self._lock = threading.Lock()  # no instance is given away while they are made

    @property
    def changes_gpus(self) -> bool:
        """Return whether the configuration names instances."""
        return bool(self._wanted)

    def missing(self) -> str | None:
        """Return why no instance can be used here, or None."""
        site = self._site
        if not self._wanted and not site.nvml.mig_instances():
            return NONE
        one_each = compute_mode_problem(site.nvml, one_process=True)
        return one_each or mps_problem(site.config.mps_pipe_dir)

    def prepare(self, busy: Collection[int] = ()) -> None:
        """Make the instances that the configuration names, on GPUs that nobody uses.

        Raises:
            ShareRefusedError: there are no instances.
        """
        nvml = self._site.nvml
        with self._lock:
            try:
                outcomes = lay_out(nvml, self._wanted, busy).values()
                has_any = bool(nvml.mig_instances())
            except pynvml.NVMLError as error:
                raise ShareRefusedError(f"NVML fails: {error}", hint="see nvidia-smi") from error
            self._problems = [each.words for each in outcomes if each.words]
            self._waits = any(each.waits for each in outcomes)
        if not has_any:
            raise ShareRefusedError("; ".join(self._problems) or NONE)

    def waits(self) -> bool:
        """Return whether instances are to be made once their GPU is not in use."""
        return self._waits

    def largest_shares(self) -> Mapping[str, int] | None:
        """Return the memory of the largest instance of each GPU; None: NVML does not tell."""
        largest: dict[str, int] = {}
        try:
            instances = self._site.nvml.mig_instances()
        except pynvml.NVMLError:
            return None
        for each in instances:
            largest[each.gpu_uuid] = max(each.memory_bytes, largest.get(each.gpu_uuid, 0))
        return largest

    def words(self) -> str:
        """Return the instances of each GPU by size: ``GPU 0 has 2 x 2gb, 8gb``."""
        sizes: dict[str, list[str]] = {}
        for each in self._site.nvml.mig_instances():
            sizes.setdefault(each.gpu_uuid, []).append(format_size(each.memory_bytes))
        names = {gpu.uuid: gpu.index for gpu in self._site.nvml.gpus()}
        return "; ".join(
            f"GPU {names.get(uuid, uuid)} has {listed(has)}" for uuid, has in sizes.items()
        )

    def problem(self) -> str:
        """Return why instances are not as the configuration wants them."""
        return "; ".join(self._problems)

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the instance as the only visible device.

        Raises:
            NoRoomError: no free instance of this GPU has that much memory.
        """
        with self._lock:
            key = (task.job, task.attempt)
            chosen = self._taken.get(key) or task.visible or self._choose(task)
            self._taken[key] = chosen
        return {"CUDA_VISIBLE_DEVICES": chosen, **without_mps(self._site.directory)}

    def _choose(self, task: SharedTask) -> str:
        taken = set(self._taken.values())
        own = [one for one in self._site.nvml.mig_instances() if one.gpu_uuid == task.gpu_uuid]
        fit = [
            one for one in own if one.memory_bytes >= task.memory_bytes and one.uuid not in taken
        ]
        if not fit:
            sizes = ", ".join(format_size(one.memory_bytes) for one in own) or "none"
            raise GpuFullError(
                f"job {task.job} requests {format_size(task.memory_bytes)} of GPU "
                f"{task.gpu_index}, and no free MIG instance is that large (instances: {sizes})",
                hint="request less GPU memory, or make larger instances: see [[gpu_share.mig]]",
            )
        return min(fit, key=lambda one: (one.memory_bytes, one.uuid)).uuid

    def release(self, task: SharedTask) -> None:
        """Free the task's instance."""
        self._taken.pop((task.job, task.attempt), None)

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Free the instances of all tasks but these."""
        kept = {(task.job, task.attempt) for task in tasks}
        self._taken = {key: taken for key, taken in self._taken.items() if key in kept}
