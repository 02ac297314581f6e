"""Fills and copies of a low job pass the gate, by whatever entry point."""

import os
import re
import signal
from collections.abc import Callable

from gnode.gpushare import ShareClass
from gnode.gpushare.build import NATIVE
from tests.support.gpu_device import SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

Make = Callable[..., SharedGpu]
NOT_SUPPORTED = 801  # what a function of the fake driver says that only counts its calls
HOOKS = frozenset((NATIVE / "hooks.txt").read_text().split())
TABLE = {
    name
    for name, *_ in (
        line.split() for line in (NATIVE / "cuda_symbols.txt").read_text().splitlines()
    )
    if name != "#"
}
MOVES = re.compile(
    r"cuMem(cpy|set|Prefetch|DiscardAndPrefetch|BatchDecompress)\w+|cuGraphUpload\w*"
)
#: Of the CUDA versions before 3.2, with addresses of 32 bits.
OLD = {name for name in TABLE if f"{name}_v2" in TABLE and "Batch" not in name}
COPIES = sorted(
    name for name in TABLE if MOVES.fullmatch(name) and (name not in OLD or name in HOOKS)
)
#: The fake driver does something for these.
WORKS = frozenset(
    ["cuMemsetD8Async", "cuMemsetD8_v2", "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuGraphUpload"]
)


def test_every_fill_and_copy_of_the_driver_is_hooked() -> None:
    """A list of a newer CUDA version that has another one fails here."""
    assert len(COPIES) > 90
    assert [name for name in COPIES if name not in HOOKS] == []


def test_every_fill_and_copy_waits_at_the_gate(shared_gpu: Make) -> None:
    """The other job is stopped while it holds the token; each is called in a thread of its own."""
    names = [name for name in COPIES if name not in WORKS]
    gpu = shared_gpu(drain_max_s=60.0)
    holder = gpu.run(gpu.task("1", ShareClass.HIGH))
    job = gpu.run(gpu.task("2", ShareClass.LOW))
    assert holder.call("cuda.launch(10)") == 0
    os.kill(holder.process.pid, signal.SIGSTOP)

    job.send(
        f"in_threads({len(names)}, lambda index: (cuda.api.cuCtxSetCurrent(cuda.context), "
        f"getattr(cuda.api, {names}[index])(*[None] * 9))[1])"
    )
    wait_until(lambda: gpu.metrics()["groups"]["2.1"]["waiting"] is True)
    job_threads = f"/proc/{job.pid}/task"
    wait_until(lambda: len(os.listdir(job_threads)) >= len(names))
    assert set(gpu.device.stub_calls()) & set(names) == set()
    os.kill(holder.process.pid, signal.SIGCONT)

    assert job.receive() == [NOT_SUPPORTED] * len(names)
    calls = gpu.device.stub_calls()
    assert {name: calls.get(name) for name in names} == dict.fromkeys(names, 1)
