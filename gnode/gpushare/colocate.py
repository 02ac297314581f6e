"""Sharing without isolation: the jobs see the same GPU, and the driver divides its time."""

from collections.abc import Mapping

from gnode.gpushare.obstacles import compute_mode_problem, mps_problem, without_mps
from gnode.gpushare.runtime import Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask


class ColocateRuntime(Runtime):
    """The driver's own time-slicing: no priority, no limit of memory, one fault hits all."""

    containers = True

    def __init__(self, site: RuntimeSite) -> None:
        self._site = site

    def missing(self) -> str | None:
        """Return what keeps two processes from one GPU, or None."""
        site = self._site
        return compute_mode_problem(site.nvml) or mps_problem(site.config.mps_pipe_dir)

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the visible GPU."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            **without_mps(self._site.directory),
        }
