"""GPU memory of a job that shares a GPU: no family of allocations escapes its limit."""

from collections.abc import Callable

import pytest

from tests.support.gpu_device import GIB, MIB, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

FAMILIES = (
    *("plain", "managed", "pitch", "array", "array3d", "mipmap"),
    *("async", "pool", "vmm", "graph"),
)
OUT_OF_MEMORY = 2
Make = Callable[..., SharedGpu]


def test_each_family_gets_exactly_its_limit_and_gives_all_back(shared_gpu: Make) -> None:
    """One allocation to the last byte, one that is too much, one more after it was freed."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    for family in FAMILIES:
        result, handle = job.call(f"cuda.alloc({family!r}, {64 * MIB})")
        assert result == 0, family
        assert gpu.device.used_bytes == 64 * MIB, family
        assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 64 * MIB, family
        assert job.call("cuda.info()") == [0, 0, 64 * MIB], family
        if family != "graph":  # what a graph that does not run keeps, is given back
            refused, _ = job.call("cuda.alloc('plain', 2 << 20)")
            assert refused == OUT_OF_MEMORY, family
        assert job.call(f"cuda.free({family!r}, {handle})") == 0, family
        assert gpu.device.used_bytes == 0, family
        assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0, family
    assert gpu.device.peak_bytes(job.pid) == 64 * MIB


def test_a_node_with_a_long_state_directory_keeps_the_limit(shared_gpu: Make) -> None:
    """The address of a Unix socket has 107 bytes; daemon, gnode and library need no more."""
    gpu = shared_gpu(below="x" * 120)
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))

    assert job.call("cuda.info()") == [0, 64 * MIB, 64 * MIB]
    assert job.call(f"cuda.alloc('plain', {66 * MIB})")[0] == OUT_OF_MEMORY


@pytest.mark.parametrize("family", FAMILIES)
def test_more_than_the_limit_is_out_of_memory_and_nothing_stays_charged(
    family: str, shared_gpu: Make
) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))

    result, _ = job.call(f"cuda.alloc({family!r}, {66 * MIB})")

    assert result == OUT_OF_MEMORY
    assert gpu.device.used_bytes == 0
    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0
    assert job.call(f"cuda.alloc({family!r}, {64 * MIB})[0]") == 0


def test_the_device_is_as_large_as_the_limit(shared_gpu: Make) -> None:
    """For all that ask: of the device, and of its free memory, with and without pointers."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=3 * GIB))

    assert job.call("cuda.total()") == [0, 3 * GIB]
    assert job.call("cuda.info()") == [0, 3 * GIB, 3 * GIB]
    assert job.call("cuda.api.cuMemGetInfo_v2(None, None)") == 0


def test_processes_and_threads_of_a_job_share_one_limit(shared_gpu: Make) -> None:
    """Two processes with four threads each: exactly so many small pieces fit."""
    gpu = shared_gpu()
    task = gpu.task("1", memory_bytes=100 * MIB)
    jobs = [gpu.run(task), gpu.run(task)]
    for job in jobs:
        job.send(
            "in_threads(4, lambda _: (cuda.api.cuCtxSetCurrent(cuda.context), "
            "sum(cuda.alloc('plain', 1 << 20)[0] == 0 for _ in range(20)))[1])"
        )
    fitted = sum(sum(job.receive()) for job in jobs)

    assert fitted == 100
    assert gpu.device.used_bytes == 100 * MIB


def test_a_forked_child_counts_for_the_same_job(shared_gpu: Make) -> None:
    """It connects anew: the parent's memory stays the parent's, and its own ends with it."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=100 * MIB))
    assert job.call("cuda.alloc('plain', 60 << 20)[0]") == 0

    child = job.call(
        "forked(lambda: [cuda.alloc('plain', 41 << 20)[0], cuda.alloc('plain', 40 << 20)[0]])"
    )

    assert child == [OUT_OF_MEMORY, 0]
    assert job.call("cuda.alloc('plain', 40 << 20)[0]") == 0


def test_memory_of_a_killed_process_is_free_for_the_others(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    task = gpu.task("1", memory_bytes=100 * MIB)
    first, second = gpu.run(task), gpu.run(task)
    assert first.call("cuda.alloc('plain', 100 << 20)[0]") == 0
    assert second.call("cuda.alloc('plain', 1 << 20)[0]") == OUT_OF_MEMORY

    first.close()

    wait_until(lambda: gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0)
    assert second.call("cuda.alloc('plain', 100 << 20)[0]") == 0


def test_memory_that_is_only_mapped_still_counts(shared_gpu: Make) -> None:
    """The handle is released, the mapping stays; then a handle is taken from the mapping."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    _, handle = job.call(f"cuda.create({64 * MIB})")
    _, pointer = job.call(f"cuda.map({handle}, {64 * MIB})")
    assert job.call(f"cuda.release({handle})") == 0
    assert job.call("cuda.create(2 << 20)[0]") == OUT_OF_MEMORY

    _, again = job.call(f"cuda.retain({pointer})")
    assert job.call(f"cuda.unmap({pointer}, {64 * MIB})") == 0
    assert job.call("cuda.create(2 << 20)[0]") == OUT_OF_MEMORY
    assert job.call(f"cuda.release({again})") == 0

    assert job.call("cuda.create(2 << 20)[0]") == 0
    assert gpu.device.used_bytes == 2 * MIB


def test_host_memory_is_not_charged(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))

    assert job.call(f"cuda.create({GIB}, 2)[0]") == 0
    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0


def test_an_allocation_that_the_driver_refuses_is_not_charged(shared_gpu: Make) -> None:
    """The device is smaller than the limit, so the driver says no."""
    gpu = shared_gpu(total_bytes=32 * MIB)
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    for family in FAMILIES:
        assert job.call(f"cuda.alloc({family!r}, {48 * MIB})[0]") == OUT_OF_MEMORY, family

    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0


def test_a_context_takes_its_memory_with_it(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    assert job.call("cuda.alloc('plain', 64 << 20)[0]") == 0

    assert job.call("cuda.stop()") == 0

    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0


def test_an_unknown_pointer_is_the_drivers_business(shared_gpu: Make) -> None:
    """Freeing it is the driver's error, not the library's."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1"))

    assert job.call("cuda.free('plain', 4096)") == 1
    assert job.call("cuda.free('plain', 0)") == 0


def test_captured_allocations_are_charged_when_the_graph_runs(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))

    _, fits = job.call(f"cuda.capture(10, 1, size={64 * MIB})")
    _, large = job.call(f"cuda.capture(10, 1, size={65 * MIB})")

    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 0
    assert job.call(f"cuda.replay({large})") == OUT_OF_MEMORY
    assert job.call(f"cuda.replay({fits})") == 0
    assert gpu.metrics()["groups"]["1.1"]["used_bytes"] == 64 * MIB


def test_a_pool_gives_up_what_it_keeps_before_an_allocation_fails(shared_gpu: Make) -> None:
    """The first pool keeps nothing that is needed; the same bytes fit again and again."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    for _ in range(3):
        _, pointer = job.call(f"cuda.alloc('async', {40 * MIB})")
        assert job.call(f"cuda.api.cuMemFreeAsync(ctypes.c_uint64({pointer}), None)") == 0
    assert job.call(f"cuda.alloc('async', {64 * MIB})[0]") == 0
    assert gpu.device.used_bytes == 64 * MIB
