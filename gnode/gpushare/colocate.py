"""Sharing without isolation: the jobs see the same GPU, and the driver divides its time."""

from collections.abc import Callable, Iterable, Mapping

from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens


class ColocateRuntime:
    """The driver's own time-slicing: no priority, no limit of memory, one fault hits all."""

    def missing(self) -> str | None:
        """Return None: nothing is needed."""
        return None

    def prepare(self) -> None:
        """Do nothing: nothing has to be made."""

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the visible GPU."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": task.gpu_name}

    def release(self, task: SharedTask) -> None:
        """Do nothing."""

    def attend(self, task: SharedTask, seconds: float) -> None:
        """Do nothing: its processes wait for nobody."""

    def keep(self, tasks: Iterable[SharedTask]) -> None:
        """Do nothing: nothing is kept of tasks."""

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
        """Do nothing."""
