"""Sharing by NVIDIA's Multi-Process Service (MPS), which the site has to start on the node.

MPS runs kernels of several processes at once. A fatal error of one client ends all clients of the
GPU, and one server serves the processes of one user only; clients of others wait for it. The
limits are those of the CUDA documentation, "Multi-Process Service", chapters 4 and 5.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gnode.gpushare.task import SharedTask
from gnode.gpushare.tokens import Tokens
from gsched.model.states import ShareClass

CONTROL_PROGRAM: Final = "nvidia-cuda-mps-control"
_MIB: Final = 1024 * 1024
_PRIORITY: Final = {ShareClass.HIGH: "0", ShareClass.LOW: "1"}


class MpsRuntime:
    """A part of the multiprocessors and a limit of device memory for each process.

    Args:
        pipe_dir: directory of the control daemon's pipes.
        path: where the control program is looked for; None: as a shell does.
    """

    def __init__(self, *, pipe_dir: str, path: str | None = None) -> None:
        self._pipe_dir = pipe_dir
        self._path = path

    def missing(self) -> str | None:
        """Return why MPS cannot be used here, or None."""
        if shutil.which(CONTROL_PROGRAM, path=self._path) is None:
            return f"{CONTROL_PROGRAM} is not installed: install NVIDIA's driver with MPS"
        if not os.path.exists(os.path.join(self._pipe_dir, "control")):
            return (
                f"no MPS control daemon listens in {self._pipe_dir}: "
                f"start it with `{CONTROL_PROGRAM} -d`"
            )
        return None

    def prepare(self) -> None:
        """Do nothing: nothing has to be made."""

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the client's variables; the limit of memory holds for each of its processes.

        The limit names the GPU by its ordinal among the visible GPUs. Only one is visible.
        """
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            "CUDA_MPS_PIPE_DIRECTORY": self._pipe_dir,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(task.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={max(1, task.memory_bytes // _MIB)}M",
            "CUDA_MPS_CLIENT_PRIORITY": _PRIORITY[task.share_class],
        }

    def release(self, task: SharedTask) -> None:
        """Do nothing: the server notices that its clients have ended."""

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
        """Do nothing: the control daemon is the site's."""
