"""What NVIDIA's documentation says of the driver, of which the library must not want the opposite.

Each of these is a property of the driver without a GPU, too, looked at through the library.
"""

from collections.abc import Callable

import pytest

from gnode.gpushare import ShareClass
from tests.support.gpu_device import MIB, Job, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.system.test_gpushare_priority import gpu_counters, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.timeout(120)]

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
INVALID_VALUE, UNSUPPORTED, INVALIDATED = 1, 900, 901
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
Make = Callable[..., SharedGpu]


def charged(gpu: SharedGpu) -> int:
    """Return what the job is charged with."""
    return int(gpu.metrics()["groups"]["2.1"]["used_bytes"])


def pair(gpu: SharedGpu) -> tuple[Job, Job]:
    """Return a high and a low job; the low one has not used the legacy stream, which is in order
    with others."""
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.run(gpu.task("2", LOW))
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert low.call("cuda.launch(10, cuda.stream()) or cuda.synchronize()") == 0
    return high, low


@pytest.mark.parametrize(
    ("mode", "thread", "result"),
    [
        (GLOBAL, "own", UNSUPPORTED),
        (THREAD_LOCAL, "own", UNSUPPORTED),
        (RELAXED, "own", 0),
        (GLOBAL, "another", UNSUPPORTED),
        (THREAD_LOCAL, "another", 0),
        (RELAXED, "another", 0),
    ],
)
def test_an_allocation_beside_a_recording_is_charged_only_if_the_driver_permits_it(
    mode: int, thread: str, result: int, shared_gpu: Make
) -> None:
    """See cuThreadExchangeStreamCaptureMode: it is refused by mode and thread, and breaks it."""
    gpu = shared_gpu()
    _, low = pair(gpu)
    low.call("globals().update(a=cuda.stream())")
    allocate = f"cuda.alloc('plain', {2 * MIB})[0]"
    if thread == "another":
        allocate = (
            f"in_threads(1, lambda _: [cuda.api.cuCtxSetCurrent(cuda.context), {allocate}][1])[0]"
        )
    steps = f"[cuda.begin(a, {mode}), cuda.launch(10, a), {allocate}, cuda.end(a)]"

    assert low.call(steps) == [0, 0, result, INVALIDATED if result else 0]
    assert charged(gpu) == (0 if result else 2 * MIB)


@pytest.mark.parametrize(
    ("create", "width", "height", "depth"),
    [
        ("cuArrayCreate_v2", 131_073, 0, 0),
        ("cuArrayCreate_v2", 16, 65_537, 0),
        ("cuArray3DCreate_v2", 16_385, 1, 1),
        ("cuMipmappedArrayCreate", 32_769, 0, 0),
    ],
)
def test_an_array_beyond_the_texture_limits_is_the_drivers_to_refuse(
    create: str, width: int, height: int, depth: int, shared_gpu: Make
) -> None:
    """It is an invalid value, and what was reserved for it is given back."""
    gpu = shared_gpu()
    _, low = pair(gpu)
    wanted = f"Array3D({width}, {height}, {depth}, 1, 1, 0)"
    if create == "cuArrayCreate_v2":
        wanted = f"Array({width}, {height}, 1, 1)"
    levels = ", 1" if create == "cuMipmappedArrayCreate" else ""
    call = f"cuda.api.{create}(ctypes.byref(ctypes.c_void_p()), ctypes.byref({wanted}){levels})"

    assert low.call(call) == INVALID_VALUE
    assert charged(gpu) == 0


def test_a_launch_that_waits_for_a_place_in_a_full_queue_keeps_nobody_from_the_gpu(
    shared_gpu: Make,
) -> None:
    """A host runs ahead of the device as far as the stream's queue goes, and then waits inside."""
    gpu = shared_gpu(drain_max_s=1.0)
    high, low = pair(gpu)
    low.call("globals().update(a=cuda.stream(), e=__import__('threading').Event())")
    assert low.call("cuda.call_host(a, e)") == 0
    high.close()  # a low job alone has no window
    gpu.jobs.remove(high)
    work = "(cuda.api.cuCtxSetCurrent(cuda.context), done.append(cuda.launch(10, a, 1500)))"
    low.call(
        "globals().update(done=[], t=__import__('threading').Thread("
        f"target=lambda: {work})) or t.start()"
    )
    low.call("time.sleep(0.3)")
    assert low.call("done") == [], "it waits"

    other = gpu.run(gpu.task("3", HIGH))
    assert other.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert low.call("e.set() or t.join() or done") == [0]
    assert low.call("cuda.synchronize()") == 0
    assert gpu_counters(gpu)["overlaps"] == 0, "as code that is loaded"


@pytest.mark.parametrize("pause_s", [0.0, 5.0])
def test_work_in_a_threads_own_stream_is_drained(pause_s: float, shared_gpu: Make) -> None:
    """No other thread can ask for it, and it goes on when its thread has ended."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = pair(gpu)
    work = "(cuda.api.cuCtxSetCurrent(cuda.context), cuda.launch(4_000_000, 2), time.sleep({}))"
    low.call(f"[__import__('threading').Thread(target=lambda: {work.format(pause_s)}).start()]")
    wait_until(lambda: len(of(gpu.device.log(), low)) == 2)
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0

    log = gpu.device.log()
    assert of(log, high)[-1].called_ns >= of(log, low)[1].ended_ns
    assert gpu_counters(gpu)["overlaps"] == 0
