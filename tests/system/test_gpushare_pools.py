"""Memory that is used again: pools, graphs, small pieces. What the driver takes is charged."""

import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.support.gpu_device import GIB, MIB, Job, SharedGpu
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

OUT_OF_MEMORY = 2
BLOCK = 2 * MIB
Make = Callable[..., SharedGpu]


def charged_bytes(gpu: SharedGpu) -> int:
    """Return what the job is charged with.

    What it frees is told without an answer, so it asks something behind that.
    """
    for job in gpu.jobs:
        job.call("cuda.info()")
    return int(gpu.metrics()["groups"]["1.1"]["used_bytes"])


def allocated(job: Job, family: str, size: int) -> int:
    """Allocate; return the handle."""
    result, handle = job.call(f"cuda.alloc({family!r}, {size})")
    assert result == 0, (family, size)
    return int(handle)


# ---- stream-ordered memory ----

#: NVIDIA does not say whether memory is "in use" until the host has seen its free.
either_count = pytest.mark.parametrize("late", ["", "1"], ids=["used-till-freed", "used-till-seen"])


@either_count
def test_memory_that_was_freed_in_a_stream_is_used_again_under_the_limit(
    late: str, shared_gpu: Make
) -> None:
    """600 MiB, a kernel, its free, and 600 MiB again under 1 GiB: the kernel still runs."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=GIB), GSCHED_FAKE_USED_LATE=late)
    pointer = allocated(job, "async", 600 * MIB)
    assert job.call(f"cuda.launch(300_000) or cuda.free_async({pointer})") == 0

    assert job.call(f"cuda.alloc('async', {600 * MIB})[0]") == 0

    assert gpu.device.used_bytes == charged_bytes(gpu) == 600 * MIB


@either_count
def test_memory_of_another_stream_is_waited_for_rather_than_refused(
    late: str, shared_gpu: Make
) -> None:
    """The second stream cannot use it before the first one has come to the free."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=GIB), GSCHED_FAKE_USED_LATE=late)
    first, second = job.call("[cuda.stream(), cuda.stream()]")
    _, pointer = job.call(f"cuda._alloc_async({600 * MIB}, {first})")
    assert job.call(f"cuda.launch(300_000, {first}) or cuda.free_async({pointer}, {first})") == 0

    assert job.call(f"cuda._alloc_async({600 * MIB}, {second})[0]") == 0

    assert gpu.device.used_bytes == charged_bytes(gpu) == 600 * MIB


def test_a_recording_is_not_broken_for_memory_of_another_stream(shared_gpu: Make) -> None:
    """A wait would break it; the allocation fails, and what it has taken is charged till then."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=GIB))
    first, second = job.call("[cuda.stream(), cuda.stream()]")
    _, pointer = job.call(f"cuda._alloc_async({600 * MIB}, {first})")
    assert job.call(f"cuda.launch(300_000, {first}) or cuda.free_async({pointer}, {first})") == 0
    inside = f"lambda: refused.append(cuda._alloc_async({600 * MIB}, {second})[0])"

    recorded = job.call(f"(lambda refused: [cuda.capture(10, 1, hook={inside})[0], refused])([])")

    assert recorded == [[0, 0, 0, 0], [OUT_OF_MEMORY]]
    assert charged_bytes(gpu) == gpu.device.used_bytes
    assert job.call(f"cuda.synchronize() or cuda.alloc('plain', {GIB})[0]") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == GIB


@either_count
def test_stream_ordered_reuse_asks_the_daemon_nothing(late: str, shared_gpu: Make) -> None:
    """The daemon is stopped meanwhile: a question would have no answer, and that would be said."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=GIB), GSCHED_FAKE_USED_LATE=late)
    assert job.call(f"cuda.keep_freed() and cuda.reuse({64 * MIB}, 2)") == 0
    pid = gpu.daemon_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert job.call(f"cuda.reuse({64 * MIB}, 500)") == 0
    finally:
        os.kill(pid, signal.SIGCONT)

    assert "does not answer" not in gpu.said
    assert charged_bytes(gpu) == gpu.device.used_bytes


