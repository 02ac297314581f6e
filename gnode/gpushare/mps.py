"""Sharing by NVIDIA's Multi-Process Service (MPS), which the site has to start on the node.

MPS runs kernels of several processes at once. A fatal error of one client ends all clients of the
GPU, and one server serves the processes of one user only; clients of others wait for it. The
limits are those of the CUDA documentation, "Multi-Process Service", chapters 4 and 5.
"""

import shutil
from collections.abc import Mapping
from typing import Final

from gnode.gpushare.obstacles import (
    CONTROL_PROGRAM,
    PIPES_VARIABLE,
    compute_mode_problem,
    mps_problem,
    mps_runs,
    without_mps,
)
from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask
from gsched.model.states import ShareClass

_MIB: Final = 1024 * 1024
_PRIORITY: Final = {ShareClass.HIGH: "0", ShareClass.LOW: "1"}


class MpsRuntime(Runtime):
    """A part of the multiprocessors and a limit of device memory for each process.

    Args:
        site: of the runtime.
        path: where the control program is looked for; None: as a shell does.
    """

    containers = True

    def __init__(self, site: RuntimeSite, *, path: str | None = None) -> None:
        self._site = site
        self._pipe_dir = site.config.mps_pipe_dir
        self._path = path

    def missing(self) -> str | None:
        """Return why MPS cannot be used here, or None."""
        if shutil.which(CONTROL_PROGRAM, path=self._path) is None:
            return f"{CONTROL_PROGRAM} is not installed: install NVIDIA's driver with MPS"
        if not mps_runs(self._pipe_dir):
            return (
                f"no MPS control daemon listens in {self._pipe_dir}: "
                f"start it with `{PIPES_VARIABLE}={self._pipe_dir} {CONTROL_PROGRAM} -d`"
            )
        return compute_mode_problem(self._site.nvml, one_process=True)

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the client's variables; the limit of memory holds for each of its processes.

        The limit names the GPU by its ordinal among the visible GPUs. Only one is visible.
        """
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            PIPES_VARIABLE: self._pipe_dir,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(task.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={max(1, task.memory_bytes // _MIB)}M",
            "CUDA_MPS_CLIENT_PRIORITY": _PRIORITY[task.share_class],
        }

    def contained(self, task: SharedTask, env: Mapping[str, str]) -> Contained:  # noqa: ARG002 - it is the same for all
        """Return the directory of the pipes: clients make their own ones there."""
        return Contained(mounts=(f"{self._pipe_dir}:{self._pipe_dir}",))


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
