"""What of the node's settings keeps jobs from sharing a GPU, whatever the runtime.

The compute mode of a GPU is described in NVIDIA's CUDA C++ Programming Guide, "Compute Modes". A
CUDA program connects to an MPS control daemon whose pipes it finds, and then shares faults and the
one user with all other clients, without a word.
"""

import os
from pathlib import Path
from typing import Final

import psutil

from gnode.gpushare.errors import ShareRefusedError
from gnode.hw.nvml import ComputeMode, Nvml

CONTROL_PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
_NAME_BYTES: Final = 15  # of a process, as the kernel keeps it
_WORDS: Final = {
    ComputeMode.EXCLUSIVE_THREAD: "one thread",
    ComputeMode.EXCLUSIVE_PROCESS: "one process",
    ComputeMode.PROHIBITED: "no process",
}


def compute_mode_problem(nvml: Nvml | None, *, one_process: bool = False) -> str | None:
    """Return which GPU lets too few processes use it, and the remedy; None: each can be shared.

    Args:
        nvml: the library for measurements; None: there is none.
        one_process: one process on each GPU is enough: the server of MPS, or a MIG instance's.
    """
    if nvml is None:
        return None
    enough = {ComputeMode.DEFAULT, ComputeMode.UNKNOWN}
    if one_process:
        enough.add(ComputeMode.EXCLUSIVE_PROCESS)
    for index, mode in enumerate(nvml.compute_modes()):
        if mode not in enough:
            return (
                f"the compute mode of GPU {index} is {mode.name}: {_WORDS[mode]} can use it at a "
                f"time; set it with `nvidia-smi -i {index} -c DEFAULT`"
            )
    return None


def mps_runs(pipe_dir: str) -> bool:
    """Return whether an MPS control daemon serves a directory of pipes.

    A daemon that was killed leaves its files behind, with its process id in one of them.
    """
    try:
        text = Path(pipe_dir, f"{CONTROL_PROGRAM}.pid").read_text(encoding="ascii")
        return psutil.Process(int(text)).name()[:_NAME_BYTES] == CONTROL_PROGRAM[:_NAME_BYTES]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    except (OSError, ValueError, psutil.Error):
        return os.path.exists(os.path.join(pipe_dir, "control"))


def mps_problem(pipe_dir: str) -> str | None:
    """Return what to do about an MPS control daemon that jobs would join; None: there is none."""
    if not mps_runs(pipe_dir):
        return None
    return (
        f"an MPS control daemon runs with its pipes in {pipe_dir}, and programs would join it: "
        f"stop it with `echo quit | {CONTROL_PROGRAM}`, or set runtime to mps in [gpu_share]"
    )


def without_mps(directory: Path) -> dict[str, str]:
    """Return the variables with which a program joins no MPS server: it finds no pipes.

    Args:
        directory: of the runtime, which may not exist yet.

    Raises:
        ShareRefusedError: the empty directory cannot be made.
    """
    empty = directory / "no-mps"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        empty.mkdir(mode=0o555, exist_ok=True)
    except OSError as error:
        raise ShareRefusedError(
            f"{empty} cannot be made: {error.strerror}",
            hint="check its file system and permissions",
        ) from error
    return {PIPES_VARIABLE: str(empty)}