def test_a_pool_that_takes_more_than_it_is_asked_for_is_charged_with_it(shared_gpu: Make) -> None:
    """It grows by 32 MiB; where that is more than the job may have, the allocation is undone."""
    gpu = shared_gpu()
    task = gpu.task("1", memory_bytes=60 * MIB)
    job = gpu.run(task, GSCHED_FAKE_POOL_GRANULE=str(32 * MIB))
    pointer = allocated(job, "async", 4 * MIB)
    assert charged_bytes(gpu) == gpu.device.used_bytes == 32 * MIB

    assert job.call(f"cuda.alloc('async', {36 * MIB})[0]") == OUT_OF_MEMORY

    assert job.call(f"cuda.alloc('plain', {28 * MIB})[0]") == 0
    assert charged_bytes(gpu) <= 60 * MIB
    assert job.call(f"cuda.free('async', {pointer})") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 28 * MIB


@pytest.mark.parametrize("seen", ["cuda.synchronize()", "0"], ids=["synchronised", "unseen"])
@pytest.mark.parametrize("family", ["plain", "vmm", "array", "managed"])
def test_a_pool_gives_its_memory_back_before_other_memory_is_refused(
    family: str, seen: str, shared_gpu: Make
) -> None:
    """It has shrunk by itself at a synchronisation, or shrinks when the host has waited."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    pointer = allocated(job, "async", 48 * MIB)
    assert job.call(f"cuda.launch(1000) or cuda.free_async({pointer}) or {seen}") == 0

    allocated(job, family, 64 * MIB)

    assert charged_bytes(gpu) == gpu.device.used_bytes == 64 * MIB


# ---- small allocations ----


def test_small_allocations_are_charged_with_the_blocks_that_they_take(shared_gpu: Make) -> None:
    """102 of 20 KiB share a block of 2 MiB: NVML shows blocks, and the limit is held for blocks."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))

    fitted = job.call(
        "[pointer for result, pointer in (cuda.alloc('plain', 20 << 10) for _ in range(4000)) "
        "if result == 0]"
    )

    assert gpu.device.peak_bytes(job.pid) <= 64 * MIB + BLOCK
    assert charged_bytes(gpu) == gpu.device.used_bytes == 64 * MIB
    assert len(fitted) == 32 * (BLOCK // (20 << 10))
    assert job.call(f"sum(cuda.free('plain', one) for one in {fitted})") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 0


def test_small_allocations_that_share_a_block_ask_the_daemon_nothing(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    allocated(job, "plain", 4096)
    pid = gpu.daemon_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert job.call("[cuda.alloc('plain', 4096)[0] for _ in range(300)]") == [0] * 300
    finally:
        os.kill(pid, signal.SIGCONT)

    assert "does not answer" not in gpu.said
    assert charged_bytes(gpu) == BLOCK


@pytest.mark.parametrize("seed", range(3))
def test_what_is_charged_is_what_the_driver_takes_at_every_moment(
    seed: int, shared_gpu: Make
) -> None:
    """Pieces of all sizes of all families of linear memory, freed in any order."""
    choose = random.Random(seed)
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=GIB))
    held: list[tuple[str, int]] = []
    for _ in range(150):
        if held and choose.random() < 0.45:
            family, handle = held.pop(choose.randrange(len(held)))
            assert job.call(f"cuda.free({family!r}, {handle})") == 0
        else:
            family = choose.choice(["plain", "managed", "pitch"])
            size = choose.choice([512, 4096, 300_000, MIB, MIB + 512, 3 * MIB, 8 * MIB])
            held.append((family, allocated(job, family, size)))
        assert charged_bytes(gpu) == gpu.device.used_bytes


# ---- graphs ----


