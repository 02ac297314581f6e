"""Sharing by Multi-Instance GPU (MIG): hardware slices that the site has created.

gsched takes existing instances and never changes the partition of a GPU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gnode.gpushare.errors import ShareRefusedError
from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens
from gnode.hw.nvml import MigInstance
from gsched.model.units import format_size


@dataclass(slots=True)
class MigRuntime:
    """The smallest free instance of the GPU with enough memory; one task on each.

    The table of taken instances is gnode's memory: after a restart gnode admits the tasks that
    still run again, each with its former instance where it can tell it.

    Attributes:
        instances: asks NVML for the instances of all GPUs.
    """

    instances: Callable[[], Sequence[MigInstance]]
    _taken: dict[tuple[str, int], str] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Return why no instance can be used here, or None."""
        if self.instances():
            return None
        return (
            "no GPU of this node has MIG instances: create them with `nvidia-smi mig`, "
            "or choose another runtime in [gpu_share]"
        )

    def prepare(self) -> None:
        """Do nothing: nothing has to be made."""

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the instance as the only visible device.

        Raises:
            ShareRefusedError: no free instance of this GPU has that much memory.
        """
        key = (task.job, task.attempt)
        chosen = self._taken.get(key) or task.visible or self._choose(task)
        self._taken[key] = chosen
        return {"CUDA_VISIBLE_DEVICES": chosen}

    def _choose(self, task: SharedTask) -> str:
        taken = set(self._taken.values())
        own = [one for one in self.instances() if one.gpu_uuid == task.gpu_uuid]
        fit = [
            one for one in own if one.memory_bytes >= task.memory_bytes and one.uuid not in taken
        ]
        if not fit:
            sizes = ", ".join(format_size(one.memory_bytes) for one in own) or "none"
            raise ShareRefusedError(
                f"job {task.job} requests {format_size(task.memory_bytes)} of GPU {task.gpu_name}, "
                f"and no free MIG instance is that large (instances: {sizes})",
                hint="request less GPU memory, or create larger instances with `nvidia-smi mig`",
            )
        return min(fit, key=lambda one: (one.memory_bytes, one.uuid)).uuid

    def release(self, task: SharedTask) -> None:
        """Free the task's instance."""
        self._taken.pop((task.job, task.attempt), None)

    def attend(self, task: SharedTask, seconds: float) -> None:
        """Do nothing: its processes wait for nobody."""

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Free the instances of all tasks but these."""
        kept = {(task.job, task.attempt) for task in tasks}
        self._taken = {key: taken for key, taken in self._taken.items() if key in kept}

    def held_s(self) -> Mapping[str, float]:
        """Return nothing: there are no tokens."""
        return {}

    def look(self) -> None:
        """Return None: there are no turns."""

    def notify(self, call: Callable[[str, str], None]) -> None:
        """Do nothing: nobody is killed."""

    def punish(self, tokens: Tokens) -> None:
        """Do nothing: nobody is demoted."""

    def close(self) -> None:
        """Do nothing: instances belong to the site."""
