"""When a job is idle, and when it has drained: by what the GPU does, whatever its host does.

Each of these jobs is an ordinary program; none may hang, lose its recordings, or be held to blame.
"""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnode.gpushare import ShareClass
from tests.support.gpu_device import Job, SharedGpu, wait_until
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu
from tests.support.processes import PATIENCE_S
from tests.system.test_gpushare_priority import gpu_counters, is_waiting, of

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = [needs_compiler, pytest.mark.timeout(120)]

HIGH, LOW = ShareClass.HIGH, ShareClass.LOW
Make = Callable[..., SharedGpu]


def pair(gpu: SharedGpu, *, load_ms: int = 0) -> tuple[Job, Job]:
    """Return a high and a low job; the low one loads code for so long."""
    low = gpu.run(gpu.task("2", LOW), GSCHED_FAKE_LOAD_MS=str(load_ms))
    return gpu.run(gpu.task("1", HIGH)), low


def test_a_job_with_unfinished_work_is_not_idle(shared_gpu: Make) -> None:
    """It has launched its kernels, waits for nothing, and only looks at an event now and then."""
    gpu = shared_gpu()
    high, low = pair(gpu)
    high.send("cuda.launch(1000, None, 400) or time.sleep(0.3) or cuda.launch(10)")
    wait_until(lambda: len(of(gpu.device.log(), high)) == 400)
    low.send("cuda.launch(10)")

    assert high.receive() == 0
    assert low.receive() == 0
    log = gpu.device.log()
    assert of(log, low)[0].called_ns >= of(log, high)[399].ended_ns


def test_an_overtaken_job_goes_on_whose_work_waits_for_its_next_launch(shared_gpu: Make) -> None:
    """A kernel that spins for a later one, as persistent kernels and NVSHMEM do."""
    gpu = shared_gpu(drain_max_s=0.2)
    high, low = pair(gpu)
    low.call("[globals().update(a=cuda.stream(), b=cuda.stream()), cuda.launch(10, a)][1]")
    assert low.call("cuda.wait_for_value(a)") == 0
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert gpu_counters(gpu)["overlaps"] == 1

    assert low.call("cuda.launch(10, b) or cuda.write_value() or cuda.synchronize()") == 0


def test_an_overtaken_job_goes_on_whose_host_function_waits_for_its_next_launch(
    shared_gpu: Make,
) -> None:
    gpu = shared_gpu(drain_max_s=0.2)
    high, low = pair(gpu)
    low.call(
        "globals().update(a=cuda.stream(), b=cuda.stream(), e=__import__('threading').Event())"
    )
    assert low.call("[cuda.launch(10, a), cuda.call_host(a, e)]") == [0, 0]
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert gpu_counters(gpu)["overlaps"] == 1

    assert low.call("cuda.launch(10, b) or e.set() or cuda.synchronize()") == 0


