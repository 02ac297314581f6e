"""The least that a move of a training can cost: save, start, load, each with plain torch alone."""

import pathlib
import subprocess
import sys
import tempfile
import time

TENSOR_BYTES = 16 << 20  # a layer's weights

_SAVE = """
import os, sys, time, torch
size, path = int(sys.argv[1]), sys.argv[2]
count = max(1, size // {tensor})
state = {{str(i): torch.rand(size // count // 4) for i in range(count)}}
began = time.perf_counter()
torch.save(state, path)
with open(path, "rb") as file:
    os.fsync(file.fileno())
print(time.perf_counter() - began)
"""

_LOAD = """
import sys, time, torch
print(time.time())
began = time.perf_counter()
state = torch.load(sys.argv[1], weights_only=True)
print(time.perf_counter() - began)
"""

#: What a data-parallel training does before it has anything that a state could be loaded into.
_READY = """
import sys, time, torch
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
layers, width = map(int, sys.argv[2:])
init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
network = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
torch.optim.AdamW(DistributedDataParallel(network).parameters())
print(time.time())
"""

_NUMBER_BYTES = 4
_WIDTH = 2048


def network_of(size_bytes: int, frozen: float = 0.0) -> tuple[int, int]:
    """Return the layers and the width of a network that has a state of this size with AdamW.

    AdamW keeps two numbers beside each parameter that is trained; ``frozen`` is the part of them
    that is not.
    """
    parameter_bytes = _NUMBER_BYTES * (1 + 2 * (1 - frozen))
    layers = max(1, round(size_bytes / parameter_bytes / _WIDTH**2))
    return layers, int((size_bytes / parameter_bytes / layers) ** 0.5)


def floor_of_move(
    size_bytes: int, python: str = sys.executable, directory: str | None = None
) -> dict[str, float]:
    """Return what saving, starting and loading take, each measured alone.

    Args:
        size_bytes: of the state.
        python: has torch.
        directory: where the checkpoint would be; None: where temporary files are.

    Returns:
        ``save_s``: writing the state with ``torch.save`` and flushing it; ``start_s``: from the
        start of a process to torch being imported; ``load_s``: reading the state; ``floor_s``: all.
    """
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        path = str(pathlib.Path(temporary) / "state.pt")
        save_s = float(_run(python, _SAVE.format(tensor=TENSOR_BYTES), str(size_bytes), path)[0])
        began_s = time.time()
        imported_s, load_s = map(float, _run(python, _LOAD, path))
    start_s = imported_s - began_s
    return {
        "save_s": save_s,
        "start_s": start_s,
        "load_s": load_s,
        "floor_s": save_s + start_s + load_s,
    }


def ready_seconds(
    size_bytes: int, python: str = sys.executable, directory: str | None = None
) -> float:
    """Return how long a process takes to become a training that could load its state, seconds.

    From its start to a process group of one rank, a network with a state of ``size_bytes`` in
    DistributedDataParallel and its optimiser, with plain torch and without torchrun.
    """
    layers, width = map(str, network_of(size_bytes))
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        began_s = time.time()
        meeting = str(pathlib.Path(temporary) / "meeting")
        (ready_s,) = map(float, _run(python, _READY, meeting, layers, width))
    return ready_s - began_s


def _run(python: str, code: str, *arguments: str) -> list[str]:
    command = [python, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
