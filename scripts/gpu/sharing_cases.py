"""Cases of `sharing.py correctness`: code that allocates until it fails, under a limit.

Each prints the bytes that it got, as a number on the last line. ``PIECE`` bytes are asked for at a
time, up to ``LIMIT`` and beyond.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One program and what it must print.

    Attributes:
        needs: module without which it is skipped.
        code: sets ``got``.
        least, most: of ``got``, as fractions of the limit; or an exact value.
        variables: more of its environment.
    """

    name: str
    code: str
    needs: str = "torch"
    least: float = 0.9
    most: float = 1.0
    exact: int | None = None
    variables: tuple[tuple[str, str], ...] = ()


def _allocator(settings: str) -> tuple[tuple[str, str], ...]:
    return (("PYTORCH_CUDA_ALLOC_CONF", settings), ("PYTORCH_ALLOC_CONF", settings))


CASES = (
    Case(name="the device has the limit's size", code=_INFO, least=1.0),
    Case(name="caching allocator", code=_TORCH),
    Case(
        name="expandable segments",
        code=_TORCH,
        variables=_allocator("expandable_segments:True"),
    ),
    Case(name="cudaMallocAsync", code=_TORCH, variables=_allocator("backend:cudaMallocAsync")),
    Case(name="managed memory", code=_MANAGED),
    Case(name="CuPy's pool", code=_CUPY, needs="cupy"),
    Case(name="JAX's preallocation", code=_JAX, needs="jax", least=0.5),
    Case(name="replayed graph", code=_GRAPH, exact=101),
    Case(name="Triton kernel", code=_TRITON, needs="triton", exact=4096),
    Case(name="torch.compile", code=_COMPILED, needs="triton", exact=3 * 4096),
    Case(name="NCCL, one rank", code=_NCCL, exact=1024),
)
