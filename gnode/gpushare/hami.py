"""Limits of memory by HAMi-core: a library of the project HAMi that jobs' processes preload.

The site installs ``libvgpu.so`` and names it with ``hami_library``. Its README describes the
variables; the processes of a job count their memory in a file that they share, and use locks below
``/tmp/vgpulock``.
"""

import os
import stat
from collections.abc import Collection, Mapping
from typing import Final

from gnode.gpushare.errors import ShareRefusedError
from gnode.gpushare.obstacles import compute_mode_problem, mps_problem, without_mps
from gnode.gpushare.runtime import Contained, Runtime, RuntimeSite
from gnode.gpushare.task import SharedTask

LOCK_DIRECTORY: Final = "/tmp/vgpulock"  # noqa: S108 - the library has this path built in
CACHE: Final = "vgpu.cache"
_MIB: Final = 1024 * 1024


class HamiRuntime(Runtime):
    """A limit of device memory for all processes of a job together; time is not divided.

    Args:
        site: of the runtime.
        lock_directory: for the library's locks.
    """

    containers = True

    def __init__(self, site: RuntimeSite, *, lock_directory: str = LOCK_DIRECTORY) -> None:
        self._site = site
        self._library = site.config.hami_library
        self._locks = lock_directory

    def missing(self) -> str | None:
        """Return why HAMi-core cannot be used here, or None."""
        if not self._library:
            return "the library of HAMi-core is not known: set hami_library in [gpu_share]"
        if not os.access(self._library, os.R_OK):
            return (
                f"{self._library} cannot be read: build libvgpu.so of HAMi-core, and name it with "
                "hami_library in [gpu_share]"
            )
        site = self._site
        return compute_mode_problem(site.nvml) or mps_problem(site.config.mps_pipe_dir)

    def prepare(self, busy: Collection[int] = ()) -> None:  # noqa: ARG002 - it changes no GPU
        """Make the directory of the library's locks, in which jobs of all users make files."""
        try:
            os.makedirs(self._locks, exist_ok=True)
            status = os.lstat(self._locks)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
                raise ShareRefusedError(
                    f"{self._locks} belongs to another user, or is no directory",
                    hint="remove it and restart gnode, which makes it anew",
                )
            os.chmod(self._locks, 0o1777)  # noqa: S103 - as /tmp: each user has files of their own
        except OSError as error:
            raise ShareRefusedError(
                f"{self._locks} cannot be made for HAMi-core: {error.strerror}"
            ) from error

    def admit(self, task: SharedTask) -> Mapping[str, str]:
        """Return the library, the limit, and the file in which the job's processes count."""
        variables = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": task.gpu_name,
            "LD_PRELOAD": self._library,
            "CUDA_DEVICE_MEMORY_LIMIT": f"{max(1, task.memory_bytes // _MIB)}m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": os.path.join(task.directory, CACHE),
            **without_mps(self._site.directory),
        }
        if self._site.config.hami_sm_limit:
            variables["CUDA_DEVICE_SM_LIMIT"] = str(task.percent)
        return variables

    def contained(self, task: SharedTask, env: Mapping[str, str]) -> Contained:  # noqa: ARG002 - it is the same for all
        """Return the library and the locks; the job's own directory is there in any case."""
        return Contained(
            mounts=(f"{self._library}:{self._library}:ro", f"{self._locks}:{self._locks}")
        )
