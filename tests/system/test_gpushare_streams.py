"""What the driver may answer about streams and events, and what its order of streams means.

The driver without a GPU follows NVIDIA's documentation; where that can be read in two ways, each of
them is tried.
"""

from collections.abc import Callable
from functools import partial

import pytest

from gnode.gpushare import ShareClass
from tests.support.gpu_device import Job, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.system.test_gpushare_priority import gpu_counters, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.timeout(120)]

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
ILLEGAL_ADDRESS = 700
Make = Callable[..., SharedGpu]


def pair(gpu: SharedGpu, **more: str) -> tuple[Job, Job]:
    """Return a high and a low job; the low one has a window beside it, and more variables."""
    high, low = gpu.run(gpu.task("1", HIGH)), gpu.start({**gpu.admit(gpu.task("2", LOW)), **more})
    assert low.call("cuda.start()") == 0
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    return high, low


def has_run(gpu: SharedGpu, job: Job, count: int) -> bool:
    """Return whether a job's process has run more than so much."""
    return len(of(gpu.device.log(), job)) > count


# ---- odd answers ----


@pytest.mark.parametrize("code", [1, 400, 999])
def test_an_odd_answer_is_said_once_and_the_others_go_on(code: int, shared_gpu: Make) -> None:
    """The driver does not tell whether work has ended: it counts as ended."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = pair(gpu, GSCHED_FAKE_ODD_QUERY=str(code))
    for _ in range(3):
        assert low.call("cuda.launch(10, cuda.stream())") == 0
        assert high.call("cuda.launch(10) or cuda.synchronize()") == 0

    assert gpu_counters(gpu)["preemptions"] == 3
    assert gpu.said.count(f"the driver answered with error {code} whether work has ended") == 1


def test_a_kernel_that_faults_hurts_its_own_process_alone(shared_gpu: Make) -> None:
    """From then on the driver answers each of its calls with that error."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = pair(gpu)
    assert low.call("[cuda.fault(), cuda.synchronize()]") == [0, ILLEGAL_ADDRESS]
    for _ in range(3):
        assert low.call("cuda.launch(10)") == ILLEGAL_ADDRESS
        assert high.call("cuda.launch(10) or cuda.synchronize()") == 0

    assert gpu.said.count("the driver answered with error") == 1
    assert gpu_counters(gpu)["overlaps"] == 0


# ---- events ----


def test_an_event_that_cannot_be_recorded_is_kept_for_the_next_time(shared_gpu: Make) -> None:
    gpu = shared_gpu(options=("--window", "2"))
    high, low = pair(gpu, GSCHED_FAKE_ODD_RECORD="400")
    assert low.call("cuda.launch(5, cuda.stream(), 500) or cuda.synchronize()") == 0
    assert gpu.device.events <= 2
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0


@pytest.mark.parametrize("alike", ["0", "1"])
@pytest.mark.parametrize("way", ["stream", "current", "default_stream"])
def test_work_in_a_green_context_has_a_window_and_is_drained(
    way: str, alike: str, shared_gpu: Make
) -> None:
    """Events of the primary context fit its streams, or do not; it is current to one thread."""
    gpu = shared_gpu(options=("--window", "2"))
    high, low = pair(gpu, GSCHED_FAKE_GREEN_EVENTS=alike)
    low.call(f"[globals().update(s=cuda.green({way!r})), None][1]")
    low.send("cuda.launch(2000, s, 400) or cuda.wait_for_stream(s)")
    for count in (1, 2, 3):
        wait_until(partial(has_run, gpu, low, 20 * count))
        assert high.call("cuda.launch(1000) or cuda.synchronize()") == 0

    assert low.receive() == 0
    log = gpu.device.log()
    for one in of(log, high)[1:]:
        unfinished = [
            work for work in of(log, low) if work.called_ns < one.called_ns < work.ended_ns
        ]
        assert unfinished == [], "the high job has launched when the work had ended"
    waited_ns = [one.started_ns - one.called_ns for one in of(log, low)]
    assert max(waited_ns) < 3 * 2_000_000, "no more than the window was ever unfinished"
    assert gpu.device.events < 20


def test_contexts_of_two_threads_have_events_of_their_own(shared_gpu: Make) -> None:
    """A batch of one thread's launches is ended by the other one's, whose context is another."""
    gpu = shared_gpu(options=("--window", "4"))
    high, low = pair(gpu)
    work = (
        "[cuda.new_context(), [cuda.launch(200, s) for s in [cuda.stream()] for _ in range(300)]]"
    )
    answers = low.call(f"in_threads(2, lambda i: {work})")

    assert answers == [[0, [0] * 300]] * 2
    waited_ns = [one.started_ns - one.called_ns for one in of(gpu.device.log(), low)]
    assert max(waited_ns) < 20 * 200_000, "the window holds for both"
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0


# ---- the legacy stream ----


@pytest.mark.parametrize("before", [0, 1])
def test_the_window_adds_no_order_between_streams(before: int, shared_gpu: Make) -> None:
    """Behind a launch in the legacy stream an event is recorded at once: later it would wait for
    what other streams have been given meanwhile, and what comes behind would wait for it."""
    gpu = shared_gpu(options=("--window", "8"))
    high, low = pair(gpu)
    low.call(
        "globals().update(a=cuda.stream(0), b=cuda.stream(0), e=__import__('threading').Event())"
    )
    steps = [
        *(f"cuda.launch(10, b, {before})", "cuda.launch(10)", "cuda.call_host(a, e)"),
        *("cuda.launch(10, b, 12)", "cuda.ends_within(b, 5.0)"),
    ]
    assert low.call(f"[{', '.join(steps)}]") == [0, 0, 0, 0, True]
    assert low.call("e.set() or cuda.synchronize()") == 0
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