def test_a_launch_beside_the_own_recording_waits_and_does_not_hang(shared_gpu: Make) -> None:
    """As cuBLAS fills its workspace, and NCCL copies, while a thread records."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = pair(gpu)
    low.call("[globals().update(a=cuda.stream(), b=cuda.stream()), cuda.launch(10, b)][1]")
    assert low.call("[cuda.begin(a, 2), cuda.launch(10, a)]") == [0, 0]

    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0, "it waits for no recording"
    assert low.call("[cuda.launch(10, b), cuda.launch(10, a), cuda.end(a)]") == [0, 0, 0]
    assert gpu_counters(gpu)["overlaps"] == 0


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("flags", [0, 1])
def test_a_stream_may_record_that_has_a_window(mode: int, flags: int, shared_gpu: Make) -> None:
    """The event behind its last launches is recorded before the recording begins."""
    gpu = shared_gpu(options=("--window", "8"))
    high, low = pair(gpu)
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    low.call(f"[globals().update(a=cuda.stream({flags}), b=cuda.stream())][0]")

    steps = f"[cuda.launch(10, a), cuda.begin(a, {mode}), cuda.launch(10, b, 12), cuda.end(a)]"
    assert low.call(steps) == [0, 0, 0, 0]


def test_a_stream_that_joins_a_recording_is_left_alone(shared_gpu: Make) -> None:
    """It joins by an event; the legacy stream and the joined one have unfinished work before."""
    gpu = shared_gpu(drain_max_s=30.0)
    high, low = pair(gpu)
    low.call("globals().update(a=cuda.stream(0), b=cuda.stream(0), e=cuda.event(), f=cuda.event())")
    record = "cuda.api.cuEventRecord({}, ctypes.c_void_p({}))"
    wait = "cuda.api.cuStreamWaitEvent(ctypes.c_void_p({}), {}, 0)"
    steps = [
        *("cuda.launch(50_000)", "cuda.launch(50_000, b)", "cuda.begin(a)", "cuda.launch(10, a)"),
        *(record.format("e", "a"), wait.format("b", "e"), "cuda.launch(10, b)"),
        *("time.sleep(0.4)", record.format("f", "b"), wait.format("a", "f"), "cuda.end(a)"),
    ]
    low.send(f"[{', '.join(steps)}]")
    wait_until(lambda: len(of(gpu.device.log(), low)) == 2)
    high.send("cuda.launch(10)")

    assert low.receive() == [0] * 7 + [None] + [0] * 3
    assert high.receive() == 0
    log = gpu.device.log()
    assert of(log, high)[0].called_ns >= of(log, low)[1].ended_ns, "it has waited for the work"
    assert gpu_counters(gpu)["drain_s_max"] < 0.4, "and not for the recording"


def test_short_recordings_bear_a_job_that_takes_the_token_again_and_again(shared_gpu: Make) -> None:
    """In each mode, in streams of threads' own, and with other threads that launch."""
    gpu = shared_gpu()
    high, low = pair(gpu)
    high.send("len(cuda.train(50, 2, 1, 4.0))")
    low.call("globals().update(a=cuda.stream(), b=cuda.stream(), c=cuda.stream())")
    ways = "[(a, 0, 0), (b, 1, 0), (c, 2, 0), (2, 1, 1), (2, 1, 1)]"

    answers = low.call(
        f"in_threads(5, lambda i: cuda.record_many(3.0, *{ways}[i][:2], per_thread={ways}[i][2]))"
    )

    assert high.receive() > 0
    # In the global mode a recording of this thread forbids others' unsafe calls, not launches.
    assert [results for _, results in answers] == [[0]] * 5
    assert gpu_counters(gpu)["preemptions"] > 100


def test_long_recordings_are_not_held_against_a_job(shared_gpu: Make) -> None:
    """Three of 1.2 s beside a busy high job, as inference servers record at their start."""
    gpu = shared_gpu(drain_max_s=0.5, overlaps_max=3)
    high, low = pair(gpu)
    high.send("len(cuda.train(200, 5, 20, 5.0))")
    for _ in range(3):
        assert low.call("cuda.capture(100, 5, hook=lambda: time.sleep(1.2))[0]") == [0, 0, 0, 0]
        assert low.call("cuda.launch(10)") == 0

    assert high.receive() > 50
    assert gpu_counters(gpu)["overlaps"] == gpu_counters(gpu)["demotions"] == 0


