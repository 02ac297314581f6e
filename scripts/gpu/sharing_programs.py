"""Programs of `sharing.py correctness`: code that allocates until it fails, under a limit.

Each prints the bytes that it got, as a number on the last line. ``PIECE`` bytes are requested at a
time, up to ``LIMIT`` and beyond. Those of frameworks have a stand-in through the driver alone, for
rehearsals without them.
"""

from dataclasses import dataclass

_TORCH = """
import torch
got, kept = 0, []
try:
    while got < 2 * LIMIT:
        kept.append(torch.empty(PIECE, dtype=torch.uint8, device="cuda"))
        got += PIECE
except torch.OutOfMemoryError:
    pass
"""

_MANAGED = """
import ctypes, torch
torch.cuda.init(); torch.empty(1, device="cuda")
api, got = ctypes.CDLL("libcuda.so.1"), 0
while got < 2 * LIMIT:
    if api.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(PIECE), 1):
        break
    got += PIECE
"""

_CUPY = """
import cupy
got, kept = 0, []
try:
    while got < 2 * LIMIT:
        kept.append(cupy.empty(PIECE, dtype=cupy.uint8))
        got += PIECE
except cupy.cuda.memory.OutOfMemoryError:
    pass
"""

_JAX = """
import jax
stats = jax.local_devices()[0].memory_stats()
got = stats["bytes_limit"]
"""

_GRAPH = """
import torch
still = torch.ones(1024, device="cuda")
stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    still += 1
for _ in range(100):
    graph.replay()
torch.cuda.synchronize()
got = int(still[0].item())
"""

_TRITON = """
import torch, triton
import triton.language as tl
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
x = torch.zeros(4096, device="cuda"); y = torch.empty_like(x)
add[(4,)](x, y, 4096, BLOCK=1024)
torch.cuda.synchronize()
got = int(y.sum().item())
"""

_COMPILED = """
import torch
step = torch.compile(lambda x: (x * 2 + 1).sum())
got = int(step(torch.ones(4096, device="cuda")).item())
"""

_NCCL = """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555", RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl")
x = torch.ones(1024, device="cuda"); dist.all_reduce(x); torch.cuda.synchronize()
got = int(x.sum().item()); dist.destroy_process_group()
"""

_INFO = """
import torch
free, total = torch.cuda.mem_get_info()
got = total if free <= total else -1
"""


_OLDER_RUNTIME = """
import ctypes, os
api = ctypes.CDLL(os.environ["GPU_CUDART"])
version, at, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
assert api.cudaRuntimeGetVersion(ctypes.byref(version)) == 0 and version.value < 13000
assert api.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(PIECE)) == 0
assert api.cudaStreamCreate(ctypes.byref(stream)) == 0
assert api.cudaStreamBeginCapture(stream, 0) == 0
assert api.cudaMemsetAsync(at, 7, ctypes.c_size_t(PIECE), stream) == 0
assert api.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
assert api.cudaGraphInstantiate(ctypes.byref(ready), graph, ctypes.c_uint64(0)) == 0
for _ in range(10):
    assert api.cudaGraphLaunch(ready, stream) == 0
assert api.cudaStreamSynchronize(stream) == 0
seen = ctypes.c_ubyte()
assert api.cudaMemcpy(ctypes.byref(seen), at, ctypes.c_size_t(1), 2) == 0 and seen.value == 7
got = PIECE
while got < 2 * LIMIT:
    result = api.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(PIECE))
    if result:
        assert result == 2, result
        break
    got += PIECE
"""

_FAMILY = """
from tests.support.gpu_job import Cuda
cuda, got = Cuda(), 0
assert cuda.start() == 0
while got < 2 * LIMIT:
    result, _ = cuda.alloc({family!r}, PIECE)
    if result:
        assert result == 2, result
        break
    got += PIECE
"""

_TOTAL = """
from tests.support.gpu_job import Cuda
cuda = Cuda()
assert cuda.start() == 0
result, free, total = cuda.info()
got = total if (result, cuda.total()[1]) == (0, total) and free <= total else -1
"""

_REPLAYED = """
from tests.support.gpu_job import Cuda
cuda = Cuda()
assert cuda.start() == 0
results, executable = cuda.capture(100, 1)
for _ in range(100):
    results.append(cuda.replay(executable))
got = {exact} if not any(results) and cuda.synchronize() == 0 else -1
"""

_LAUNCHED = """
from tests.support.gpu_job import Cuda
cuda = Cuda()
assert cuda.start() == 0
results = [cuda.launch(100) for _ in range(10)]
got = {exact} if not any(results) and cuda.synchronize() == 0 else -1
"""


def family(name: str) -> str:
    """Return code that allocates by one family of the driver's functions."""
    return _FAMILY.format(family=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program and what it must print.

    Attributes:
        needs: module without which it is skipped; empty: the driver alone; ``libcudart``: the
            file of --cudart.
        code: sets ``got``.
        stand_in: the same without that module, on a driver without a GPU.
        least, most: of ``got``, as fractions of the limit; or an exact value.
        variables: more of its environment.
    """

    name: str
    code: str
    stand_in: str = ""
    needs: str = "torch"
    least: float = 0.9
    most: float = 1.0
    exact: int | None = None
    variables: tuple[tuple[str, str], ...] = ()


def _allocator(settings: str) -> tuple[tuple[str, str], ...]:
    return (("PYTORCH_CUDA_ALLOC_CONF", settings), ("PYTORCH_ALLOC_CONF", settings))


FAMILIES = ("plain", "managed", "pitch", "array", "array3d", "mipmap", "async", "pool", "vmm")

PROGRAMS = (
    *(Program(name=f"driver: {each}", code=family(each), needs="") for each in FAMILIES),
    Program(name="the device has the limit's size", code=_INFO, stand_in=_TOTAL, least=1.0),
    Program(name="caching allocator", code=_TORCH, stand_in=family("plain")),
    Program(
        name="expandable segments",
        code=_TORCH,
        stand_in=family("vmm"),
        variables=_allocator("expandable_segments:True"),
    ),
    Program(
        name="cudaMallocAsync",
        code=_TORCH,
        stand_in=family("async"),
        variables=_allocator("backend:cudaMallocAsync"),
    ),
    Program(
        name="runtime of CUDA 12",
        code=_OLDER_RUNTIME,
        stand_in=family("plain"),
        needs="libcudart",
    ),
    Program(name="managed memory", code=_MANAGED, stand_in=family("managed")),
    Program(name="CuPy's pool", code=_CUPY, stand_in=family("plain"), needs="cupy"),
    Program(name="JAX's preallocation", code=_JAX, stand_in=_TOTAL, needs="jax", least=0.5),
    Program(name="replayed graph", code=_GRAPH, stand_in=_REPLAYED.format(exact=101), exact=101),
    Program(
        name="Triton kernel",
        code=_TRITON,
        stand_in=_LAUNCHED.format(exact=4096),
        needs="triton",
        exact=4096,
    ),
    Program(
        name="torch.compile",
        code=_COMPILED,
        stand_in=_LAUNCHED.format(exact=3 * 4096),
        needs="triton",
        exact=3 * 4096,
    ),
    Program(name="NCCL, one rank", code=_NCCL, stand_in=_LAUNCHED.format(exact=1024), exact=1024),
)
