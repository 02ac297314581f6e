"""Which runtime isolates the jobs on a shared GPU of this node."""

from pathlib import Path

from gnode.gpushare.colocate import ColocateRuntime
from gnode.gpushare.interception import FOLDER, InterceptionRuntime
from gnode.gpushare.mig import MigRuntime
from gnode.gpushare.mps import MpsRuntime
from gnode.gpushare.task import Runtime
from gnode.hw.nvml import Nvml
from gsched.config_gpu_share import GpuShareConfig


def make_runtime(
    config: GpuShareConfig, *, state_dir: str, nvml: Nvml, tracking: str = ""
) -> Runtime:
    """Return the runtime that the configuration names. It starts nothing before a task comes.

    Args:
        config: ``[gpu_share]``.
        state_dir: of gnode; a directory below it belongs to the runtime.
        nvml: the library for measurements.
        tracking: the control group below which all attempts of this node are, as /proc/PID/cgroup
            names it; empty: there is none.
    """
    match config.runtime:
        case "mps":
            return MpsRuntime(pipe_dir=config.mps_pipe_dir)
        case "mig":
            return MigRuntime(nvml.mig_instances)
        case "colocate":
            return ColocateRuntime()
        case _:
            runtime = InterceptionRuntime(config, Path(state_dir, FOLDER), nvml=nvml)
            runtime.culprits.tracking = tracking
            return runtime