@pytest.mark.parametrize("how", ["direct", "node", "node_v2", "child"])
def test_memory_of_a_graph_is_charged_however_it_got_its_nodes(how: str, shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    _, large = job.call(f"cuda.graph([{40 * MIB}, {30 * MIB}], how={how!r})")
    _, fits = job.call(f"cuda.graph([{40 * MIB}, {24 * MIB}], how={how!r})")

    assert job.call(f"cuda.replay({large})") == OUT_OF_MEMORY
    assert charged_bytes(gpu) == gpu.device.used_bytes == 0
    assert job.call(f"cuda.replay({fits})") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 64 * MIB


def test_an_upload_of_a_graph_is_charged(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    _, large = job.call(f"cuda.graph([{66 * MIB}])")
    _, fits = job.call(f"cuda.graph([{64 * MIB}])")

    assert job.call(f"cuda.upload({large})") == OUT_OF_MEMORY
    assert job.call(f"cuda.upload({fits})") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 64 * MIB
    assert job.call(f"cuda.replay({fits})") == 0
    assert gpu.device.peak_bytes(job.pid) == 64 * MIB


def test_a_graph_that_uses_memory_again_needs_no_more_than_it_has_at_once(shared_gpu: Make) -> None:
    """Ten allocations of 40 MiB, each freed before the next: under a limit of 64 MiB."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    _, graph = job.call(f"cuda.graph([{40 * MIB}] * 10, free=True)")

    assert job.call(f"[cuda.replay({graph}) for _ in range(3)]") == [0, 0, 0]

    assert charged_bytes(gpu) == gpu.device.used_bytes == 40 * MIB


def test_memory_that_graphs_keep_is_given_back_before_other_memory_is_refused(
    shared_gpu: Make,
) -> None:
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    _, graph = job.call(f"cuda.graph([{40 * MIB}])")
    assert job.call(f"cuda.replay({graph}) or cuda.synchronize()") == 0

    allocated(job, "plain", 64 * MIB)

    assert charged_bytes(gpu) == gpu.device.used_bytes == 64 * MIB


# ---- virtual memory ----


def test_other_threads_allocate_while_the_driver_unmaps(shared_gpu: Make) -> None:
    """Unmapping many gigabytes takes long; here it takes 2 s."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB), GSCHED_FAKE_UNMAP_MS="2000")
    pointer = allocated(job, "vmm", 2 * MIB)

    order = job.call(
        "(lambda order: in_threads(2, lambda index: (cuda.api.cuCtxSetCurrent(cuda.context), "
        f"cuda.free('vmm', {pointer}) if index else (time.sleep(0.5), cuda.alloc('plain', 4096)), "
        "order.append(index))) and order)([])"
    )

    assert order == [0, 1]
    assert charged_bytes(gpu) == gpu.device.used_bytes == BLOCK


def test_handles_whose_numbers_are_used_again_are_charged_exactly(shared_gpu: Make) -> None:
    """Eight threads map, release and unmap at once; the driver gives out freed numbers first."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=256 * MIB))
    work = (
        "lambda _: (cuda.api.cuCtxSetCurrent(cuda.context), "
        "[cuda.free('vmm', cuda.alloc('vmm', 2 << 20)[1]) for _ in range(150)])[1]"
    )

    assert not any(any(one) for one in job.call(f"in_threads(8, {work})"))

    assert charged_bytes(gpu) == gpu.device.used_bytes == 0
    assert job.call(f"cuda.alloc('vmm', {256 * MIB})[0]") == 0


def test_a_range_of_several_mappings_is_unmapped_at_once(shared_gpu: Make) -> None:
    """As expandable segments do; a range that the driver refuses stays charged."""
    gpu = shared_gpu()
    job = gpu.run(gpu.task("1", memory_bytes=64 * MIB))
    start = job.call("cuda.reserve(32 << 20)")
    for number in range(16):
        _, handle = job.call("cuda.create(2 << 20)")
        assert job.call(f"cuda.map_at({start} + {number} * (2 << 20), {handle}, 2 << 20)") == 0
        assert job.call(f"cuda.release({handle})") == 0
    assert charged_bytes(gpu) == 32 * MIB

    assert job.call(f"cuda.unmap({start}, 33 << 20)") == 1
    assert charged_bytes(gpu) == 32 * MIB
    assert job.call(f"cuda.unmap({start}, 16 << 20)") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 16 * MIB
    assert job.call(f"cuda.unmap({start} + (16 << 20), 16 << 20)") == 0
    assert charged_bytes(gpu) == gpu.device.used_bytes == 0
