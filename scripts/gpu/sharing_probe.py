# mypy: allow-untyped-defs, allow-untyped-calls
"""One process on a GPU, through the driver alone: what `sharing.py` asks without PyTorch.

    python sharing_probe.py QUESTION ARGUMENTS...     prints one JSON value on its last line

On the driver without a GPU of the tests a kernel is a launch that takes as long as its grid is
wide; on a real one it is a thread that looks at the GPU's clock.
"""

import ctypes
import ctypes.util
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.gpu_job import Cuda

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1;
    @%p1 bra AGAIN;
    ret;
}
"""
FAKE = "Fake GPU"
GIB = 1 << 30
MEMBARRIER = {"x86_64": 324, "aarch64": 283}
PRIVATE_EXPEDITED = 1 << 3


class Gpu(Cuda):
    """The driver API with a kernel that lasts as long as it is told, real device or not."""

    def __init__(self, library="libcuda.so.1"):
        super().__init__(library)
        result = self.start()
        if result:
            sys.exit(f"cuInit: CUDA error {result}")
        name = ctypes.create_string_buffer(256)
        self.api.cuDeviceGetName(name, 256, 0)
        self.name = name.value.decode()
        self.function = ctypes.c_void_p()
        if self.name != FAKE:
            module = ctypes.c_void_p()
            self.check(self.api.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
            self.check(
                self.api.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin"),
                "cuModuleGetFunction",
            )

    @staticmethod
    def check(result, what):
        """End the process if a call has failed."""
        if result:
            sys.exit(f"{what}: CUDA error {result}")

    def kernel(self, us, stream=None):
        """Launch a kernel of so many microseconds."""
        if self.name == FAKE:
            result = self.api.cuLaunchKernel(None, us, 1, 1, 1, 1, 1, 0, stream, None, None)
        else:
            ns = ctypes.c_uint64(us * 1000)
            arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(ns), ctypes.c_void_p))
            result = self.api.cuLaunchKernel(
                self.function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None
            )
        self.check(result, "cuLaunchKernel")

    def wait(self):
        """Wait for all kernels."""
        self.check(self.api.cuCtxSynchronize(), "cuCtxSynchronize")


def device():
    """Return what the driver says of the device, and how long the first call took."""
    begun = time.monotonic()
    gpu = Gpu()
    version = ctypes.c_int()
    gpu.api.cuDriverGetVersion(ctypes.byref(version))
    return {
        "name": gpu.name,
        "cuda": version.value,
        "total_bytes": gpu.total()[1],
        "start_s": time.monotonic() - begun,
    }


def lookups(driver, table):
    """Return hooked entry points whose addresses by name and by cuGetProcAddress differ."""
    api = ctypes.CDLL(driver)
    Gpu.check(api.cuInit(0), "cuInit")
    ask = api.cuGetProcAddress_v2
    differing, missing, count = [], [], 0
    hooked = set(Path(table).with_name("hooks.txt").read_text().split())
    for line in Path(table).read_text().splitlines():
        if line.startswith("#") or line.split()[0] not in hooked:
            continue
        name, base, version, suffix = line.split()
        count += 1
        found, status = ctypes.c_void_p(), ctypes.c_int()
        flags = 2 if suffix in ("_ptsz", "_ptds") else 1
        result = ask(
            *(base.encode(), ctypes.byref(found), int(version)),
            *(ctypes.c_uint64(flags), ctypes.byref(status)),
        )
        own = getattr(api, name, None)
        address = ctypes.cast(own, ctypes.c_void_p).value if own is not None else None
        if result or not found.value or address is None:
            missing.append(name)
        elif address != found.value:
            differing.append(name)
    return {"asked": count, "differing": differing, "missing": missing}


def libraries():
    """Return the files of the driver in a process that has used it."""
    gpu = Gpu()
    gpu.kernel(10)
    gpu.wait()
    ctypes.CDLL("libcuda.so.1")
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(path for path in paths if "libcuda" in path or "nvidia" in path)


def membarrier():
    """Return whether the kernel has the barrier that a closed gate needs."""
    number = MEMBARRIER.get(os.uname().machine)
    if number is None:
        return {"known": False}
    commands = ctypes.CDLL(None, use_errno=True).syscall(number, 0, 0, 0)
    said = Path("/proc/version").read_text().strip()
    return {"private_expedited": commands >= 0 and bool(commands & PRIVATE_EXPEDITED), "on": said}


def launches(count):
    """Return how long a launch takes the host, microseconds: median of batches."""
    gpu, found = Gpu(), []
    us = 1
    for _ in range(20):
        gpu.wait()
        begun = time.perf_counter()
        for _ in range(int(count)):
            gpu.kernel(us)
        found.append((time.perf_counter() - begun) / int(count) * 1e6)
    gpu.wait()
    return statistics.median(found)


def captures(count):
    """Return how many graphs were recorded without an error, of a stream that records kernels."""
    gpu, good = Gpu(), 0
    for _ in range(int(count)):
        stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
        gpu.api.cuStreamCreate(ctypes.byref(stream), 1)
        results = [gpu.api.cuStreamBeginCapture_v2(stream, 0)]  # global mode
        for _ in range(20):
            gpu.kernel(10, stream)
            time.sleep(0.0005)
        results.append(gpu.api.cuStreamEndCapture(stream, ctypes.byref(graph)))
        gpu.api.cuStreamDestroy_v2(stream)
        good += not any(results)
        gpu.kernel(200)
    gpu.wait()
    return good


def hold():
    """Hold a GiB until a line of input comes."""
    gpu = Gpu()
    result, _ = gpu.alloc("plain", GIB)
    gpu.kernel(10)
    gpu.wait()
    print(json.dumps(result), flush=True)
    sys.stdin.readline()
    return result


def around(driver):
    """Use the real driver by its path until somebody ends this; for the watchdog."""
    gpu = Gpu(driver)
    gpu.alloc("plain", GIB)
    print(json.dumps("around"), flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        gpu.kernel(1000)
        gpu.wait()
        time.sleep(0.01)
    return "not ended"


def train(kernel_us, kernels, gap_ms, iterations):
    """Print that it is ready, and after a line of input when each iteration began and ended."""
    gpu = Gpu()

    def iterate():
        begun = time.monotonic()
        time.sleep(float(gap_ms) / 1000)
        for _ in range(int(kernels)):
            gpu.kernel(int(kernel_us))
        gpu.wait()
        return begun, time.monotonic()

    for _ in range(5):
        iterate()
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    return [iterate() for _ in range(int(iterations))]


QUESTIONS = (*(device, lookups, libraries, membarrier, launches, captures, hold, around, train),)


def main():
    """Answer one question."""
    known = {question.__name__: question for question in QUESTIONS}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"a question of {', '.join(known)}")
    print(json.dumps(known[sys.argv[1]](*sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()