def test_a_job_that_records_leaves_the_gpu_to_others(shared_gpu: Make, tmp_path: Path) -> None:
    """Nothing of it runs: a high job yields, and has the token again when it launches."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    gpu = shared_gpu()
    high, low = pair(gpu)
    assert high.call("cuda.launch(10)") == 0
    records = f"open({str(begun)!r}, 'w').close()"
    waits = f"any(os.path.exists({str(go)!r}) or time.sleep(0.01) for _ in range(6000))"
    high.send(f"cuda.capture(100, 50, hook=lambda: [{records}, {waits}])[0]")
    wait_until(begun.exists)

    assert low.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert high.process.stdout is not None
    assert not select.select([high.process.stdout], [], [], 0.0)[0], "it records still"
    go.touch()
    assert high.receive() == [0, 0, 0, 0]


def test_loading_code_is_not_held_against_a_job(shared_gpu: Make) -> None:
    """It lasts longer than a drain may, three times."""
    gpu = shared_gpu(drain_max_s=0.2, overlaps_max=2)
    high, low = pair(gpu, load_ms=700)
    high.send("len(cuda.train(200, 5, 20, 4.0))")
    for _ in range(3):
        assert low.call("cuda.launch(10) or cuda.load()") == 0

    assert high.receive() > 50
    assert gpu_counters(gpu)["demotions"] == 0


@pytest.mark.parametrize(
    ("window", "work"),
    [
        ("1", "cuda.launch(3_000_000, count=10)"),
        ("64", "cuda.launch(3_000_000) or cuda.api.cuMemcpyHtoD_v2(4096, b'x', 1)"),
    ],
    ids=["window", "copy"],
)
def test_a_job_that_waits_for_its_kernel_loads_no_code(
    window: str, work: str, shared_gpu: Make
) -> None:
    """For a place in its window, or for a copy behind a kernel of 3 s: it is overtaken."""
    gpu = shared_gpu(drain_max_s=0.2, options=("--window", window))
    high, low = pair(gpu)
    assert high.call("cuda.launch(10) or cuda.synchronize()") == 0
    low.send(work)
    wait_until(lambda: len(of(gpu.device.log(), low)) > 0)

    assert high.call("cuda.launch(10)") == 0
    assert gpu_counters(gpu)["overlaps"] == 1


@pytest.mark.parametrize("share_class", [HIGH, LOW])
def test_a_launch_does_not_wait_for_a_stopped_daemon_for_ever(
    share_class: ShareClass, shared_gpu: Make
) -> None:
    """Connected before, and no end of the connection is told; it is patient, and then alone."""
    gpu = shared_gpu(patience_s=1.0)
    holder, job = gpu.run(gpu.task("1", LOW)), gpu.run(gpu.task("2", share_class))
    assert job.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert holder.call("cuda.launch(10) or cuda.synchronize()") == 0
    daemon = gpu.daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        begun_s = time.monotonic()
        assert job.call("cuda.launch(10)") == 0
        assert time.monotonic() - begun_s < 30.0
        assert "does not answer any more" in gpu.said
    finally:
        os.kill(daemon, signal.SIGCONT)

    wait_until(lambda: len(gpu.metrics()["groups"]["2.1"]["pids"]) == 1)
    assert job.call("cuda.launch(10)") == 0


def test_a_low_job_does_not_starve_beside_a_high_one_that_is_never_idle(shared_gpu: Make) -> None:
    """The GPU has work for two seconds, so that the high job is not idle when its host is late."""
    gpu = shared_gpu()
    high, low = pair(gpu)
    high.send("cuda.pipeline(4000, 5, 0, 3.0, depth=100)[0]")
    wait_until(lambda: len(gpu.device.log()) > 400)

    assert low.call("cuda.launch(10) or cuda.synchronize()") == 0
    assert gpu_counters(gpu)["opportunistic_slices"] >= 1
    assert high.receive() > 0


def test_a_signal_reaches_a_program_that_waits_at_the_gate(shared_gpu: Make) -> None:
    """Python runs its handlers between two calls: the launch passes when the job is to end."""
    gpu = shared_gpu()
    high, low = pair(gpu)
    high.send("cuda.launch(8_000_000) or cuda.synchronize()")
    wait_until(lambda: len(of(gpu.device.log(), high)) == 1)
    handler = "lambda *_: (cuda.launch(10), os.write(2, b'attended'), os._exit(7))"
    low.call(f"[__import__('signal').signal(15, {handler}), None][1]")
    low.send("cuda.launch(10)")
    wait_until(lambda: is_waiting(gpu, "2.1"))

    os.kill(low.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert low.process.poll() is None
    gpu.runtime.attend(gpu.task("2", LOW), 5.0)

    assert low.process.wait(PATIENCE_S) == 7
    assert "attended" in gpu.said
